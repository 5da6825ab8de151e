"""The specification's forward loops on a tape: arrays that remember how they were computed.

`Traced` is a NumPy array, on which the unchanged loops of `reference` run. What the tape cannot follow raises, so that
no path of a gradient is lost unseen. Everything is float64.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np

Pullback = Callable[[np.ndarray], np.ndarray]
_numbers = count()


class Node:
    """A value on the tape: when it was computed, and how its cotangent reaches the values that it depends on."""

    __slots__ = ("number", "parents")

    def __init__(self, parents: tuple[tuple["Node", Pullback], ...] = ()):
        self.number, self.parents = next(_numbers), parents


class Traced(np.ndarray):
    """A float64 array with its node; without one, it was made by something that the tape does not follow."""

    node: Node | None = None

    def __array_ufunc__(
        self, ufunc: Any, method: str, *xs: Any, out: Any = None, where: Any = True, **more: Any
    ) -> Any:
        if method == "reduce" and ufunc in REDUCTIONS and out in (None, (None,)):
            return REDUCTIONS[ufunc](xs[0], more.get("axis"), bool(more.get("keepdims")))
        if method == "__call__" and ufunc is np.matmul and out is None:
            return _einsum("...ij,...jk->...ik", *xs)
        if method != "__call__" or (ufunc not in SLOPES and ufunc not in PARTIALS):
            # What is not differentiated has no cotangent to pass on: comparisons, maxima over an axis, signs.
            if ufunc not in CONSTANT:
                raise NotImplementedError(f"no derivative of np.{ufunc.__name__}")
            into = None if out is None else tuple(map(raw, out))
            return getattr(ufunc, method)(*map(raw, xs), out=into, **more)
        if more:
            raise NotImplementedError(f"no derivative of np.{ufunc.__name__} with {', '.join(more)}")
        result = _one(ufunc, *xs) if ufunc in SLOPES else _two(ufunc, *xs)
        if out is None:
            return result
        (into,) = out
        result = result if where is True else _where(where, result, into)
        raw(into)[...] = raw(result)
        if isinstance(into, Traced):
            into.node = result.node
        return into

    def __array_function__(self, function: Any, types: Any, args: Any, more: Any) -> Any:
        if function in FUNCTIONS:
            return FUNCTIONS[function](*args, **more)
        if function not in WITHOUT_CHANGE:
            raise NotImplementedError(f"no derivative of np.{function.__name__}")
        return function(*map(raw, args), **more)

    def __getitem__(self, key: Any) -> Any:
        shape = self.shape

        def pullback(d: np.ndarray) -> np.ndarray:
            whole = np.zeros(shape)
            np.add.at(whole, key, d)
            return whole

        return made(np.array(raw(self)[key]), (self, pullback))

    def __setitem__(self, key: Any, value: Any) -> None:
        kept = np.ones(self.shape)
        kept[key] = 0.0
        to_value = like(np.shape(value))
        parents = [(node_of(self), lambda d: d * kept)]
        if isinstance(value, Traced):
            parents.append((node_of(value), lambda d: to_value(d[key])))
        raw(self)[key] = raw(value)
        self.node = Node(tuple(parents))

    def _moved(self, move: Callable[[np.ndarray], np.ndarray], back: Pullback) -> "Traced":
        return made(move(raw(self)).copy(), (self, back))

    def copy(self) -> "Traced":
        return self._moved(np.array, lambda d: d)

    def astype(self, dtype: Any) -> "Traced":
        return self._moved(lambda x: x.astype(dtype), lambda d: d)

    def reshape(self, *shape: Any) -> "Traced":
        own = self.shape
        return self._moved(lambda x: x.reshape(*shape), lambda d: d.reshape(own))

    def swapaxes(self, first: Any, second: Any) -> "Traced":
        return self._moved(lambda x: x.swapaxes(first, second), lambda d: d.swapaxes(first, second))

    @property
    def mT(self) -> "Traced":
        return self.swapaxes(-1, -2)


def raw(x: Any) -> Any:
    """The plain array."""
    if isinstance(x, list | tuple):
        return type(x)(raw(each) for each in x)
    return x.view(np.ndarray) if isinstance(x, np.ndarray) else x


def node_of(x: Traced) -> Node:
    if x.node is None:
        raise NotImplementedError("an array was made in a way that the tape does not follow")
    return x.node


def made(value: Any, *parents: tuple[Any, Pullback]) -> Traced:
    """A value with its parents; those that are not traced are constants."""
    array = np.asarray(value, np.float64).view(Traced)
    array.node = Node(tuple((node_of(x), back) for x, back in parents if isinstance(x, Traced)))
    return array


SLOPES: Mapping[Any, Callable[[np.ndarray, np.ndarray], Any]] = {
    np.negative: lambda x, y: -1.0,
    np.exp: lambda x, y: y,
    np.log1p: lambda x, y: 1 / (1 + x),
    np.log: lambda x, y: 1 / x,
    np.abs: lambda x, y: np.sign(x),
    np.tanh: lambda x, y: 1 - y * y,
    np.sqrt: lambda x, y: 0.5 / y,
    np.square: lambda x, y: 2 * x,
}
PARTIALS: Mapping[Any, Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[Any, Any]]] = {
    np.add: lambda x, y, z: (1.0, 1.0),
    np.subtract: lambda x, y, z: (1.0, -1.0),
    np.multiply: lambda x, y, z: (y, x),
    np.divide: lambda x, y, z: (1 / y, -z / y),
    np.maximum: lambda x, y, z: (x >= y, x < y),
    np.minimum: lambda x, y, z: (x <= y, x > y),
}
CONSTANT = {
    *(np.greater, np.greater_equal, np.less, np.less_equal, np.equal, np.not_equal),
    *(np.isfinite, np.isinf, np.isnan, np.sign, np.logical_and, np.logical_or, np.logical_not),
}
WITHOUT_CHANGE = {np.isneginf, np.isposinf, np.shape, np.ndim, np.array_equal, np.zeros_like, np.any, np.all}


def _one(ufunc: Any, x: Any) -> Traced:
    y = ufunc(raw(x))
    slope = SLOPES[ufunc](raw(x), y)
    return made(y, (x, lambda d: d * slope))


def _two(ufunc: Any, x: Any, y: Any) -> Traced:
    z = ufunc(raw(x), raw(y))
    of_x, of_y = PARTIALS[ufunc](np.asarray(raw(x)), np.asarray(raw(y)), z)
    to_x, to_y = like(np.shape(x)), like(np.shape(y))
    return made(z, (x, lambda d: to_x(d * of_x)), (y, lambda d: to_y(d * of_y)))


def like(shape: tuple[int, ...]) -> Pullback:
    """Sums a cotangent over the axes along which a value of this shape was broadcast."""

    def pullback(d: np.ndarray) -> np.ndarray:
        d = d.sum(axis=tuple(range(d.ndim - len(shape)))) if d.ndim > len(shape) else d
        axes = tuple(at for at, size in enumerate(shape) if size == 1 and d.shape[at] != 1)
        return d.sum(axis=axes, keepdims=True) if axes else d

    return pullback


def _maximum(x: Traced, axis: int, keepdims: bool) -> Traced:
    """The largest along an axis; the first of several that are equal has the cotangent."""
    at = np.expand_dims(np.argmax(raw(x), axis), axis)
    chosen = np.take_along_axis(raw(x), at, axis)
    shape = x.shape

    def pullback(d: np.ndarray) -> np.ndarray:
        whole = np.zeros(shape)
        np.put_along_axis(whole, at, d if keepdims else np.expand_dims(d, axis), axis)
        return whole

    return made(chosen if keepdims else chosen.squeeze(axis), (x, pullback))


def _sum(x: Traced, axis: Any, keepdims: bool) -> Traced:
    shape = x.shape
    axes = tuple(range(x.ndim)) if axis is None else axis

    def pullback(d: np.ndarray) -> np.ndarray:
        return np.broadcast_to(d if keepdims else np.expand_dims(d, axes), shape)

    return made(raw(x).sum(axis=axes, keepdims=keepdims), (x, pullback))


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

    def pullback(end: int, size: int) -> Pullback:
        return lambda d: np.take(d, np.arange(end - size, end), axis)

    parts = ((x, pullback(int(end), x.shape[axis])) for x, end in zip(xs, ends, strict=True))
    return made(np.concatenate([raw(x) for x in xs], axis), *parts)


def _repeat(x: Any, repeats: Any, axis: int) -> Traced:
    taken = np.repeat(np.arange(x.shape[axis]), repeats)

    def pullback(d: np.ndarray) -> np.ndarray:
        whole = np.zeros(x.shape)
        np.add.at(np.moveaxis(whole, axis, 0), taken, np.moveaxis(d, axis, 0))
        return whole

    return made(np.take(raw(x), taken, axis), (x, pullback))


def _cumsum(x: Any, axis: int) -> Traced:
    return made(np.cumsum(raw(x), axis), (x, lambda d: np.flip(np.cumsum(np.flip(d, axis), axis), axis)))


def _broadcast_to(x: Any, shape: tuple[int, ...]) -> Traced:
    return made(np.broadcast_to(raw(x), shape).copy(), (x, like(np.shape(x))))


def _broadcast_arrays(*xs: Any) -> list[Traced]:
    shape = np.broadcast_shapes(*map(np.shape, xs))
    return [_broadcast_to(x, shape) for x in xs]


def _moveaxis(x: Any, source: Any, destination: Any) -> Traced:
    return made(np.moveaxis(raw(x), source, destination).copy(), (x, lambda d: np.moveaxis(d, destination, source)))


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
    np.clip: _clip,
}


class _NumPy(ModuleType):
    """NumPy whose new arrays of float64 are traced, so that what is written into them is followed."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name)
        if name not in ("zeros", "empty", "full", "ones", "zeros_like", "ones_like"):
            return self._array if name == "array" else function

        def new(*args: Any, **more: Any) -> Any:
            x = function(*map(raw, args), **more)
            return made(x) if x.dtype == np.float64 else x

        return new

    def _array(self, x: Any, dtype: Any = None) -> Any:
        return x.astype(dtype or np.float64) if isinstance(x, Traced) else np.array(x, dtype)


