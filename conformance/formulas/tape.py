"""Reverse-mode differentiation of NumPy expressions, just large enough for the formulas in this package.

Formulas are written forwards only, and their gradients follow, parts held constant included. Everything is float64.
"""

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import numpy as np

_numbers = count()
Pullback = Callable[[np.ndarray], np.ndarray]


class _Part:
    """A pullback to a part of a tensor: its cotangent is added there, in place."""

    __slots__ = ("key",)

    def __init__(self, key: Any):
        self.key = key

    def __call__(self, d: np.ndarray) -> np.ndarray:
        return d


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
        return Tensor(self.value + other.value, ((self, _like(self.shape)), (other, _like(other.shape))))

    __radd__ = __add__

    def __neg__(self) -> "Tensor":
        return Tensor(-self.value, ((self, lambda d: -d),))

    def __sub__(self, other: Any) -> "Tensor":
        return self + -tensor(other)

    def __rsub__(self, other: Any) -> "Tensor":
        return tensor(other) + -self

    def __mul__(self, other: Any) -> "Tensor":
        other = tensor(other)
        to_self, to_other = _like(self.shape), _like(other.shape)
        return Tensor(
            self.value * other.value,
            ((self, lambda d: to_self(d * other.value)), (other, lambda d: to_other(d * self.value))),
        )

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> "Tensor":
        other = tensor(other)
        quotient = self.value / other.value
        to_self, to_other = _like(self.shape), _like(other.shape)
        return Tensor(
            quotient,
            ((self, lambda d: to_self(d / other.value)), (other, lambda d: to_other(-d * quotient / other.value))),
        )

    def __getitem__(self, key: Any) -> "Tensor":
        """A part, chosen by slices, numbers or None, so that no element is taken twice."""
        return Tensor(self.value[key], ((self, _Part(key)),))


def tensor(x: Any) -> Tensor:
    return x if isinstance(x, Tensor) else Tensor(x)


def constant(x: Tensor) -> Tensor:
    """The value, which passes no cotangent on."""
    return Tensor(x.value)


def _like(shape: tuple[int, ...]) -> Pullback:
    """Sums a cotangent over the axes along which a value of this shape was broadcast."""

    def pullback(d: np.ndarray) -> np.ndarray:
        d = d.sum(axis=tuple(range(d.ndim - len(shape)))) if d.ndim > len(shape) else d
        axes = tuple(at for at, size in enumerate(shape) if size == 1 and d.shape[at] != 1)
        return d.sum(axis=axes, keepdims=True) if axes else d

    return pullback


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


def rounded(x: Tensor, to: Callable[[np.ndarray], np.ndarray]) -> Tensor:
    """The value rounded; its cotangent passes as it is."""
    return elementwise(x, to(x.value), np.ones(x.shape))


def maximum(x: Tensor, y: Tensor) -> Tensor:
    """The larger of the two; of equal ones, the first has the gradient."""
    first = x.value >= y.value
    to_x, to_y = _like(x.shape), _like(y.shape)
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


def stack(parts: list[Tensor], axis: int, empty: tuple[int, ...]) -> Tensor:
    """The parts along a new axis; with no parts, zeros of the shape ``empty``."""
    if not parts:
        return Tensor(np.zeros(empty))

    def of(at: int) -> Pullback:
        return lambda d: np.take(d, at, axis=axis)

    value = np.stack([part.value for part in parts], axis=axis)
    return Tensor(value, tuple((part, of(at)) for at, part in enumerate(parts)))


def concatenate(parts: list[Tensor], axis: int) -> Tensor:
    ends = np.cumsum([part.shape[axis] for part in parts])

    def of(at: int) -> Pullback:
        lower = int(ends[at]) - parts[at].shape[axis]
        return lambda d: np.take(d, np.arange(lower, int(ends[at])), axis=axis)

    value = np.concatenate([part.value for part in parts], axis=axis)
    return Tensor(value, tuple((part, of(at)) for at, part in enumerate(parts)))


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
    reached: dict[int, np.ndarray] = {}
    owned: set[int] = set()
    tensors: dict[int, Tensor] = {}

    def add(x: Tensor, d: np.ndarray, part: _Part | None = None) -> None:
        tensors[x.number] = x
        if part is None:
            reached[x.number] = reached[x.number] + d if x.number in reached else d
            return
        if x.number not in owned:
            reached[x.number] = np.array(reached.get(x.number, np.zeros(x.shape)))
            owned.add(x.number)
        reached[x.number][part.key] += d

    for name, output in outputs.items():
        if name in cotangents:
            add(output, np.asarray(cotangents[name], np.float64))
    needed = _ancestors(list(tensors.values()))
    for x in sorted(needed, key=lambda x: -x.number):
        if x.number in reached:
            for parent, pullback in x.parents:
                add(parent, pullback(reached[x.number]), pullback if isinstance(pullback, _Part) else None)
    return {name: reached.get(x.number, np.zeros(x.shape)) for name, x in inputs.items()}


def _ancestors(outputs: list[Tensor]) -> list[Tensor]:
    found = {x.number: x for x in outputs}
    waiting = list(outputs)
    while waiting:
        for parent, _ in waiting.pop().parents:
            if parent.number not in found:
                found[parent.number] = parent
                waiting.append(parent)
    return list(found.values())
