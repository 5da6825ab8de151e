"""mlstm-kernels (NX-AI), its native JAX function of one step."""

import sys
from types import ModuleType

try:
    import jax_triton  # noqa: F401
except ImportError:
    # Its packages import Triton kernels with the native functions, and jax-triton can be imported only in GPU builds.
    sys.modules["jax_triton"] = ModuleType("jax_triton")

from mlstm_kernels.jax.recurrent import mlstm_recurrent_step__native


def mlstm_step(q, k, v, i, f, state, *, eps=0.0, **unserved):
    if unserved:
        raise NotImplementedError(f"it does not support {', '.join(unserved)}")
    C, n, m = state
    # Its gates and its stabiliser have a last axis of 1.
    h, (C, n, m) = mlstm_recurrent_step__native(q, k, v, i[..., None], f[..., None], C, n, m[..., None], eps=eps)
    return h, (C, n, m[..., 0])
