"""NumPy functions as an implementation; a gradient comes from the target's own ``<name>_backward``."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from mmap import mmap
from typing import Any
from unittest.mock import patch

import numpy as np

from conformance.base.call import Call
from conformance.base.dtypes import Array
from conformance.base.exceptions import UsageError
from conformance.base.result_form import ArrayKind
from conformance.frameworks import _surrounded
from conformance.frameworks._far import FarBuffer, axis_of, bytes_needed, reserved, why_no_memory
from conformance.frameworks._shards import in_arrays
from conformance.frameworks.implementation import OVER_STEPS, Implementation, Results
from conformance.operations import OPERATIONS


def adapter(name: str, functions: Mapping[str, Any], device: str) -> Implementation:
    if device != "cpu":
        raise UsageError(f"{name} is a NumPy target, which runs on the CPU; leave out --device {device}")
    return NumPyImplementation(name, functions)


_SHARDED = {"mlstm_sharded": "mlstm", "mlstm_sharded_backward": "mlstm_backward"}
"""Functions of lists of shards, and the functions of whole sequences that they must equal."""

_SHARDS = 4


def _dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def _is_array(x: Any) -> bool:
    """Whether ``x`` is an array of real numbers; another framework's array becomes one."""
    dtype = getattr(x, "dtype", None)
    if not hasattr(x, "__array__") or getattr(dtype, "kind", "f") in "OSUMmcb":
        return False
    # A bfloat16 has the kind of structures, too.
    return not issubclass(getattr(dtype, "type", float), np.void)


class NumPyImplementation(Implementation):
    """See `conformance.frameworks.implementation.Implementation`."""

    framework = "numpy"
    kind = ArrayKind("numpy.ndarray", np.ndarray, _is_array)
    layouts = ("contiguous", "strided", "reversed", "transposed")
    lacking: Mapping[str, str] = {
        **dict.fromkeys(("large grids", "busy stream", "graph"), "NumPy computes only on the CPU"),
        "frozen arguments": "a NumPy target's own backward returns every gradient",
        "two backward passes": "a NumPy target's own backward takes all arrays each time",
    }
    _far: tuple[FarBuffer, mmap] | None = None

    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__}

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
                    outputs = self.call(Call(operation=name, arrays=operation.smallest("float32")))
                except Exception:
                    continue  # The laws report this error, with a case of their own.
                return outputs[operation.output].dtype == "float64"
        return False

    def no_gradient(self, operation: str) -> str | None:
        backward = OPERATIONS[operation].backward_name
        return None if backward in self.functions else f"a NumPy target has a gradient only if it offers {backward}"

    def lacks(self, feature: str) -> str | None:
        if feature == "far memory":
            return why_no_memory(bytes_needed(8))
        if feature == OVER_STEPS:
            return None if _SHARDED.keys() <= self.functions.keys() else f"there is no {' and no '.join(_SHARDED)}"
        served = ("layouts", "poisoned", "one array for several")
        return None if feature in served else self.lacking.get(feature, f"NumPy has no {feature}")

    def transformed(self, kind: str, call: Call) -> tuple[Results, Results]:
        if kind == "one array for several":
            natives, dnatives = self._natives_in_common(call.arrays), self._natives(call.cotangents)
            outputs, parts = self._differentiated(call, natives, dnatives)
            # Its backward returns the gradient of each use of an array.
            used = [name for name in natives if parts.get(name) is not None]
            totals = {name: sum(parts[each] for each in used if natives[each] is natives[name]) for name in used}
            return self._neutrals(outputs), self._neutrals(totals)
        if kind != OVER_STEPS:
            return super().transformed(kind, call)
        whole = {name: in_arrays(self.functions[sharded], _SHARDS) for sharded, name in _SHARDED.items()}
        return self.with_functions({**self.functions, **whole}).vjp(call)

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
        if array.layout in _surrounded.LAYOUTS:
            filling = _surrounded.FILLING if x.dtype.kind in "iu" else np.nan
            inside = _surrounded.place(array.layout, x.shape, lambda shape: np.full(shape, filling, x.dtype))
            inside[...] = x
            return inside
        axis = axis_of(array.layout)
        return x if axis is None else self._far_apart(x, axis)

    def _far_apart(self, x: np.ndarray, axis: int) -> np.ndarray:
        assert self._far is not None, "an array with elements far apart needs `far_memory`"
        buffer, memory = self._far
        place = buffer.place(x.shape, axis, x.itemsize)
        if place is None:
            return x
        strides = tuple(x.itemsize * stride for stride in place.strides)
        far = np.ndarray(x.shape, x.dtype, memory, place.offset * x.itemsize, strides)
        far[...] = x
        return far

    def neutral(self, array: Any) -> Array:
        given = np.asarray(array)
        # Whatever the order of its bytes.
        name = str(given.dtype.newbyteorder("="))
        if np.ma.is_masked(array):
            # A masked element has no value.
            return Array(array.astype(np.float64).filled(np.nan), name)
        return Array(given.astype(np.float64) if given.dtype.kind not in "iub" else given, name)

    def _differentiated(
        self, call: Call, natives: dict[str, Any], dnatives: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        operation = OPERATIONS[call.operation]
        backward = self.functions[operation.backward_name]
        outputs = self._results(call, natives)
        return outputs, operation.differentiate(backward, natives, call.options, dnatives, self.kind)

    def _write(self, x: np.ndarray, source: np.ndarray) -> None:
        x[...] = source

    def _copied(self, x: np.ndarray) -> bytes:
        return x.tobytes()

    def _equal(self, x: np.ndarray, before: bytes) -> bool:
        return x.tobytes() == before

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


def _filled(allocate: Callable) -> Callable:
    """A version of ``numpy.empty`` or a similar function that fills its result with NaN."""

    def filled(*args: Any, **kwargs: Any) -> np.ndarray:
        x = allocate(*args, **kwargs)
        if x.dtype.kind in "fc":
            x.fill(np.nan)
        return x

    return filled