_TRACING = _NumPy("numpy")


@contextmanager
def tracing(modules: Mapping[str, ModuleType]) -> Iterator[None]:
    """Let the modules of a copy of the specification run on traced arrays."""
    with np.errstate(all="ignore"):
        patches = [patch.object(module, "np", _TRACING) for module in modules.values() if hasattr(module, "np")]
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in patches:
                each.stop()


def gradients(
    outputs: Mapping[str, np.ndarray], cotangents: Mapping[str, np.ndarray], inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The cotangents of traced inputs, by name, given those of outputs."""
    reached: dict[Node, np.ndarray] = {}
    waiting: list[tuple[int, Node]] = []

    def add(node: Node, d: np.ndarray) -> None:
        if node in reached:
            reached[node] = reached[node] + d
            return
        reached[node] = d
        heapq.heappush(waiting, (-node.number, node))

    for name, d in cotangents.items():
        x = outputs[name]
        if isinstance(x, Traced):
            add(node_of(x), d)
    with np.errstate(all="ignore"):
        while waiting:
            _, node = heapq.heappop(waiting)
            for parent, back in node.parents:
                add(parent, back(reached[node]))
    found = {name: reached.get(node_of(x)) for name, x in inputs.items() if isinstance(x, Traced)}
    return {name: np.zeros(inputs[name].shape) if d is None else d for name, d in found.items()}
