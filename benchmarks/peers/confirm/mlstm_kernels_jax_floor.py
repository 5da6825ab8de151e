"""mlstm_kernels (JAX), recurrent: the gradient is NaN where exp(−m) overflows, or its square underflows.

    pip install mlstm-kernels jax && python mlstm_kernels_jax_floor.py

exp(−m) is the floor of the normaliser. One step in float32, whose q, k, v and gates are single numbers: h is
q·v·exp(i) where q is 0 or i very negative, and its derivative with respect to q is exp(i).
"""

import math
import sys
from types import ModuleType

import jax
import jax.numpy as jnp

try:
    import jax_triton  # noqa: F401
except ImportError:
    # Where JAX has no GPU, jax-triton does not import; no function below needs it.
    sys.modules["jax_triton"] = ModuleType("jax_triton")

from mlstm_kernels.jax.recurrent import mlstm_recurrent_sequence__native_fw as loop
from mlstm_kernels.jax.recurrent.native_sequence_scan import mlstm_recurrent_sequence__native_fw as scan

wrong = False
for name, function in (("native_sequence", loop), ("native_sequence_scan", scan)):

    def h(q, i, f, function=function):
        array = jnp.ones((1, 1, 1, 1), jnp.float32)
        gates = (x * array[..., 0] for x in (i, f))
        return function(q * array, array, array, *gates, eps=0.0, return_last_states=False).sum()

    for q, i, f in ((0.0, 20.0, 5.0), (0.0, 40.0, 5.0), (0.0, 50.0, 5.0), (1.0, -50.0, -1e3), (1.0, -100.0, -1e3)):
        of_h, (dq, di, df) = jax.value_and_grad(h, (0, 1, 2))(q, i, f)
        print(
            f"{name:21} q = {q:.0f}, i = {i:6.1f}, f = {f:8.1f}: h = {of_h:9.3g}, "
            f"dq = {dq:9.3g} (exact {math.exp(i):9.3g}), di = {di:9.3g}, df = {df:9.3g}"
        )
        wrong |= not all(math.isfinite(x) for x in (dq, di, df))
print("Verdict:", "confirmed." if wrong else "not seen with this version.")
sys.exit(wrong)
