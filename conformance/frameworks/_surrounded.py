"""Arrays with NaN around them in memory: whoever reads beyond an array, or between its rows, reads NaN."""

import math
from collections.abc import Callable
from typing import Any

LAYOUTS = ("surrounded", "rows apart")
"""In one piece, with NaN before and after it; and with NaN at both ends of every axis, so that rows are apart too."""

AROUND = 4096
"""Number of elements before and after an array in one piece: more than a tile of a kernel has."""

FILLING = 77
"""The number that stands in place of NaN around integers."""


def place(layout: str, shape: tuple[int, ...], full: Callable[[tuple[int, ...]], Any]) -> Any:
    """A view of the given shape within a larger buffer; the caller writes the array into it.

    Args:
        layout: one of `LAYOUTS`.
        full: makes a buffer of a shape, full of NaN.
    """
    if layout == "surrounded":
        size = math.prod(shape)
        return full((size + 2 * AROUND,))[AROUND : AROUND + size].reshape(shape)
    return full(tuple(n + 2 for n in shape))[(slice(1, -1),) * len(shape)]
