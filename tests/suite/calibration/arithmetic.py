"""The arithmetic of a kernel: in which dtype it computes, how it sums, and what it rounds to 16 bits on the way."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.base.dtypes import HALF, accumulation

Sum = Callable[[np.ndarray, int], np.ndarray]

SIGNIFICANT_BITS = {"bfloat16": 8, "float16": 11, "tf32": 11}
"""Bits of a significand, including the leading one."""


def plain_sum(x: np.ndarray, axis: int) -> np.ndarray:
    """NumPy's own, which is pairwise in blocks where memory lets it be."""
    return np.add.reduce(x, axis=axis)


def sequential_sum(x: np.ndarray, axis: int) -> np.ndarray:
    """One term after the other."""
    x = np.moveaxis(x, axis, 0)
    total = np.zeros(x.shape[1:], x.dtype)
    for term in x:
        total = total + term
    return total


def pairwise_sum(x: np.ndarray, axis: int) -> np.ndarray:
    """A tree: neighbours first, as a warp reduces."""
    x = np.moveaxis(x, axis, 0)
    if not len(x):
        return np.zeros(x.shape[1:], x.dtype)
    while len(x) > 1:
        odd = x[len(x) // 2 * 2 :]
        x = np.concatenate([x[: len(x) // 2 * 2 : 2] + x[1::2], odd])
    return x[0]


def two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``a + b`` rounded and its rounding error (Knuth); the error of what is not finite counts as 0."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    return total, np.where(np.isfinite(error), error, error.dtype.type(0))


def compensated_sum(x: np.ndarray, axis: int) -> np.ndarray:
    """Neumaier's sum: the roundings are summed beside the terms and added last."""
    x = np.moveaxis(x, axis, 0)
    total = lost = np.zeros(x.shape[1:], x.dtype)
    for term in x:
        total, error = two_sum(total, term)
        lost = lost + error
    return total + lost


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic of a kernel.

    Attributes:
        dtype: the name of the values' dtype.
        operands: whether 16-bit values stay 16 bits wide as operands of products, what is computed among them too, as
            in a tensor core. Everything else, the carried state first, is held in the accumulation dtype.
        add: how it sums.
    """

    dtype: str
    operands: bool = False
    add: Sum = plain_sum

    @property
    def type(self) -> Any:
        return np.dtype(accumulation(self.dtype)).type

    def operand(self, x: np.ndarray) -> np.ndarray:
        """An intermediate that goes into a product of 16-bit operands.

        Only its significand is rounded: a kernel in which one leaves the range of float16 scales it first.
        """
        if not self.operands or self.dtype not in HALF:
            return x
        fraction, exponent = np.frexp(x)
        bits = SIGNIFICANT_BITS[self.dtype]
        return np.ldexp(np.rint(fraction * x.dtype.type(2.0**bits)), exponent - bits)

    def dot(self, x: np.ndarray, y: np.ndarray, axis: int = -1) -> np.ndarray:
        """``Σ x y`` along an axis of what they broadcast to."""
        return self.add(x * y, axis)


def log_sigmoid(f: np.ndarray) -> np.ndarray:
    """``log σ(f)`` by the branch that cannot overflow."""
    return np.minimum(f, 0) - np.log1p(np.exp(-np.abs(f)))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """``1/(1 + exp(−x))`` by the branch that cannot overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def weight(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """``exp(x − y)`` of log weights below +∞; 0 for the weight of nothing, whatever it is held against."""
    none = np.isneginf(x)
    return np.where(none, x.dtype.type(0), np.exp(np.where(none, x.dtype.type(0), x - y)))
