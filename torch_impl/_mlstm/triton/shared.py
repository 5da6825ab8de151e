"""What the mLSTM's kernels share: the constant of the normaliser's floor, and m of an empty memory."""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from torch_impl._mlstm import normaliser

LARGEST_M = tl.constexpr(normaliser.LARGEST_M)


@triton.jit
def finite(m):
    """An empty memory's m of −∞ as a finite number: −∞ less this is still −∞, and its weight is 0."""
    return tl.maximum(m, -3.0e38)
