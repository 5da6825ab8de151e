"""Helpers shared by the mLSTM's kernels: the normaliser's floor, m of an empty memory, and decay in units of exp(m)."""

import triton.language as tl  # pyright: ignore[reportMissingImports]

from torch_impl._mlstm import normaliser
from torch_impl._triton.shared import device_function

LARGEST_M = tl.constexpr(normaliser.LARGEST_M)

LARGEST_UNIT = tl.constexpr(2.0**28)
"""From this |m| on, the rounding of m alone may put a memory out of range in units of exp(m). The largest weight then
counts as 1: results stay finite, and what a block or a single step writes is off by the rounding of m relative to
earlier ones."""


@device_function
def finite(m):
    """m with −∞, that of an empty memory, made finite: −∞ less this is still −∞, and its weight is 0."""
    return tl.maximum(m, -3.0e38)


@device_function
def stabilised_decay(a, m, total, top):
    """``a + m − top`` for ``total``, the rounded ``a + m``, and a finite ``top``; what rounding took is added again.

    Knuth's two-sum: without it, the memory would be off by u·|m| of itself at every step.
    """
    rest = total - a
    lost = (a - (total - rest)) + (m - rest)
    return (total - top) + tl.where(total == float("-inf"), 0.0, lost)
