"""Reverse-mode differentiation of NumPy expressions, just large enough for the formulas in this package.

Formulas are written forwards only, and their gradients follow, parts held constant included. Everything is float64.
"""

import heapq
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from conformance.base import dtypes
from conformance.specification.traced import Pullback, like

_numbers = count()


class Tensor:
    """A value, and how its cotangent reaches the tensors that it was computed from."""

    __slots__ = ("number", "parents", "value")
    __array_ufunc__ = None

    def __init__(self, value: Any, parents: tuple[tuple["Tensor", Pullback], ...] = ()):
        self.value = np.asarray(value, np.float64)
        self.parents = parents
        self.number = next(_numbers)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def __add__(self, other: Any) -> "Tensor":
        other = tensor(other)
        return Tensor(self.value + other.value, ((self, like(self.shape)), (other, like(other.shape))))

    __radd__ = __add__

    def __neg__(self) -> "Tensor":
        return Tensor(-self.value, ((self, lambda d: -d),))

    def __sub__(self, other: Any) -> "Tensor":
        return self + -tensor(other)

    def __rsub__(self, other: Any) -> "Tensor":
        return tensor(other) + -self

    def __mul__(self, other: Any) -> "Tensor":
        other = tensor(other)
        to_self, to_other = like(self.shape), like(other.shape)
        return Tensor(
            self.value * other.value,
            ((self, lambda d: to_self(d * other.value)), (other, lambda d: to_other(d * self.value))),
        )

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> "Tensor":
        other = tensor(other)
        quotient = self.value / other.value
        to_self, to_other = like(self.shape), like(other.shape)
        return Tensor(
            quotient,
            ((self, lambda d: to_self(d / other.value)), (other, lambda d: to_other(-d * quotient / other.value))),
        )

    def __getitem__(self, key: Any) -> "Tensor":
        """A part, chosen by slices, numbers or None, so that no element is taken twice."""

        def pullback(d: np.ndarray) -> np.ndarray:
            whole = np.zeros(self.shape)
            whole[key] = d
            return whole

        return Tensor(self.value[key], ((self, pullback),))


def tensor(x: Any) -> Tensor:
    return x if isinstance(x, Tensor) else Tensor(x)


def constant(x: Tensor) -> Tensor:
    """The value, which passes no cotangent on."""
    return Tensor(x.value)


def elementwise(x: Tensor, value: np.ndarray, slope: np.ndarray) -> Tensor:
    return Tensor(value, ((x, lambda d: d * slope),))


def tanh(x: Tensor) -> Tensor:
    y = np.tanh(x.value)
    return elementwise(x, y, 1 - y * y)


def log_sigmoid(x: Tensor) -> Tensor:
    return elementwise(x, _log_sigmoid(x.value), np.exp(_log_sigmoid(-x.value)))


def sigmoid(x: Tensor) -> Tensor:
    y = np.exp(_log_sigmoid(x.value))
    return elementwise(x, y, y * np.exp(_log_sigmoid(-x.value)))


def log_of_sigmoid(x: Tensor, dtype: str) -> Tensor:
    """``log(1 / (1 + exp(−x)))`` as it is written, in a dtype: −∞, without a gradient, where the sigmoid is 0 there."""
    y = 1 / (1 + np.exp(-x.value.astype(dtype)))
    return elementwise(x, np.log(y).astype(np.float64), np.where(y == 0, np.nan, 1 - y))


def _log_sigmoid(x: np.ndarray) -> np.ndarray:
    return np.minimum(x, 0.0) - np.log1p(np.exp(-np.abs(x)))


def exp(x: Tensor) -> Tensor:
    y = np.exp(x.value)
    return elementwise(x, y, y)


def absolute(x: Tensor) -> Tensor:
    return elementwise(x, np.abs(x.value), np.sign(x.value))


def clip(x: Tensor, low: float, high: float) -> Tensor:
    return elementwise(x, np.clip(x.value, low, high), (x.value > low) & (x.value < high))


