"""Helpers shared by the mLSTM's kernels: the constant of the normaliser's floor, and m of an empty memory."""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from torch_impl._mlstm import normaliser

LARGEST_M = tl.constexpr(normaliser.LARGEST_M)


@triton.jit
def finite(m):
    """m with −∞, that of an empty memory, made finite: −∞ less this is still −∞, and its weight is 0."""
    return tl.maximum(m, -3.0e38)
