"""Floating-point dtypes by name, so that no framework has to be asked what a bfloat16 is."""

from dataclasses import dataclass
from typing import Any

import numpy as np

FLOATING = ("float64", "float32", "bfloat16", "float16")
HALF = ("bfloat16", "float16")

ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Largest relative error of rounding a real number to the dtype (to nearest)."""

SMALLEST = {"float64": 2.0**-1022, "float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-24}
"""Magnitude below which the dtype, as frameworks compute with it, need not distinguish a number from 0.

It is the smallest normal number, because XLA flushes subnormal ones; float16 keeps its subnormals everywhere.
"""

LARGEST = {
    "float64": float(np.finfo(np.float64).max),
    "float32": float(np.finfo(np.float32).max),
    "bfloat16": 2.0**127 * (2 - 2.0**-7),
    "float16": 65504.0,
}
"""Largest finite number of the dtype."""


def accumulation(dtype: str) -> str:
    """The dtype of the states that go with values of ``dtype``."""
    return "float64" if dtype == "float64" else "float32"


@dataclass(frozen=True)
class Array:
    """An array of no framework: its values in float64 (or an integer dtype), and the dtype that it stands for.

    Attributes:
        values: the values, exactly representable in ``dtype``.
        dtype: the dtype's name.
        layout: its layout in memory if the adapter's framework supports it: ``contiguous``, ``strided`` (every
            second element of a larger buffer along the last axis), ``transposed`` (last two axes swapped),
            ``surrounded`` (in one piece, with NaN before and after it), or ``rows apart`` (NaN before and after each
            row along each axis, too).
    """

    values: np.ndarray
    dtype: str
    layout: str = "contiguous"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape


def rounded(values: Any, dtype: str) -> np.ndarray:
    """The float64 values of ``values`` after rounding to ``dtype``."""
    values = np.asarray(values, dtype=np.float64)
    if dtype == "float64":
        return values.copy()
    if dtype == "bfloat16":
        bits = values.astype(np.float32, order="C").view(np.uint32).astype(np.uint64)
        nearest_even = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        exact = np.isfinite(values)
        return np.where(exact, nearest_even.astype(np.uint32).view(np.float32), values).astype(np.float64)
    return values.astype(dtype).astype(np.float64)


def array(values: Any, dtype: str, layout: str = "contiguous") -> Array:
    """An `Array` of ``values``, rounded for a floating-point dtype or unchanged for an integer one."""
    if dtype in FLOATING:
        return Array(rounded(values, dtype), dtype, layout)
    return Array(np.asarray(values, dtype=dtype), dtype, layout)
