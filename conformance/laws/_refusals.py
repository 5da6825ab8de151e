"""Laws about bad calls: each is made of a good one by one change, and must raise what the reference raises on it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import reference
from conformance import cases
from conformance.checker import Checker, LawError
from conformance.comparison import Refusal
from conformance.dtypes import Array, array
from conformance.frameworks.numpy import NumPyImplementation
from conformance.implementation import Implementation

Call = tuple[dict[str, Any], dict[str, Any]]

REFERENCE = NumPyImplementation("reference", {name: getattr(reference, name) for name in reference.__all__})


def _label(bad: Any) -> dict[str, Any]:
    return {"operation": bad.operation, "label": bad.label}


def _found(kind: str) -> Callable[[dict[str, Any]], Any]:
    """Finds a bad call again, which is a function and no plain value, among the rows of all laws."""

    def find(kept: dict[str, Any]) -> Any:
        from conformance.laws import all_laws

        for law in all_laws():
            for row in law.rows() if law.rows is not None else ():
                if type(row).__name__ == kind and _label(row) == kept:
                    return row
        raise ValueError(f"no law has a {kind} of {kept['operation']} with the label {kept['label']!r}")

    return find


@cases.register(to_fields=_label, from_fields=_found("BadCall"))
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


@cases.register(to_fields=_label, from_fields=_found("BadUse"))
@dataclass(frozen=True)
class BadUse:
    """A use of a public function, other than a call with named arrays, that must be refused.

    Attributes:
        operation: the public function.
        label: what is wrong.
        use: does it, given an implementation.
        until: a word at which the texts need no longer be the same, for they go on with what a target calls things.
    """

    operation: str
    label: str
    use: Callable[[Implementation], Any]
    until: str | None = None

    size = 1

    def describe(self) -> str:
        return f"{self.operation} with {self.label}"

    def comparable(self, error: Exception) -> str:
        return str(error) if self.until is None else str(error).partition(self.until)[0]


def changed(x: Array, shape: tuple[int, ...] | None = None, dtype: str | None = None) -> Array:
    """The array with another shape, or of another dtype."""
    dtype = dtype or x.dtype
    values = np.zeros(shape) if shape is not None else x.values
    return array(values, dtype)


def check_refusal(checker: Checker, bad: BadCall) -> None:
    arrays, options = bad.make()
    expected = _raised(lambda: REFERENCE.attempt(bad.operation, arrays, options))
    assert expected is not None, f"the reference accepts {bad.describe()}"
    got = _raised(lambda: checker.attempt(bad.operation, arrays, options))
    same_text = "numpy" not in str(expected)
    _compare(bad.label, got, expected, str if same_text else None)


def check_use(checker: Checker, bad: BadUse) -> None:
    expected = _raised(lambda: bad.use(REFERENCE))
    assert expected is not None, f"the reference accepts {bad.describe()}"
    _compare(bad.label, _raised(lambda: bad.use(checker.implementation)), expected, bad.comparable)


def _compare(label: str, got: Exception | None, expected: Exception, text: Callable[[Exception], str] | None) -> None:
    wanted = Refusal(type(expected).__name__, str(expected), text is str)
    if got is None:
        raise LawError(label, f"was accepted; expected {wanted.type}: {expected}", comparison=wanted)
    if type(got) is not type(expected):
        said = f"raised {type(got).__name__}: {str(got)[:200]}; expected {wanted.type}: {expected}"
        raise LawError(label, said, comparison=wanted)
    if text is not None and text(got) != text(expected):
        raise LawError(label, f"said {str(got)[:300]!r}; expected {text(expected)!r}", comparison=wanted)


def _raised(act: Callable[[], Any]) -> Exception | None:
    try:
        act()
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
