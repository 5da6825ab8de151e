"""NumPy functions as an implementation; a gradient comes from the target's own ``<name>_backward``."""

import importlib.metadata
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from mmap import mmap
from typing import Any, NoReturn
from unittest.mock import patch

import numpy as np

from conformance.dtypes import Array
from conformance.frameworks._far import FarBuffer, axis_of, bytes_needed, reserved, why_no_memory
from conformance.frameworks._mesh import place
from conformance.frameworks._numpy_layers import NumPyLayer
from conformance.implementation import Implementation, Launches, Layer, Named, Results, UsageError
from conformance.operations import OPERATIONS


def adapter(name: str, functions: Mapping[str, Any], device: str) -> Implementation:
    if device != "cpu":
        raise UsageError(f"{name} is a NumPy target, which runs on the CPU; leave out --device {device}")
    return NumPyImplementation(name, functions)


def _dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


class NumPyImplementation:
    """See `conformance.implementation.Implementation`."""

    framework = "numpy"
    device = "cpu"
    eager = True
    layouts = ("contiguous", "strided", "reversed", "transposed")
    tf32 = False
    keeps_contract = False
    backends: Mapping[str, bool] = {"numpy": False}

    def __init__(self, name: str, functions: Mapping[str, Any]):
        self.name = name
        self.functions = functions
        self._far: tuple[FarBuffer, mmap] | None = None

    def versions(self) -> dict[str, str]:
        return {"numpy": importlib.metadata.version("numpy")}

    def with_functions(self, functions: Mapping[str, Any]) -> Implementation:
        return NumPyImplementation(self.name, functions)

    def cannot(self, dtype: str) -> str | None:
        try:
            _dtype(dtype)
        except ImportError:
            return "NumPy has no bfloat16 unless ml_dtypes is installed"
        return None

    @property
    def upcasts(self) -> bool:
        return self._upcasts

    @cached_property
    def _upcasts(self) -> bool:
        """Whether the first operation that the target offers returns float64 for float32."""
        for name, operation in OPERATIONS.items():
            if name in self.functions and operation.curried is None:
                try:
                    outputs = self.call(name, operation.smallest("float32"), {})
                except Exception:
                    continue  # The laws report this error, with a case of their own.
                return outputs[operation.output].dtype == "float64"
        return False

    def no_gradient(self, operation: str) -> str | None:
        backward = OPERATIONS[operation].backward_name
        return None if backward in self.functions else f"a NumPy target has a gradient where it offers {backward}"

    def lacks(self, feature: str) -> str | None:
        if feature == "far memory":
            return why_no_memory(bytes_needed(8))
        return None if feature in ("layouts", "poisoned") else _LACKING.get(feature, f"NumPy has no {feature}")

    def native(self, array: Array) -> np.ndarray:
        x = array.values.astype(_dtype(array.dtype))
        if array.layout == "strided" and x.ndim:
            wide = np.full((*x.shape[:-1], 2 * x.shape[-1]), 77, x.dtype)
            wide[..., ::2] = x
            return wide[..., ::2]
        if array.layout == "reversed" and x.ndim:
            return np.ascontiguousarray(np.flip(x))[(slice(None, None, -1),) * x.ndim]
        if array.layout == "transposed" and x.ndim > 1:
            return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
        if array.layout == "broadcast" and x.ndim and x.shape[0]:
            return np.broadcast_to(x[:1].copy(), x.shape)
        axis = axis_of(array.layout)
        return x if axis is None else self._far_apart(x, axis)

    def _far_apart(self, x: np.ndarray, axis: int) -> np.ndarray:
        assert self._far is not None, "an array that lies far apart needs `far_memory`"
        buffer, memory = self._far
        place = buffer.place(x.shape, axis, x.itemsize)
        if place is None:
            return x
        strides = tuple(x.itemsize * stride for stride in place.strides)
        far = np.ndarray(x.shape, x.dtype, memory, place.offset * x.itemsize, strides)
        far[...] = x
        return far

    def neutral(self, array: Any) -> Array:
        array = np.asarray(array)
        name = str(array.dtype)
        return Array(array.astype(np.float64) if array.dtype.kind not in "iub" else array, name)

    def _natives(self, arrays: Named) -> dict[str, Any]:
        return {name: self.native(array) for name, array in arrays.items()}

    def _neutrals(self, arrays: Mapping[str, Any]) -> Results:
        return {name: self.neutral(array) for name, array in arrays.items() if array is not None}

    def call(self, operation: str, arrays: Named, options: Mapping[str, Any]) -> Results:
        binding = OPERATIONS[operation]
        return self._neutrals(binding.call(self.functions[operation], self._natives(arrays), options))

    def outputs(self, operation: str, arrays: Named, options: Mapping[str, Any]) -> Results:
        return self.call(operation, arrays, options)

    def _backward(self, operation: str) -> Any:
        return self.functions[OPERATIONS[operation].backward_name]

    def vjp(
        self, operation: str, arrays: Named, options: Mapping[str, Any], cotangents: Named
    ) -> tuple[Results, Results]:
        binding = OPERATIONS[operation]
        natives, dnatives = self._natives(arrays), self._natives(cotangents)
        outputs = binding.call(self.functions[operation], natives, options)
        gradients = binding.differentiate(self._backward(operation), natives, options, dnatives)
        return self._neutrals(outputs), self._neutrals(gradients)

    def attempt(self, operation: str, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Results:
        natives = {name: self.native(x) if isinstance(x, Array) else x for name, x in arrays.items()}
        return self._neutrals(OPERATIONS[operation].call(self.functions[operation], natives, options))

    def impurities(self, operation: str, arrays: Named, options: Mapping[str, Any], cotangents: Named) -> list[str]:
        binding = OPERATIONS[operation]
        natives, dnatives = self._natives(arrays), self._natives(cotangents)
        before = {name: x.tobytes() for name, x in {**natives, **_primed(dnatives)}.items()}
        results = binding.call(self.functions[operation], natives, options)
        if self.no_gradient(operation) is None:
            gradients = binding.differentiate(self._backward(operation), natives, options, dnatives)
            results = {**results, **{f"gradient of {name}": g for name, g in gradients.items() if g is not None}}
        given = {**natives, **_primed(dnatives)}
        found = [f"{name} was written to" for name, x in given.items() if x.tobytes() != before[name]]
        results = {name: np.asarray(x) for name, x in results.items()}
        found += [f"{a} shares memory with {b}" for a in results for b in given if _overlap(results[a], given[b])]
        names = list(results)
        pairs = ((a, b) for at, a in enumerate(names) for b in names[:at])
        return found + [f"{a} shares memory with {b}" for a, b in pairs if _overlap(results[a], results[b])]

    def transformed(
        self, kind: str, operation: str, arrays: Named, options: Mapping[str, Any], cotangents: Named
    ) -> NoReturn:
        raise NotImplementedError(self.lacks(kind))

    def second_derivative(
        self, operation: str, arrays: Named, options: Mapping[str, Any], cotangents: Named, along: Named
    ) -> NoReturn:
        raise NotImplementedError(self.lacks("second derivative"))

    def launched(self, operation: str, arrays: Named, options: Mapping[str, Any], cotangents: Named) -> Launches:
        self.call(operation, arrays, options)
        return Launches()

    @contextmanager
    def far_memory(self) -> Iterator[None]:
        self._far = FarBuffer(8), reserved(bytes_needed(8))
        try:
            yield
        finally:
            self._far = None

    @contextmanager
    def poisoned(self) -> Iterator[None]:
        with patch.object(np, "empty", _filled(np.empty)), patch.object(np, "empty_like", _filled(np.empty_like)):
            yield

    def layer(self, name: str, settings: Mapping[str, Any], seed: int) -> Layer:
        return NumPyLayer(self.functions[name], settings, seed, self.native, self.neutral)

    def overlap(self, x: np.ndarray, y: np.ndarray) -> bool:
        return _overlap(x, y)

    def run(self, key: Hashable, function: Callable, arrays: Named) -> Results:
        return self._neutrals(function(self._natives(arrays)))

    def rng(self, seed: int) -> int:
        return seed

    def drawn(self, rng: int) -> np.ndarray:
        return np.asarray(rng % 2**31)

    def on_mesh(self, axes: Mapping[str, int], function: Callable, arrays: list[Array]) -> list[Results]:
        places = ({"axis_index": place(axes, number), "axis_size": dict(axes)} for number in range(len(arrays)))
        return [self._neutrals(function(at, self.native(x))) for at, x in zip(places, arrays, strict=True)]


_LACKING = {
    "large grids": "NumPy computes on the CPU alone",
    "busy stream": "NumPy computes on the CPU alone",
    "graph": "NumPy computes on the CPU alone",
    "graph at the first call": "NumPy computes on the CPU alone",
}


def _filled(allocate: Callable) -> Callable:
    """A version of ``numpy.empty`` or a similar function that fills its result with NaN."""

    def filled(*args: Any, **kwargs: Any) -> np.ndarray:
        x = allocate(*args, **kwargs)
        if x.dtype.kind in "fc":
            x.fill(np.nan)
        return x

    return filled


def _primed(cotangents: Mapping[str, Any]) -> dict[str, Any]:
    return {f"cotangent of {name}": x for name, x in cotangents.items()}


def _overlap(x: np.ndarray, y: np.ndarray) -> bool:
    return bool(x.size and y.size and np.may_share_memory(x, y))
