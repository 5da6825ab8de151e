"""mlstm_kernels (Triton): after a very negative forget gate, later steps lose precision, and −∞ gives NaN.

    pip install mlstm-kernels torch triton && python mlstm_kernels_triton_forget_gate.py

On a GPU if there is one, else under Triton's interpreter (numpy < 2.4 there). Log decays are differences of one running
sum of log σ(f), in float32. A large |log σ(f_3)| in that sum takes away the digits of all gates after it, and −∞ leaves
−∞ − (−∞). The definition, a loop over steps in NumPy, has no such difference: its results after step 3 do not depend
on f_3 at all once σ(f_3) is 0. An error of the size that f_3 = 0 has is float32's own.
"""

import numpy as np
import torch
from _device import device
from _shared import TRITON, chunks, definition, verdict
from mlstm_kernels.torch import get_mlstm_kernel

GATES = (0.0, -1e2, -1e4, -1e8, -1e30, -np.inf)
S = K = 64


rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((S, K)).astype(np.float32) for _ in "qkv")
i, f = (x + rng.standard_normal(S).astype(np.float32) for x in (np.float32(0), np.float32(1)))
print("largest |h - definition|, where f_3 is   " + "".join(f"{gate:>10.0e}" for gate in GATES))
wrong = False
for name in TRITON:
    errors = []
    for gate in GATES:
        f[3] = gate
        arrays = [torch.tensor(x, device=device)[None, None] for x in (q, k, v, i, f)]
        options = chunks(name, 64)
        h = get_mlstm_kernel(name)(*arrays, eps=0.0, **options)[0, 0].double().cpu().numpy()
        errors.append(np.abs(h - definition(*(x.astype(np.float64) for x in (q, k, v, i, f)))).max())
    print(f"  {name:38}" + "".join(f"{error:10.1e}" for error in errors))
    wrong |= not max(errors) < 100 * errors[0]
verdict(wrong)
