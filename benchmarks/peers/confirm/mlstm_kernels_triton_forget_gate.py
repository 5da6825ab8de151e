"""mlstm_kernels (Triton): after a very negative forget gate, later steps lose precision, and −∞ gives NaN.

    pip install mlstm-kernels torch triton && python mlstm_kernels_triton_forget_gate.py

On a GPU if there is one, else under Triton's interpreter (numpy < 2.4 there). Log decays are differences of one running
sum of log σ(f), in float32. A large |log σ(f_3)| in that sum takes away the digits of all gates after it, and −∞ leaves
−∞ − (−∞). The definition, a loop over steps in NumPy, has no such difference: its results after step 3 do not depend
on f_3 at all once σ(f_3) is 0. An error of the size that f_3 = 0 has is float32's own.
"""

import os
import sys

import numpy as np
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime.autotuner import Autotuner

    # Nothing can be timed under the interpreter: the first configuration stands for all.
    Autotuner.run = lambda self, *args, **options: self.fn.run(*args, **{**options, **self.configs[0].all_kwargs()})

from mlstm_kernels.torch import get_mlstm_kernel  # noqa: E402

NAMES = ("chunkwise--triton_xl_chunk", "chunkwise--triton_limit_chunk", "parallel--triton_limit_headdim")
GATES = (0.0, -1e2, -1e4, -1e8, -1e30, -np.inf)
S = K = 64


def definition(q, k, v, i, f):
    """One head, ``(S, K)`` and ``(S,)``: h_t = C_tᵀq̂_t / max(|n_t·q̂_t|, exp(−m_t))."""
    C, n, m, h = np.zeros((K, K)), np.zeros(K), 0.0, []
    for t in range(S):
        a = -np.logaddexp(0, -f[t])
        last, m = m, max(a + m, i[t])
        C = np.exp(a + last - m) * C + np.exp(i[t] - m) * np.outer(k[t], v[t])
        n = np.exp(a + last - m) * n + np.exp(i[t] - m) * k[t]
        scaled = q[t] / np.sqrt(K)
        h.append(C.T @ scaled / max(abs(n @ scaled), np.exp(-m)))
    return np.array(h)


rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((S, K)).astype(np.float32) for _ in "qkv")
i, f = (x + rng.standard_normal(S).astype(np.float32) for x in (np.float32(0), np.float32(1)))
print("largest |h - definition|, where f_3 is   " + "".join(f"{gate:>10.0e}" for gate in GATES))
wrong = False
for name in NAMES:
    errors = []
    for gate in GATES:
        f[3] = gate
        arrays = [torch.tensor(x, device=device)[None, None] for x in (q, k, v, i, f)]
        options = {"chunk_size": 64} if "chunkwise" in name else {}
        h = get_mlstm_kernel(name)(*arrays, eps=0.0, **options)[0, 0].double().cpu().numpy()
        errors.append(np.abs(h - definition(*(x.astype(np.float64) for x in (q, k, v, i, f)))).max())
    print(f"  {name:38}" + "".join(f"{error:10.1e}" for error in errors))
    wrong |= not max(errors) < 100 * errors[0]
print("Verdict:", "confirmed." if wrong else "not seen with this version.")
sys.exit(bool(wrong))