def rounded(x: Tensor, dtype: str) -> Tensor:
    """The value rounded to a dtype; its cotangent passes as it is."""
    return elementwise(x, dtypes.rounded(x.value, dtype), np.ones(x.shape))


def maximum(x: Tensor, y: Tensor) -> Tensor:
    """The larger of the two; of equal ones, the first has the gradient."""
    first = x.value >= y.value
    to_x, to_y = like(x.shape), like(y.shape)
    return Tensor(np.maximum(x.value, y.value), ((x, lambda d: to_x(d * first)), (y, lambda d: to_y(d * ~first))))


def weight(x: Tensor, y: Tensor) -> Tensor:
    """``exp(x − y)``, and 0 where x is −∞."""
    empty = np.isneginf(x.value)
    w = np.where(empty, 0.0, np.exp(np.where(empty, 0.0, x.value - np.where(empty, 0.0, y.value))))
    return Tensor(w, ((x, lambda d: d * w), (y, lambda d: -d * w)))


def bounded_cotangent(x: Tensor, bound: float) -> Tensor:
    """The value itself; its cotangent is clipped to ±bound, element by element."""
    return Tensor(x.value, ((x, lambda d: np.clip(d, -bound, bound)),))


def einsum(subscripts: str, x: Tensor, y: Tensor) -> Tensor:
    """A product of two tensors in which every index of one is in the other or in the result."""
    of_x, rest = subscripts.split(",")
    of_y, out = rest.split("->")
    return Tensor(
        np.einsum(subscripts, x.value, y.value),
        (
            (x, lambda d: np.einsum(f"{out},{of_y}->{of_x}", d, y.value)),
            (y, lambda d: np.einsum(f"{out},{of_x}->{of_y}", d, x.value)),
        ),
    )


def concatenate(parts: Sequence[Tensor], axis: int) -> Tensor:
    sizes = [part.shape[axis] for part in parts]

    def of(end: int, size: int) -> Pullback:
        return lambda d: np.take(d, np.arange(end - size, end), axis=axis)

    value = np.concatenate([part.value for part in parts], axis=axis)
    return Tensor(value, tuple(zip(parts, map(of, np.cumsum(sizes), sizes), strict=True)))


def repeat(x: Tensor, index: np.ndarray, axis: int) -> Tensor:
    """``x`` taken at ``index`` along an axis, where an index may occur several times."""

    def pullback(d: np.ndarray) -> np.ndarray:
        whole = np.zeros(np.moveaxis(x.value, axis, 0).shape)
        np.add.at(whole, index, np.moveaxis(d, axis, 0))
        return np.moveaxis(whole, 0, axis)

    return Tensor(np.take(x.value, index, axis=axis), ((x, pullback),))


def transpose(x: Tensor) -> Tensor:
    """The last two axes swapped."""
    return Tensor(x.value.swapaxes(-1, -2), ((x, lambda d: d.swapaxes(-1, -2)),))


def gradients(
    outputs: Mapping[str, Tensor], cotangents: Mapping[str, np.ndarray], inputs: Mapping[str, Tensor]
) -> dict[str, np.ndarray]:
    """The gradient of ``Σ ⟨output, cotangent⟩`` with respect to every input; 0 for one that no output depends on."""
    reached: dict[Tensor, np.ndarray] = {}
    waiting: list[tuple[int, Tensor]] = []

    def add(x: Tensor, d: np.ndarray) -> None:
        if x not in reached:
            heapq.heappush(waiting, (-x.number, x))
        reached[x] = reached[x] + d if x in reached else d

    for name in outputs.keys() & cotangents.keys():
        add(outputs[name], np.asarray(cotangents[name], np.float64))
    # The latest tensor first: the cotangent of a tensor is complete once those of all later ones have passed.
    while waiting:
        _, x = heapq.heappop(waiting)
        for parent, pullback in x.parents:
            add(parent, pullback(reached[x]))
    return {name: reached.get(x, np.zeros(x.shape)) for name, x in inputs.items()}
