"""mlstm_kernels (PyTorch): after a very negative forget gate, later steps lose precision, and −∞ gives NaN.

    pip install mlstm-kernels torch && python mlstm_kernels_forget_gate.py

Log decays are differences of one running sum of log σ(f). A large |log σ(f_3)| in that sum takes away the digits of
all gates after it, and −∞ leaves −∞ − (−∞). The definition, a loop over steps in NumPy, has no such difference: its
results after step 3 do not depend on f_3 at all once σ(f_3) is 0. `parallel--native_stablef_autograd` agrees with the
loop.
"""

import numpy as np
import torch
from _shared import NATIVE, chunks, definition, verdict
from mlstm_kernels.torch import get_mlstm_kernel

GATES = (-1e2, -1e8, -1e14, -1e30, -np.inf)


rng = np.random.default_rng(0)
S, K = 8, 4
q, k, v = (rng.standard_normal((S, K)) for _ in "qkv")
i, f = rng.standard_normal(S), 1 + rng.standard_normal(S)
print("largest |h - definition|, float64, where f_3 is" + "".join(f"{gate:>12.0e}" for gate in GATES))
wrong = False
for name in NATIVE:
    errors = []
    for gate in GATES:
        f[3] = gate
        arrays = [torch.tensor(x)[None, None] for x in (q, k, v, i, f)]
        options = chunks(name, S)
        h = get_mlstm_kernel(name)(*arrays, eps=0.0, **options)[0, 0].numpy()
        errors.append(np.abs(h - definition(q, k, v, i, f)).max())
    print(f"  {name:44}" + "".join(f"{error:12.1e}" for error in errors))
    wrong |= not max(errors) < 1e-6
verdict(wrong)
