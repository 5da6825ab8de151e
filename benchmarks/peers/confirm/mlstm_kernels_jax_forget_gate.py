"""mlstm_kernels (JAX): after a very negative forget gate, later steps lose precision, and −∞ gives NaN.

    pip install mlstm-kernels jax && python mlstm_kernels_jax_forget_gate.py

Log decays are differences of one running sum of log σ(f). A large |log σ(f_3)| in that sum takes away the digits of
all gates after it, and −∞ leaves −∞ − (−∞). The definition, a loop over steps in NumPy, has no such difference: its
results after step 3 do not depend on f_3 at all once σ(f_3) is 0. The two `native_stablef` functions agree with the
loop. Those with a custom backward pass take float32 and 16 bits, and are called in float32.
"""

import _jax_alone  # noqa: F401
import jax
import numpy as np
from _shared import chunks, definition, verdict
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
        options = chunks(name, S)
        h = np.asarray(function(*arrays, eps=0.0, **options))[0, 0]
        errors.append(np.abs(h - definition(q, k, v, i, f)).max())
    print(f"  {f'{name}, {dtype.__name__}':44}" + "".join(f"{error:12.1e}" for error in errors))
    wrong |= not max(errors) < (1e-6 if dtype is np.float64 else 1e-3)
verdict(wrong)
