"""mlstm_kernels (JAX): after a very negative forget gate, later steps lose precision, and −∞ gives NaN.

    pip install mlstm-kernels jax && python mlstm_kernels_jax_forget_gate.py

Log decays are differences of one running sum of log σ(f). A large |log σ(f_3)| in that sum takes away the digits of
all gates after it, and −∞ leaves −∞ − (−∞). The definition, a loop over steps in NumPy, has no such difference: its
results after step 3 do not depend on f_3 at all once σ(f_3) is 0. The two `native_stablef` functions agree with the
loop. Those with a custom backward pass take float32 and 16 bits, and are called in float32.
"""

import sys
from types import ModuleType

import jax
import numpy as np

try:
    import jax_triton  # noqa: F401
except ImportError:
    # Where JAX has no GPU, jax-triton does not import; no function below needs it.
    sys.modules["jax_triton"] = ModuleType("jax_triton")

from mlstm_kernels.jax import chunkwise, parallel

jax.config.update("jax_enable_x64", True)
FUNCTIONS = {
    "chunkwise.native_autograd": (chunkwise.registry["native_autograd"], np.float64),
    "parallel.native_autograd": (parallel.registry["native_autograd"], np.float64),
    "parallel.native_custbw": (parallel.registry["native_custbw"], np.float32),
    "parallel.native_stablef_autograd": (parallel.registry["native_stablef_autograd"], np.float64),
    "parallel.native_stablef_custbw": (parallel.registry["native_stablef_custbw"], np.float32),
}
GATES = (-1e2, -1e8, -1e14, -1e30, -np.inf)


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
S, K = 8, 4
q, k, v = (rng.standard_normal((S, K)) for _ in "qkv")
i, f = rng.standard_normal(S), 1 + rng.standard_normal(S)
print(f"{'largest |h - definition|, where f_3 is':46}" + "".join(f"{gate:>12.0e}" for gate in GATES))
wrong = False
for name, (function, dtype) in FUNCTIONS.items():
    errors = []
    for gate in GATES:
        f[3] = gate
        arrays = [jax.numpy.asarray(x, dtype)[None, None] for x in (q, k, v, i, f)]
        options = {"chunk_size": S} if "chunkwise" in name else {}
        h = np.asarray(function(*arrays, eps=0.0, **options))[0, 0]
        errors.append(np.abs(h - definition(q, k, v, i, f)).max())
    print(f"  {f'{name}, {dtype.__name__}':44}" + "".join(f"{error:12.1e}" for error in errors))
    wrong |= not max(errors) < (1e-6 if dtype is np.float64 else 1e-3)
print("Verdict:", "confirmed." if wrong else "not seen with this version.")
sys.exit(wrong)
