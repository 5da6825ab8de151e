"""Laws about bad calls: each is made of a good one by one change, and must raise what the reference raises on it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import reference
from conformance.dtypes import Array, array
from conformance.frameworks.numpy import NumPyImplementation
from conformance.trial import LawError, Trial

Call = tuple[dict[str, Any], dict[str, Any]]


@dataclass(frozen=True)
class BadCall:
    """A call that must be refused.

    Attributes:
        operation: the public function.
        label: what is wrong with the call.
        make: the call, ``(arrays, options)``.
    """

    operation: str
    label: str
    make: Callable[[], Call]

    size = 1

    def describe(self) -> str:
        return f"{self.operation} with {self.label}"


def changed(x: Array, shape: tuple[int, ...] | None = None, dtype: str | None = None) -> Array:
    """The array with another shape, or of another dtype."""
    dtype = dtype or x.dtype
    values = np.zeros(shape) if shape is not None else x.values
    return array(values, dtype)


def check_refusal(trial: Trial, bad: BadCall) -> None:
    arrays, options = bad.make()
    expected = _raised(_REFERENCE, bad.operation, arrays, options)
    assert expected is not None, f"the reference accepts {bad.describe()}"
    got = _raised(trial.implementation, bad.operation, arrays, options)
    if got is None:
        raise LawError(bad.label, f"was accepted; expected {type(expected).__name__}: {expected}")
    if type(got) is not type(expected):
        raise LawError(
            bad.label,
            f"raised {type(got).__name__}: {str(got)[:200]}; expected {type(expected).__name__}: {expected}",
        )
    if "numpy" not in str(expected) and str(got) != str(expected):
        raise LawError(bad.label, f"said {str(got)[:300]!r}; expected {str(expected)!r}")


_REFERENCE = NumPyImplementation("reference", {name: getattr(reference, name) for name in reference.__all__})


def _raised(implementation: Any, operation: str, arrays: dict[str, Any], options: dict[str, Any]) -> Exception | None:
    try:
        implementation.attempt(operation, arrays, options)
    except Exception as error:
        return error
    return None


def with_arrays(base: Callable[[], dict[str, Any]], operation: str, label: str, **changes: Any) -> BadCall:
    """A bad call whose arrays differ from ``base``'s as ``changes`` say: an array, None, or a function of the array."""

    def make() -> Call:
        arrays = base()
        for name, change in changes.items():
            arrays[name] = change(arrays[name]) if callable(change) else change
        return arrays, {}

    return BadCall(operation, label, make)


def with_options(base: Callable[[], dict[str, Any]], operation: str, label: str, **options: Any) -> BadCall:
    return BadCall(operation, label, lambda: (base(), options))


def reshaped(*shape: int) -> Callable[[Array], Array]:
    return lambda x: changed(x, shape=shape)


def recast(dtype: str) -> Callable[[Array], Array]:
    return lambda x: changed(x, dtype=dtype)


def integers(*values: Any) -> Array:
    return array(np.array(values), "int32")
