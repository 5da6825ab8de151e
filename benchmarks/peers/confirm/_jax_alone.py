"""Import this before mlstm_kernels.jax, which imports Triton kernels with its native functions.

Where JAX has no GPU, jax-triton does not import; no function that the scripts call needs it.
"""

import sys
from types import ModuleType

try:
    import jax_triton  # noqa: F401
except ImportError:
    sys.modules["jax_triton"] = ModuleType("jax_triton")
