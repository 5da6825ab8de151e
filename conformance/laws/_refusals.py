"""Laws about bad calls, each made from a valid call by one change.

Any target has to refuse it, with any exception, or to give the only answer it can mean. The reference's error, in type
and in text, is required of those that keep gatespec's contract.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import reference
from conformance import cases
from conformance.call import Call
from conformance.checker import Checker, LawError
from conformance.comparison import Refusal
from conformance.dtypes import Array, array
from conformance.exceptions import name_of, text_of
from conformance.frameworks.numpy import NumPyImplementation
from conformance.implementation import Implementation
from conformance.laws import law
from conformance.laws._answered_calls import expect_right
from conformance.operations import Operation
from conformance.result_form import WrongResultError

REFERENCE = NumPyImplementation("reference", {name: getattr(reference, name) for name in reference.__all__})


def _label(bad: Any) -> dict[str, Any]:
    return {"operation": bad.operation, "label": bad.label}


def _found(kind: str) -> Callable[[dict[str, Any]], Any]:
    """Finds a bad call, which is a function and not a plain value, among the rows of all laws."""

    def find(kept: dict[str, Any]) -> Any:
        from conformance.laws import all_laws

        for each in all_laws():
            for row in each.rows() if each.rows is not None else ():
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
        make: returns the call.
        good: the arrays of the valid call that it was made from.
        misshapen: whether a required array is missing or has another shape.
    """

    operation: str
    label: str
    make: Callable[[], Call]
    good: Callable[[], Mapping[str, Array]]
    misshapen: bool

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
        use: performs it, given an implementation.
        until: a word after which the texts may differ, because they continue with a target's own names.
    """

    operation: str
    label: str
    use: Callable[[Implementation], Any]
    until: str | None = None

    size = 1

    def describe(self) -> str:
        return f"{self.operation} with {self.label}"

    def comparable(self, error: Exception) -> str:
        return text_of(error) if self.until is None else text_of(error).partition(self.until)[0]


def register(operation: str, rows: Callable[[], list[BadCall]], *, op: str | None = None) -> None:
    """Register the laws about bad calls of one operation.

    Args:
        rows: the calls.
        op: the name of its laws, if it is not the operation's own name.
    """
    symbols = f"{operation}(bad) raises, or = {operation}(what bad can only mean)"
    needs = (operation,)
    law(op or operation, "behaviour", name="bad_calls", equation=symbols, rows=rows, needs=needs)(check_bad_call)
    law(op or operation, "contract", name="error_text", rows=rows, needs=needs)(check_refusal)


def check_bad_call(checker: Checker, bad: BadCall) -> None:
    """A call whose arguments do not fit together raises, or returns the only result that it can mean."""
    call = bad.make()
    try:
        got = checker.attempt(call)
    except WrongResultError:
        raise
    except NotImplementedError:
        _expect_served(checker, call, bad.good())
        return
    except Exception:
        return
    try:
        expect_right(call, bad.good(), got, bad.misshapen, REFERENCE)
    except LawError as error:
        where = f"{bad.label}: {error.where}" if error.where else bad.label
        raise LawError(where, error.text, error.verdict, nature=error.nature) from error


def _expect_served(checker: Checker, bad: Call, arrays: Mapping[str, Array]) -> None:
    """Check that the valid call is served: a target that refuses that one, too, has said nothing about the bad one."""
    same = bad.arrays.keys() == arrays.keys() and all(_equal(bad.arrays[name], x) for name, x in arrays.items())
    # If the arrays are the same, it is an option that is bad.
    options = {} if same else bad.options
    checker.served(checker.implementation.attempt, Call(operation=bad.operation, arrays=arrays, options=options))


def _equal(x: Any, y: Array) -> bool:
    return isinstance(x, Array) and x.dtype == y.dtype and np.array_equal(x.values, y.values)


def check_refusal(checker: Checker, bad: BadCall) -> None:
    """An invalid call raises the reference's error, in type and text.

    error(target) = error(reference)
    """
    call = bad.make()
    expected = _raised(lambda: REFERENCE.attempt(call))
    assert expected is not None, f"the reference accepts {bad.describe()}"
    got = _raised(lambda: checker.attempt(call))
    same_text = "numpy" not in str(expected)
    _compare(bad.label, got, expected, text_of if same_text else None)


def register_uses(
    op: str, sentence: str, rows: Callable[[], list[BadUse]], needs: tuple[str, ...] = (), **fields: Any
) -> None:
    """Register the law that bad uses of an operation raise the reference's errors."""
    fields = {"name": "error_text", "equation": "error(target) = error(reference)", **fields}
    law(op, "contract", sentence=sentence, rows=rows, needs=needs, **fields)(check_use)


