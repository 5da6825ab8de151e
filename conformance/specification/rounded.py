"""The specification's loops with every operation rounded at random: what rounding does to each element of a result.

`Copies` stands for one array and holds many, which differ in the errors of the operations that led to them. The
unchanged code of `reference` runs on it. Each operation is followed by an error of about a roundoff of its result with
a random sign: at least half of one, so that an operation that matters alone shows in every copy, and of a random size,
so that two that matter alike do not cancel. Tanh is off by more (`TANH`).

A sum of n terms is off by √n/3 roundoffs of the sum of their magnitudes: each addition rounds a partial sum, by 1/√3 of
a roundoff in the root mean square, and partial sums grow evenly (`Rounding.sum`). What is added to such a sum may be
where it begins. Then it is rounded as often, and where the terms are small it is not random in which direction: it is
off by √n roundoffs.

A result below the smallest normal number is flushed to 0 by some frameworks: it is 0 in half of the copies.

Operands of products may be rounded to 16 bits, unless they are such numbers. An operand has the same error at every
step as long as it does not change, and these errors add up: in half of the copies each of its elements is off by the
same at every step.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

TANH = 4 / 3
"""The error of tanh in roundoffs; a tolerance is at least six times what this does.

On a CPU, XLA's is off by up to 4.8 roundoffs in float32 and 7.7 in float64, PyTorch's by 1.3 and NumPy's by 1.8 (four
million numbers in each of four intervals). Other functions are off by less.
"""
ROUNDOFFS: Mapping[Any, float] = {
    **dict.fromkeys((np.add, np.subtract, np.multiply, np.divide, np.power, np.sqrt, np.square), 1.0),
    **dict.fromkeys((np.exp, np.expm1, np.log, np.log1p, np.logaddexp, np.sin, np.cos, np.reciprocal), 1.0),
    np.tanh: TANH,
}
SUMS = {np.add, np.subtract}
EXACT = {
    *(np.negative, np.abs, np.sign, np.maximum, np.minimum),
    *(np.greater, np.greater_equal, np.less, np.less_equal, np.equal, np.not_equal),
    *(np.isfinite, np.isinf, np.isnan, np.logical_and, np.logical_or, np.logical_not, np.invert, np.bitwise_and),
}
STEPS = "st"
"""The letters of steps in the subscripts of the specification."""
_OFFSETS = 1 << 16


@lru_cache(maxsize=8)
def _errors(size: int) -> np.ndarray:
    """Numbers whose sizes are between half and one and a half of 1, in units of the root of their mean square."""
    rng = np.random.default_rng(0)
    return (rng.integers(0, 2, size) * 2.0 - 1.0) * rng.uniform(0.5, 1.5, size) / math.sqrt(13 / 12)


class Rounding:
    """The errors of so many copies.

    Args:
        copies: their number, even.
        unit: a roundoff.
        operand: the roundoff of computed operands of products; 0 if they are not rounded.
        smallest: half of the copies have 0 in place of a result below it.
        seed: of the errors.
    """

    def __init__(self, copies: int, unit: float, operand: float = 0.0, smallest: float = 0.0, seed: int = 0):
        self.copies, self.unit, self._operand, self._smallest = copies, unit, operand, smallest
        self._rng = np.random.default_rng(seed)
        self._places: list[int] = []
        self._numbers: dict[float, np.ndarray] = {}
        self._kept: dict[Any, np.ndarray] = {}

    def _error(self, shape: tuple[int, ...]) -> np.ndarray:
        """Random errors in roundoffs, read from a long array at a random place."""
        return self._read(1.0, lambda errors: errors, shape)

    def _read(self, key: float, of_errors: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        size = self.copies * math.prod(shape)
        if not self._places:
            self._places = self._rng.integers(0, _OFFSETS, 4096).tolist()
        place = self._places.pop()
        numbers = self._numbers.get(key)
        if numbers is None or len(numbers) < _OFFSETS + size:
            numbers = self._numbers[key] = of_errors(_errors(_OFFSETS + (1 << size.bit_length())))
        return numbers[place : place + size].reshape(self.copies, *shape)

    def result(self, x: np.ndarray, roundoffs: float = 1.0) -> np.ndarray:
        """``x``, the data of an array, off by so many roundoffs of itself."""
        unit = roundoffs * self.unit
        return self._flushed(x * self._read(unit, lambda errors: 1 + unit * errors, x.shape[1:]))

    def sum(self, x: np.ndarray, size: np.ndarray, terms: int) -> np.ndarray:
        """``x``, the sum of so many terms in some order, whose magnitudes have the sum ``size``."""
        return self.by(x, max(1.0, math.sqrt(terms) / 3) * size)

    def by(self, x: np.ndarray, size: np.ndarray) -> np.ndarray:
        """``x``, off by a roundoff of ``size``."""
        return self._flushed(x + self.unit * np.where(np.isfinite(size), size, 0.0) * self._error(x.shape[1:]))

    def _flushed(self, x: np.ndarray) -> np.ndarray:
        if self._smallest:
            half = x[::2]
            half[np.abs(half) < self._smallest] = 0.0
        return x

    def summand(self, x: np.ndarray) -> "Copies":
        """Copies of terms of a sum that is not formed here, as a log decay of several steps is.

        Each is off by a roundoff of itself; in half of the copies all by the same number of them, so that their sum
        is off by a roundoff of the whole.
        """
        errors, half = self._error(x.shape).copy(), self.copies // 2
        errors[:half] = self._error((1,) * x.ndim)[:half]
        return Copies(x * (1 + self.unit * errors), self)

    def operand(self, x: np.ndarray, letters: str, summed: str, name: Any) -> np.ndarray:
        """``x`` as the operand of a product that has this name at every step.

        Args:
            letters: its axes behind that of the copies.
            summed: the axes over which products are summed.
        """
        if not self._operand:
            return x
        shape, half = x.shape[1:], self.copies // 2
        errors = self._error(shape).copy()
        key = (name, shape)
        if key not in self._kept:
            once = [1 if letter in STEPS and letter in summed else n for letter, n in zip(letters, shape, strict=True)]
            self._kept[key] = self._error(tuple(once))[:half]
        errors[:half] = self._kept[key]
        significand = np.frexp(x)[0] / self._operand
        return x * (1 + self._operand * errors * (significand != np.rint(significand)))

    def copies_of(self, x: Any) -> "Copies":
        """Copies of an exact array, all alike; what has copies stays as it is."""
        return x if isinstance(x, Copies) else Copies(np.asarray(x)[None], self)

    @property
    def numpy(self) -> Any:
        """NumPy whose arrays of float64 have copies; the modules of a copy of the specification compute with it."""
        return _NumPy(self)


class Copies(NDArrayOperatorsMixin):
    """An array whose elements have a value in each copy.

    Args:
        data: ``(copies, *shape)``, or ``(1, *shape)`` where all copies are alike.
        terms: of how many terms each element is a sum; what is added to it may be added to each partial sum.
    """

    __slots__ = ("data", "rounding", "terms")

    def __init__(self, data: np.ndarray, rounding: Rounding, terms: int = 1):
        self.data, self.rounding, self.terms = data, rounding, terms

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape[1:]

    @property
    def ndim(self) -> int:
        return self.data.ndim - 1

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype:
        return self.data.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator["Copies"]:
        return (self[at] for at in range(len(self)))

    def _like(self, data: np.ndarray) -> "Copies":
        return Copies(data, self.rounding)

    def __array_ufunc__(
        self, ufunc: Any, method: str, *xs: Any, out: Any = None, where: Any = True, **more: Any
    ) -> Any:
        for x in xs:
            if not isinstance(x, _OPERANDS):
                return NotImplemented
        if method == "reduce":
            return self._reduced(ufunc, xs[0], **more)
        if method != "__call__" or more:
            raise NotImplementedError(f"np.{ufunc.__name__}.{method} is not rounded")
        if ufunc is np.matmul:
            return _einsum("...ij,...jk->...ik", *xs)
        if ufunc not in ROUNDOFFS and ufunc not in EXACT:
            raise NotImplementedError(f"np.{ufunc.__name__} is not rounded")
        data, terms = _aligned(*xs), 1
        result = ufunc(*data)
        if ufunc in SUMS:
            first, second = xs
            if type(first) is Copies:
                terms = first.terms
            if type(second) is Copies and second.terms > terms:
                terms = second.terms
        if terms > 1:
            first, second = (np.abs(x[:1]) if type(of) is Copies else np.abs(x) for x, of in zip(data, xs, strict=True))
            result = self.rounding.by(result, math.sqrt(terms) * (first + second))
        elif ufunc in ROUNDOFFS:
            result = self.rounding.result(result, ROUNDOFFS[ufunc])
        if out is None:
            return Copies(result, self.rounding, terms)
        (into,) = out
        into[...] = self._like(result) if where is True else _where(where, self._like(result), into)
        return into

    def _reduced(self, ufunc: Any, x: "Copies", axis: Any = None, keepdims: bool = False, **more: Any) -> "Copies":
        axes = tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else axis
        along: dict[str, Any] = {"axis": tuple(at % x.ndim + 1 for at in axes), "keepdims": keepdims}
        if ufunc is not np.add:
            return self._like(ufunc.reduce(x.data, **along))
        result = np.add.reduce(x.data, **along)
        terms = x.size // max(1, math.prod(result.shape[1:]))
        return self._like(self.rounding.sum(result, np.add.reduce(np.abs(x.data[:1]), **along), terms))

    def __array_function__(self, function: Any, types: Any, args: Any, more: Any) -> Any:
        for kind in types:
            if not issubclass(kind, _OPERANDS):
                return NotImplemented
        if function not in FUNCTIONS:
            raise NotImplementedError(f"np.{function.__name__} is not rounded")
        return FUNCTIONS[function](*args, **more)

    def _key(self, key: Any) -> tuple:
        keys = key if isinstance(key, tuple) else (key,)
        return slice(None), *(each.data[0] if isinstance(each, Copies) else each for each in keys)

    def __getitem__(self, key: Any) -> "Copies":
        return self._like(self.data[self._key(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self._apart()
        at = self._key(key)
        if isinstance(value, Copies):
            value = _padded(value.data, self.data[at].ndim)
        self.data[at] = value

    def _apart(self) -> None:
        if len(self.data) == 1:
            self.data = np.broadcast_to(self.data, (self.rounding.copies, *self.shape)).copy()

    def add_at(self, key: Any, value: "Copies") -> None:
        """Add to a part; where the key names an element twice, both are added."""
        self._apart()
        at = self._key(key)
        if any(isinstance(each, np.ndarray) for each in at):
            np.add.at(self.data, at, value.data)
        else:
            self.data[at] = self.rounding.result(self.data[at] + value.data)

    def copy(self) -> "Copies":
        return self._like(self.data.copy())

    def astype(self, dtype: Any) -> "Copies":
        return self._like(self.data.astype(dtype))

    def reshape(self, *shape: Any) -> "Copies":
        shape = shape[0] if isinstance(shape[0], tuple) else shape
        return self._like(self.data.reshape(len(self.data), *shape))

    def sum(self, axis: Any = None, keepdims: bool = False) -> "Copies":
        return self._reduced(np.add, self, axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> "Copies":
        return self._reduced(np.maximum, self, axis, keepdims)

    def swapaxes(self, first: int, second: int) -> "Copies":
        return self._like(self.data.swapaxes(first % self.ndim + 1, second % self.ndim + 1))

    @property
    def mT(self) -> "Copies":
        return self.swapaxes(-1, -2)


_OPERANDS = (Copies, np.ndarray, np.generic, bool, int, float)


def _padded(data: np.ndarray, ndim: int) -> np.ndarray:
    """The data of an array with so many axes in all, those that it lacks behind that of the copies."""
    return data if data.ndim == ndim else data.reshape(len(data), *[1] * (ndim - data.ndim), *data.shape[1:])


def _aligned(*xs: Any) -> list[Any]:
    """The data of arrays of different numbers of axes, such that they broadcast."""
    ndims = [x.data.ndim if type(x) is Copies else getattr(x, "ndim", 0) + 1 for x in xs]
    ndim = max(ndims)
    return [
        x if type(x) is not Copies else x.data if own == ndim else _padded(x.data, ndim)
        for x, own in zip(xs, ndims, strict=True)
    ]


def _rounding(xs: Any) -> Rounding:
    return next(x.rounding for x in xs if isinstance(x, Copies))


def _data(x: Any) -> np.ndarray:
    return x.data if isinstance(x, Copies) else np.asarray(x)[None]


def _where(*xs: Any) -> Copies:
    return Copies(np.where(*_aligned(*xs)), _rounding(xs))


def _clip(x: Any, least: Any, largest: Any) -> Copies:
    """The bounds are rounded, too: a cotangent may cancel them."""
    r = _rounding((x, least, largest))
    return Copies(r.result(np.clip(*_aligned(x, least, largest))), r)


def _joined(join: Callable[..., np.ndarray]) -> Callable[..., Copies]:
    def function(xs: Any, axis: int = 0) -> Copies:
        copies = max(len(_data(x)) for x in xs)
        parts = [np.broadcast_to(data, (copies, *data.shape[1:])) for data in map(_data, xs)]
        return Copies(join(parts, axis=axis if axis < 0 else axis + 1), _rounding(xs))

    return function


def _along(function: Callable[..., np.ndarray]) -> Callable[..., Copies]:
    """A function of one array and its axis."""

    def of_copies(x: Copies, *args: Any, axis: int, **more: Any) -> Copies:
        return Copies(function(x.data, *args, axis=axis if axis < 0 else axis + 1, **more), x.rounding)

    return of_copies


def _expand_dims(x: Copies, axis: int | tuple[int, ...]) -> Copies:
    axes = (axis,) if isinstance(axis, int) else axis
    ndim = x.ndim + len(axes)
    return Copies(np.expand_dims(x.data, tuple(at % ndim + 1 for at in axes)), x.rounding)


def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """A sum over the number of its terms, of what has no mean of its own."""
    total = x.sum(axis, keepdims)
    return total / (math.prod(x.shape) // max(1, math.prod(total.shape)))


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """The Euclidean one."""
    if ord is not None:
        raise NotImplementedError("np.linalg.norm with an order is not rounded")
    return np.sqrt((x * x).sum(axis, keepdims))


def _stack(xs: Any, axis: int = 0) -> Any:
    return np.concatenate([np.expand_dims(x, axis) for x in xs], axis)


def _cumsum(x: Copies, axis: int) -> Copies:
    """Every addition rounds its partial sum."""
    at = axis % x.ndim + 1
    partial = np.cumsum(x.data, at)
    errors = x.rounding.unit * x.rounding._error(x.shape) * np.where(np.isfinite(partial), partial, 0.0)
    return Copies(partial + np.cumsum(errors, at), x.rounding)


def _moveaxis(x: Copies, source: int, destination: int) -> Copies:
    return Copies(np.moveaxis(x.data, source % x.ndim + 1, destination % x.ndim + 1), x.rounding)


def _broadcast_to(x: Copies, shape: tuple[int, ...]) -> Copies:
    return Copies(np.broadcast_to(_padded(x.data, len(shape) + 1), (len(x.data), *shape)), x.rounding)


def _broadcast_arrays(*xs: Any) -> list[Any]:
    shape = np.broadcast_shapes(*map(np.shape, xs))
    return [np.broadcast_to(x, shape) for x in xs]


def _einsum(subscripts: str, *xs: Any) -> Copies:
    r = _rounding(xs)
    data = [_data(x) for x in xs]
    names, out = _letters(subscripts, tuple(x.ndim - 1 for x in data))
    if len(xs) == 1:
        ((name,), (x,)) = names, data
        return Copies(np.einsum(f"Z{name}->Z{out}", x), r)
    summed = "".join(letter for letter in names[0] if letter in names[1] and letter not in out)
    data = [r.operand(x, name, summed, (subscripts, at)) for at, (x, name) in enumerate(zip(data, names, strict=True))]
    result, terms = _products(names, out, data)
    if terms == 1:
        return Copies(r.result(result), r)
    return Copies(r.sum(result, _products(names, out, [np.abs(x[:1]) for x in data])[0], terms), r, terms)


@lru_cache(maxsize=256)
def _letters(subscripts: str, ndims: tuple[int, ...]) -> tuple[tuple[str, ...], str]:
    """The letters of each operand and of the result, with some for what ``...`` stands for."""
    terms, out = subscripts.replace(" ", "").split("->")
    names = terms.split(",")
    lengths = [ndim - len(name.replace("...", "")) for ndim, name in zip(ndims, names, strict=True)]
    shared = "ABCDEFGH"[: max(lengths)]
    written = (name.replace("...", shared[len(shared) - n :]) for name, n in zip(names, lengths, strict=True))
    return tuple(written), out.replace("...", shared)


def _products(names: tuple[str, ...], out: str, data: list[np.ndarray]) -> tuple[np.ndarray, int]:
    """The products of two operands in every copy, as matrix products, and the number of terms of each sum."""
    (a, b), (x, y) = names, data
    shared = len(x) == len(y) == 1
    left, right, order, groups = _plan(a, b, out, len(x) > 1, len(y) > 1)
    x, y = (part if len(part) > 1 else part[0] for part in (x, y))
    sizes = dict(zip(f"Z{a}" if len(data[0]) > 1 else a, x.shape, strict=True))
    sizes |= dict(zip(f"Z{b}" if len(data[1]) > 1 else b, y.shape, strict=True))
    batch, inner, of_x, of_y = ([sizes[letter] for letter in group] for group in groups)
    terms, m, n = math.prod(inner), math.prod(of_x), math.prod(of_y)
    product = x.transpose(left).reshape(*batch, m, terms) @ y.transpose(right).reshape(*batch, terms, n)
    product = product.reshape(*batch, *of_x, *of_y).transpose(order)
    return (product[None] if shared else product), terms


@lru_cache(maxsize=256)
def _plan(
    a: str, b: str, out: str, copies_of_a: bool, copies_of_b: bool
) -> tuple[list[int], list[int], list[int], tuple]:
    """How two operands become matrices: their axes in order, those of the product, and the letters of each group."""
    a, b = "Z" * copies_of_a + a, "Z" * copies_of_b + b
    out = "Z" * (copies_of_a or copies_of_b) + out
    batch = [letter for letter in a if letter in b and letter in out]
    inner = [letter for letter in a if letter in b and letter not in out]
    left = [letter for letter in a if letter not in b]
    right = [letter for letter in b if letter not in a]
    if not set(left) | set(right) <= set(out):
        raise NotImplementedError(f"a product {a},{b}->{out} that is summed over an axis of one operand")
    return (
        [a.index(letter) for letter in (*batch, *left, *inner)],
        [b.index(letter) for letter in (*batch, *inner, *right)],
        [[*batch, *left, *right].index(letter) for letter in out],
        (batch, inner, left, right),
    )


FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    np.einsum: _einsum,
    np.where: _where,
    np.clip: _clip,
    np.concatenate: _joined(np.concatenate),
    np.repeat: _along(np.repeat),
    np.flip: _along(np.flip),
    np.argmax: _along(np.argmax),
    np.expand_dims: _expand_dims,
    np.cumsum: _cumsum,
    np.moveaxis: _moveaxis,
    np.swapaxes: lambda x, first, second: x.swapaxes(first, second),
    np.stack: _stack,
    np.broadcast_to: _broadcast_to,
    np.broadcast_arrays: _broadcast_arrays,
    np.isneginf: lambda x: Copies(np.isneginf(x.data), x.rounding),
    np.tril: lambda x, k=0: Copies(np.tril(x.data, k), x.rounding),
    np.zeros_like: lambda x: x.rounding.numpy.zeros(x.shape),
    np.ones_like: lambda x: x.rounding.numpy.ones(x.shape),
    np.sum: Copies.sum,
    np.max: Copies.max,
    np.mean: mean,
    np.linalg.norm: norm,
    np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim,
}


class _NumPy(ModuleType):
    """NumPy whose arrays of float64 have copies."""

    def __init__(self, rounding: Rounding):
        super().__init__("numpy")
        self._rounding, self.ndarray = rounding, (np.ndarray, Copies)

    @staticmethod
    def held(m: Copies, least: float = -np.inf) -> np.ndarray:
        """Ones, which have a slope only on a tape (`specification.traced`)."""
        return np.ones(m.shape)

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name)
        if name == "array":
            return self._array
        if name not in ("zeros", "empty", "full", "ones"):
            return function

        def new(*args: Any, **more: Any) -> Any:
            x = function(*args, **more)
            if x.dtype != np.float64:
                return x
            return Copies(np.broadcast_to(x, (self._rounding.copies, *x.shape)).copy(), self._rounding)

        return new

    def _array(self, x: Any, dtype: Any = None) -> Any:
        if isinstance(x, Copies):
            return x.astype(dtype or x.dtype)
        return self._rounding.copies_of(np.array(x, dtype))
