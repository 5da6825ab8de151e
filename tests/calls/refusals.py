"""Bad calls and bad uses: each package refuses them with the reference's error, in type and in text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import reference
from conformance import cases
from conformance.base.call import Call
from conformance.base.dtypes import Array, array
from conformance.base.exceptions import name_of, text_of
from conformance.base.result_form import WrongResultError
from conformance.laws.checker import Checker, LawError
from conformance.operations import Operation
from tests.calls.packages import NumPyPackage
from tests.calls.registry import LAWS, law

REFERENCE = NumPyPackage("reference", {name: getattr(reference, name) for name in reference.__all__})


def _label(bad: Any) -> dict[str, Any]:
    return {"operation": bad.operation, "label": bad.label}


def _found(kind: str) -> Callable[[dict[str, Any]], Any]:
    """Finds a bad call, which is a function and not a plain value, among the rows of all laws."""

    def find(kept: dict[str, Any]) -> Any:
        for each in LAWS:
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
        use: performs it, given an implementation.
        until: a word after which the texts may differ, because they continue with a target's own names.
    """

    operation: str
    label: str
    use: Callable[[Any], Any]
    until: str | None = None

    size = 1

    def describe(self) -> str:
        return f"{self.operation} with {self.label}"

    def comparable(self, error: Exception) -> str:
        return text_of(error) if self.until is None else text_of(error).partition(self.until)[0]


def register(operation: str, rows: Callable[[], list[BadCall]], *, op: str | None = None) -> None:
    """Register the law about bad calls of one operation.

    Args:
        rows: the calls.
        op: the name of its laws, if it is not the operation's own name.
    """
    law(op or operation, "contract", name="error_text", rows=rows, needs=(operation,))(check_refusal)


def check_refusal(checker: Checker, bad: BadCall) -> None:
    """An invalid call raises the reference's error, in type and text.

    error(target) = error(reference)
    """
    call = bad.make()
    expected = _raised(lambda: REFERENCE.attempt(call))
    assert expected is not None, f"the reference accepts {bad.describe()}"
    got = _raised(lambda: checker.implementation.attempt(call))
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
    wanted = f"{type(expected).__name__}: {expected}"
    if got is None:
        raise LawError(label, f"was accepted; expected {wanted}")
    if type(got) is not type(expected):
        raise LawError(label, f"raised {name_of(got)}: {text_of(got)[:200]}; expected {wanted}")
    if text is not None and text(got) != text(expected):
        raise LawError(label, f"said {text_of(got)[:300]!r}; expected {text(expected)!r}")


def _raised(act: Callable[[], Any]) -> Exception | None:
    try:
        act()
    except WrongResultError:
        raise
    except Exception as error:
        return error
    return None


Base = Callable[[], dict[str, Any]]
"""Makes the arrays of a valid call."""

Rows = Sequence[tuple[str, dict[str, Any]]]
"""Faults of calls, each with the changes that make it, by the names of arrays or of options."""


def bad_arrays(operation: str, base: Base, rows: Rows, options: Mapping[str, Any] | None = None) -> list[BadCall]:
    """Bad calls whose arrays differ from ``base``'s: each change is an array, None, or a function of the array."""

    def made(changes: Mapping[str, Any]) -> Call:
        call = Call(operation=operation, arrays=base(), options=dict(options or {}))
        return call.with_arrays(**{n: x(call.arrays[n]) if callable(x) else x for n, x in changes.items()})

    return [BadCall(operation, label, partial(made, changes)) for label, changes in rows]


def bad_options(operation: str, base: Base, rows: Rows) -> list[BadCall]:
    """Bad calls with these options."""

    def made(options: Mapping[str, Any]) -> Call:
        return Call(operation=operation, arrays=base(), options=options)

    return [BadCall(operation, label, partial(made, options)) for label, options in rows]


def bad_values(operation: Operation, base: Base) -> list[BadCall]:
    """Calls with the values that the options of an operation must not have."""
    rows = [(label, {option.name: value}) for option in operation.options for label, value in option.refused.items()]
    return bad_options(operation.name, base, rows)


def reshaped(*shape: int) -> Callable[[Array], Array]:
    """Makes an array of another shape from the same numbers."""
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