def check_use(checker: Checker, bad: BadUse) -> None:
    expected = _raised(lambda: bad.use(REFERENCE))
    assert expected is not None, f"the reference accepts {bad.describe()}"
    _compare(bad.label, _raised(lambda: bad.use(checker.implementation)), expected, bad.comparable)


def _compare(label: str, got: Exception | None, expected: Exception, text: Callable[[Exception], str] | None) -> None:
    wanted = Refusal(type(expected).__name__, str(expected), text is text_of)
    if got is None:
        raise LawError(label, f"was accepted; expected {wanted.type}: {expected}", comparison=wanted)
    if type(got) is not type(expected):
        said = f"raised {name_of(got)}: {text_of(got)[:200]}; expected {wanted.type}: {expected}"
        raise LawError(label, said, comparison=wanted)
    if text is not None and text(got) != text(expected):
        raise LawError(label, f"said {text_of(got)[:300]!r}; expected {text(expected)!r}", comparison=wanted)


def _raised(act: Callable[[], Any]) -> Exception | None:
    try:
        act()
    except WrongResultError:
        raise
    except Exception as error:
        return error
    return None


@dataclass(frozen=True)
class Reshaped:
    """Makes an array of another shape from the same numbers."""

    shape: tuple[int, ...]

    def __call__(self, x: Array) -> Array:
        return array(np.resize(x.values, self.shape), x.dtype)


def misshapes(changes: Mapping[str, Any]) -> bool:
    """Whether these changes give an array another shape or remove it; arrays of a state may be removed."""
    return any(
        isinstance(change, Reshaped) or (change is None and name not in _STATES) for name, change in changes.items()
    )


_STATES = ("C0", "n0", "m0", "input_state")


Base = Callable[[], dict[str, Any]]
"""Makes the arrays of a valid call."""

Rows = Sequence[tuple[str, dict[str, Any]]]
"""Faults of calls, each with the changes that make it, by the names of arrays or of options."""


def bad_arrays(operation: str, base: Base, rows: Rows, options: Mapping[str, Any] | None = None) -> list[BadCall]:
    """Bad calls whose arrays differ from ``base``'s: each change is an array, None, or a function of the array."""

    def made(changes: Mapping[str, Any]) -> Call:
        call = Call(operation=operation, arrays=base(), options=dict(options or {}))
        return call.with_arrays(**{n: x(call.arrays[n]) if callable(x) else x for n, x in changes.items()})

    return [BadCall(operation, label, partial(made, changes), base, misshapes(changes)) for label, changes in rows]


def bad_options(operation: str, base: Base, rows: Rows) -> list[BadCall]:
    """Bad calls with these options."""

    def made(options: Mapping[str, Any]) -> Call:
        return Call(operation=operation, arrays=base(), options=options)

    return [BadCall(operation, label, partial(made, options), base, False) for label, options in rows]


def bad_values(operation: Operation, base: Base) -> list[BadCall]:
    """Calls with the values that the options of an operation must not have."""
    rows = [(label, {option.name: value}) for option in operation.options for label, value in option.refused.items()]
    return bad_options(operation.name, base, rows)


def reshaped(*shape: int) -> Reshaped:
    return Reshaped(shape)


def degenerate(*shape: int) -> Callable[[Array], Array]:
    """Gives an array a shape that gatespec excludes but that may have a meaning for others."""
    return lambda x: array(np.resize(x.values, shape), x.dtype)


def recast(dtype: str) -> Callable[[Array], Array]:
    return lambda x: array(x.values, dtype)


def integers(*values: Any) -> Array:
    return array(np.array(values), "int32")


PACKINGS: Rows = [
    ("`cu_seqlens` that falls", {"cu_seqlens": integers(0, 5, 4, 6)}),
    ("`cu_seqlens` that starts above 0", {"cu_seqlens": integers(1, 2, 6)}),
    ("`cu_seqlens` that ends short", {"cu_seqlens": integers(0, 2, 5)}),
    ("`cu_seqlens` that ends beyond", {"cu_seqlens": integers(0, 2, 7)}),
    ("`cu_seqlens` of rank 2", {"cu_seqlens": integers([0, 2, 6])}),
    ("empty `cu_seqlens`", {"cu_seqlens": integers()}),
    ("floating `cu_seqlens`", {"cu_seqlens": array(np.array([0.0, 2.0, 6.0]), "float32")}),
]
"""Packings that do not fit 6 tokens."""
