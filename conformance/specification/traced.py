"""The specification's forward loops on a tape: arrays that remember how they were computed.

`Traced` stands for an array, on which the unchanged loops of `reference` run. What the tape cannot follow raises, so
that no path of a gradient is lost unseen. Its values are arrays of NumPy, or `rounded.Copies` of one: then every
operation of the forward and of the backward pass is rounded at random.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from types import ModuleType
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from conformance.specification.changed import using
from conformance.specification.rounded import Copies, mean, norm

Pullback = Callable[[Any], Any]
_numbers = count()


@dataclass(frozen=True)
class Part:
    """The pullback of a part of an array."""

    shape: tuple[int, ...]
    key: Any


@dataclass(frozen=True)
class Rest:
    """The pullback of an array, a part of which is written to."""

    key: Any


class Node:
    """A value on the tape: when it was computed, and how its cotangent reaches the values that it depends on."""

    __slots__ = ("number", "parents")

    def __init__(self, *parents: tuple["Node", Pullback | Part | Rest]):
        self.number, self.parents = next(_numbers), parents


class Traced(NDArrayOperatorsMixin):
    """An array with its node; float64, unless a row computes with fewer digits.

    Args:
        value: an array, or copies of one.
        node: where it stands on the tape.
    """

    __slots__ = ("node", "value")

    def __init__(self, value: Any, node: Node):
        self.value, self.node = value, node

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def ndim(self) -> int:
        return self.value.ndim

    @property
    def size(self) -> int:
        return self.value.size

    @property
    def dtype(self) -> np.dtype:
        return self.value.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator["Traced"]:
        return (self[at] for at in range(len(self)))

    def __array_ufunc__(
        self, ufunc: Any, method: str, *xs: Any, out: Any = None, where: Any = True, **more: Any
    ) -> Any:
        if method == "reduce" and ufunc in REDUCTIONS and out in (None, (None,)):
            return REDUCTIONS[ufunc](xs[0], more.get("axis"), bool(more.get("keepdims")))
        if method == "__call__" and ufunc is np.matmul and out is None:
            return _einsum("...ij,...jk->...ik", *xs)
        if method != "__call__" or (ufunc not in SLOPES and ufunc not in PARTIALS):
            # What is not differentiated has no cotangent to pass on: comparisons, maxima over an axis, signs.
            if ufunc not in CONSTANT or out is not None:
                raise NotImplementedError(f"no derivative of np.{ufunc.__name__}")
            return getattr(ufunc, method)(*map(raw, xs), **more)
        if more:
            raise NotImplementedError(f"no derivative of np.{ufunc.__name__} with {', '.join(more)}")
        if where is not True:
            # What is not computed has no slope, not even an infinite one.
            xs = tuple(_where(where, x, 1.0) for x in xs)
        result = _one(ufunc, *xs) if ufunc in SLOPES else _two(ufunc, *xs)
        if out is None:
            return result
        (into,) = out
        result = result if where is True else _where(where, result, into)
        into.value[...] = result.value
        into.node = result.node
        return into

    def __array_function__(self, function: Any, types: Any, args: Any, more: Any) -> Any:
        if function in FUNCTIONS:
            return FUNCTIONS[function](*args, **more)
        if function not in WITHOUT_CHANGE:
            raise NotImplementedError(f"no derivative of np.{function.__name__}")
        return function(*map(raw, args), **more)

    def __getitem__(self, key: Any) -> "Traced":
        return Traced(self.value[key].copy(), Node((self.node, Part(self.shape, key))))

    def __setitem__(self, key: Any, value: Any) -> None:
        parents: list[tuple[Node, Pullback | Rest]] = []
        if isinstance(value, Traced):
            to_value = like(value.shape)
            parents.append((value.node, lambda d: to_value(d[key].copy())))
        self.value[key] = raw(value)
        self.node = Node(*parents, (self.node, Rest(key)))

    def _moved(self, move: Callable[[Any], Any], back: Pullback) -> "Traced":
        return made(move(self.value).copy(), (self, back))

    def copy(self) -> "Traced":
        return self._moved(lambda x: x, lambda d: d)

    def astype(self, dtype: Any) -> "Traced":
        return self._moved(lambda x: x.astype(dtype), lambda d: d)

    def reshape(self, *shape: Any) -> "Traced":
        own = self.shape
        return self._moved(lambda x: x.reshape(*shape), lambda d: d.reshape(own))

    def swapaxes(self, first: Any, second: Any) -> "Traced":
        return self._moved(lambda x: x.swapaxes(first, second), lambda d: d.swapaxes(first, second))

    def sum(self, axis: Any = None, keepdims: bool = False) -> "Traced":
        return _sum(self, axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> "Traced":
        return _maximum(self, axis, keepdims)

    @property
    def mT(self) -> "Traced":
        return self.swapaxes(-1, -2)


def raw(x: Any) -> Any:
    """The value, of each element of a list or tuple."""
    if isinstance(x, list | tuple):
        return type(x)(raw(each) for each in x)
    return x.value if isinstance(x, Traced) else x


def made(value: Any, *parents: tuple[Any, Pullback]) -> Traced:
    """A value with its parents; those that are not traced are constants."""
    if not isinstance(value, Copies):
        value = np.asarray(value)
        value = value if value.dtype.kind == "f" else value.astype(np.float64)
    return Traced(value, Node(*((x.node, back) for x, back in parents if isinstance(x, Traced))))


SLOPES: Mapping[Any, Callable[[Any, Any], Any]] = {
    np.negative: lambda x, y: -1.0,
    np.exp: lambda x, y: y,
    np.expm1: lambda x, y: y + 1,
    np.log1p: lambda x, y: 1 / (1 + x),
    np.sin: lambda x, y: np.cos(x),
    np.cos: lambda x, y: -np.sin(x),
    np.reciprocal: lambda x, y: -y * y,
    np.log: lambda x, y: 1 / x,
    np.abs: lambda x, y: np.sign(x),
    np.tanh: lambda x, y: 1 - y * y,
    np.sqrt: lambda x, y: 0.5 / y,
    np.square: lambda x, y: 2 * x,
}
PARTIALS: Mapping[Any, Callable[[Any, Any, Any], tuple[Any, Any]]] = {
    np.add: lambda x, y, z: (1.0, 1.0),
    np.subtract: lambda x, y, z: (1.0, -1.0),
    np.multiply: lambda x, y, z: (y, x),
    np.divide: lambda x, y, z: (1 / y, -z / y),
    np.maximum: lambda x, y, z: (x >= y, x < y),
    np.minimum: lambda x, y, z: (x <= y, x > y),
    np.power: lambda x, y, z: (y * np.power(x, y - 1), z * np.log(np.where(x > 0, x, 1.0))),
    np.logaddexp: lambda x, y, z: (1 / (1 + np.exp(y - x)), 1 / (1 + np.exp(x - y))),
}
CONSTANT = {
    *(np.greater, np.greater_equal, np.less, np.less_equal, np.equal, np.not_equal),
    *(np.isfinite, np.isinf, np.isnan, np.sign, np.logical_and, np.logical_or, np.logical_not),
}
WITHOUT_CHANGE = {np.isneginf, np.isposinf, np.shape, np.ndim, np.array_equal, np.zeros_like, np.any, np.all}


def sigmoid(x: Any) -> Any:
    """``σ(x)`` of any array, with the slope ``a·(1 − a)`` on the tape.

    Frameworks form the slope from the result alone, of σ(x) or of σ(−x), which may stand for 1 − σ(x): it is off by a
    roundoff of 1.
    """
    given = raw(x)
    a = np.exp(np.minimum(given, 0.0) - np.log1p(np.exp(-np.abs(given))))
    rest = 1 - a
    slope = rest * (1 - rest) if isinstance(given, Copies) else a * rest
    return made(a, (x, lambda d: d * slope)) if isinstance(x, Traced) else a


def _one(ufunc: Any, x: Any) -> Traced:
    y = ufunc(raw(x))
    slope = SLOPES[ufunc](raw(x), y)
    if ufunc is np.exp and np.isinf(y.data if isinstance(y, Copies) else y).any():
        # What is divided by an infinite number, such as the normaliser's floor of an empty memory, is 0 whatever it is.
        return made(y, (x, lambda d: np.where(d == 0, 0.0, d * slope)))
    return made(y, (x, lambda d: d * slope))


def _two(ufunc: Any, x: Any, y: Any) -> Traced:
    z = ufunc(raw(x), raw(y))
    of_x, of_y = PARTIALS[ufunc](raw(x), raw(y), z)
    to_x, to_y = like(np.shape(x)), like(np.shape(y))
    return made(z, (x, lambda d: to_x(d * of_x)), (y, lambda d: to_y(d * of_y)))


def like(shape: tuple[int, ...]) -> Pullback:
    """Sums a cotangent over the axes along which a value of this shape was broadcast."""

    def pullback(d: Any) -> Any:
        d = d.sum(axis=tuple(range(d.ndim - len(shape)))) if d.ndim > len(shape) else d
        axes = tuple(at for at, size in enumerate(shape) if size == 1 and d.shape[at] != 1)
        return d.sum(axis=axes, keepdims=True) if axes else d

    return pullback


def _maximum(x: Traced, axis: int, keepdims: bool) -> Traced:
    """The largest along an axis; the first of several that are equal has the cotangent."""
    at = np.expand_dims(np.argmax(x.value, axis=axis), axis=axis)
    here = np.reshape(np.arange(x.shape[axis]), [-1 if n == axis % x.ndim else 1 for n in range(x.ndim)]) == at
    chosen = np.maximum.reduce(x.value, axis=axis, keepdims=keepdims)
    return made(chosen, (x, lambda d: here * (d if keepdims else np.expand_dims(d, axis=axis))))


def _sum(x: Traced, axis: Any, keepdims: bool) -> Traced:
    shape = x.shape
    axes = tuple(range(x.ndim)) if axis is None else axis

    def pullback(d: Any) -> Any:
        return np.broadcast_to(d if keepdims else np.expand_dims(d, axis=axes), shape)

    return made(x.value.sum(axis=axes, keepdims=keepdims), (x, pullback))


REDUCTIONS = {np.add: _sum, np.maximum: _maximum}


def _where(condition: Any, x: Any, y: Any) -> Traced:
    condition = raw(condition)
    to_x, to_y = like(np.shape(x)), like(np.shape(y))
    chosen = np.where(condition, raw(x), raw(y))
    return made(
        chosen, (x, lambda d: to_x(np.where(condition, d, 0.0))), (y, lambda d: to_y(np.where(condition, 0.0, d)))
    )


def _einsum(subscripts: str, *xs: Any) -> Traced:
    terms, out = subscripts.replace(" ", "").split("->")
    names, values = terms.split(","), [raw(x) for x in xs]

    def pullback(at: int) -> Pullback:
        others = [(name, x) for number, (name, x) in enumerate(zip(names, values, strict=True)) if number != at]
        # An operand without the axes that "..." stands for is shared by them.
        shared = "..." in out and "..." not in names[at]
        formula = f"{','.join([out, *(name for name, _ in others)])}->{'...' * shared}{names[at]}"
        to_x = like(values[at].shape)
        return lambda d: to_x(np.einsum(formula, d, *(x for _, x in others)))

    return made(np.einsum(subscripts, *values), *((x, pullback(at)) for at, x in enumerate(xs)))


def _concatenate(xs: Any, axis: int = 0) -> Traced:
    ends = np.cumsum([x.shape[axis] for x in xs])
    lead = (slice(None),) * (axis % xs[0].ndim)

    def pullback(end: int, size: int) -> Pullback:
        return lambda d: d[*lead, end - size : end]

    parts = ((x, pullback(int(end), x.shape[axis])) for x, end in zip(xs, ends, strict=True))
    return made(np.concatenate([raw(x) for x in xs], axis=axis), *parts)


def _repeat(x: Any, repeats: int, axis: int) -> Traced:
    at = axis % x.ndim
    apart = (*x.shape[: at + 1], repeats, *x.shape[at + 1 :])
    return made(np.repeat(raw(x), repeats, axis=axis), (x, lambda d: d.reshape(apart).sum(axis=at + 1)))


def _cumsum(x: Any, axis: int) -> Traced:
    def pullback(d: Any) -> Any:
        return np.flip(np.cumsum(np.flip(d, axis=axis), axis=axis), axis=axis)

    return made(np.cumsum(raw(x), axis=axis), (x, pullback))


def _broadcast_to(x: Any, shape: tuple[int, ...]) -> Traced:
    return made(np.broadcast_to(raw(x), shape).copy(), (x, like(np.shape(x))))


def _broadcast_arrays(*xs: Any) -> list[Traced]:
    shape = np.broadcast_shapes(*map(np.shape, xs))
    return [_broadcast_to(x, shape) for x in xs]


def _moveaxis(x: Any, source: Any, destination: Any) -> Traced:
    return made(np.moveaxis(raw(x), source, destination).copy(), (x, lambda d: np.moveaxis(d, destination, source)))


def _expand_dims(x: Any, axis: Any) -> Traced:
    shape = np.shape(x)
    return made(np.expand_dims(raw(x), axis=axis), (x, lambda d: d.reshape(shape)))


def _clip(x: Any, least: Any, largest: Any) -> Traced:
    return np.minimum(np.maximum(x, least), largest)


FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    np.einsum: _einsum,
    np.where: _where,
    np.concatenate: _concatenate,
    np.repeat: _repeat,
    np.cumsum: _cumsum,
    np.broadcast_to: _broadcast_to,
    np.broadcast_arrays: _broadcast_arrays,
    np.moveaxis: _moveaxis,
    np.swapaxes: lambda x, first, second: x.swapaxes(first, second),
    np.expand_dims: _expand_dims,
    np.stack: lambda xs, axis=0: _concatenate([_expand_dims(x, axis) for x in xs], axis),
    np.clip: _clip,
    np.sum: Traced.sum,
    np.max: Traced.max,
    np.mean: mean,
    np.linalg.norm: norm,
}


class _NumPy(ModuleType):
    """NumPy, or one with copies, whose new arrays of float64 are traced: what is written into them is followed."""

    def __init__(self, numpy: Any):
        super().__init__("numpy")
        self._numpy, self.ndarray = numpy, (np.ndarray, Copies, Traced)

    @staticmethod
    def clip_gradient(x: Traced, bound: float) -> Traced:
        """``x``, whose cotangent is clipped to ``±|bound|``; rows of the specification may call it."""
        return made(x.value.copy(), (x, lambda d: np.clip(d, -abs(bound), abs(bound))))

    @staticmethod
    def stop_gradient(x: Traced) -> Traced:
        """``x``, which passes no cotangent on; rows of the specification may call it."""
        return made(x.value.copy())

    @staticmethod
    def held(m: Traced, least: float = -np.inf) -> Traced:
        """Ones, whose slope is −1 where ``m > least``: what they multiply does not change with m in units of exp(m)."""
        return made(np.ones(m.shape), (m, lambda d: np.where(raw(m) > least, -d, 0.0)))

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._numpy, name)
        if name not in ("zeros", "empty", "full", "ones", "zeros_like", "ones_like"):
            return self._array if name == "array" else function

        def new(*args: Any, **more: Any) -> Any:
            x = function(*map(raw, args), **more)
            return made(x) if x.dtype == np.float64 else x

        return new

    def _array(self, x: Any, dtype: Any = None) -> Any:
        return x.astype(dtype or np.float64) if isinstance(x, Traced) else self._numpy.array(x, dtype)


@contextmanager
def tracing(modules: Mapping[str, ModuleType], numpy: Any = np) -> Iterator[None]:
    """Let the modules of a copy of the specification run on traced arrays.

    Args:
        numpy: what computes the values, NumPy or `rounded.Rounding.numpy`.
    """
    with using(modules, _NumPy(numpy)):
        yield


def gradients(outputs: Mapping[str, Any], cotangents: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The cotangents of traced inputs, by name, given those of outputs; where values are copies, theirs are, too."""
    reached: dict[Node, Any] = {}
    waiting: list[tuple[int, Node]] = []
    own: set[Node] = set()
    """Nodes whose cotangent nothing else holds, so that it may be written to."""

    def add(node: Node, d: Any, mine: bool = False) -> None:
        if node in reached:
            reached[node], mine = reached[node] + d, True
        else:
            reached[node] = d
            heapq.heappush(waiting, (-node.number, node))
        if mine:
            own.add(node)

    def writable(node: Node) -> Any:
        if node not in own:
            reached[node] = reached[node].copy()
            own.add(node)
        return reached[node]

    for name, d in cotangents.items():
        x = outputs[name]
        if isinstance(x, Traced):
            add(x.node, d)
    wanted = {x.node for x in inputs.values() if isinstance(x, Traced)}
    with np.errstate(all="ignore"):
        while waiting:
            _, node = heapq.heappop(waiting)
            for parent, back in node.parents:
                if isinstance(back, Part):
                    if parent not in reached:
                        add(parent, _zeros(back.shape, reached[node]), mine=True)
                    _add_at(writable(parent), back.key, reached[node])
                elif isinstance(back, Rest):
                    d = writable(node)
                    d[back.key] = 0.0
                    add(parent, d, mine=True)
                else:
                    add(parent, back(reached[node]))
            if node not in wanted:
                del reached[node]
    found = {name: reached.get(x.node) for name, x in inputs.items() if isinstance(x, Traced)}
    return {name: np.zeros(inputs[name].shape) if d is None else d for name, d in found.items()}


def _zeros(shape: tuple[int, ...], like: Any) -> Any:
    return like.rounding.numpy.zeros(shape) if isinstance(like, Copies) else np.zeros(shape)


def _add_at(x: Any, key: Any, d: Any) -> None:
    """Add to a part of an array; where the key names an element twice, both are added."""
    if isinstance(x, Copies):
        x.add_at(key, d)
    else:
        np.add.at(x, key, d)
