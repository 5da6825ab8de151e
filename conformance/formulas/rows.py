"""The rows of an operation as formulas: what the specification computes with one line changed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance import oracle
from conformance.formulas.formula import ACCUMULATION, DTYPES, Computed, Formula, Values
from conformance.operations import Operation
from conformance.rows import ROWS, sizes
from conformance.rows.row import Row
from conformance.specification import traced
from conformance.specification.changed import Specification, changed


class DoesNotRunError(Exception):
    """The specification with a row changed raises on this call, or does what the tape cannot follow."""


CHECKS = ("arguments.py", "_call.py")
"""Modules whose rows change what is refused, and no answer."""


def formulas_of_rows(operation: Operation) -> Iterator[Formula]:
    """The formulas of an operation's rows, which are not combined with others.

    Rows that begin with a size are left out: at what size a fault begins is found by bisection.
    """
    if operation.stated is not None:
        for fault, version in operation.stated.recurrence.wrong.items():
            compute = partial(_version, operation, version)
            yield Formula(
                name=f"the recurrence with a fault: {fault}", compute=compute, changes_value=True, change={}, alone=True
            )
    for row in ROWS:
        if row.op == operation.about and row.module not in CHECKS and row not in sizes.ROWS:
            name = f"the specification with a fault: {row.name}"
            compute = partial(_runs, operation, row)
            yield Formula(name=name, compute=compute, changes_value=True, change={}, alone=True)


def in_value(formula: Formula) -> Formula:
    """The same formula, where a target's gradient is another."""
    return replace(formula, name=f"in value alone {formula.name}")


def _runs(operation: Operation, row: Row, *call: Any) -> Computed:
    try:
        return _computed(operation, row, *call)
    except Exception as error:
        raise DoesNotRunError(f"{row.name}: {error}") from error


def _computed(
    operation: Operation, row: Row, arrays: Values, options: Mapping[str, Any], cotangents: Values | None
) -> Computed:
    """Outputs and gradients of the specification with a row changed, as `Formula.compute` returns them.

    Where the row changes the value, the gradient is that of the changed value, by the tape: the written-out backward
    pass would not follow it.
    """
    options = {name: option for name, option in options.items() if name not in (ACCUMULATION, DTYPES)}
    copied = {name: np.array(x) for name, x in arrays.items()}
    outputs = _outputs(operation, copied, options, row)
    if cotangents is None:
        return outputs
    if _equal(outputs, _outputs(operation, copied, options)):
        function = changed(row).function(operation.backward_name)
        with np.errstate(all="ignore"):
            found = operation.differentiate(function, copied, options, cotangents)
        return outputs | {f"gradient of {name}": x for name, x in found.items() if x is not None}
    given = {name: traced.made(x.copy()) if x.dtype.kind == "f" else x for name, x in arrays.items()}
    specification = changed(row)
    with traced.tracing(specification.modules):
        results = operation.call(specification.function(operation.name), given, options)
    return outputs | {f"gradient of {name}": x for name, x in traced.gradients(results, cotangents, given).items()}


def _version(
    operation: Operation,
    version: Callable[[], Specification],
    arrays: Values,
    options: Mapping[str, Any],
    cotangents: Values | None,
) -> Computed:
    """Outputs and gradients of a stated recurrence with a fault."""
    assert operation.stated is not None
    stated, specification = operation.stated.recurrence, version()
    options = {name: option for name, option in options.items() if name in stated.options}
    with np.errstate(all="ignore"):
        outputs = stated.called(specification, arrays, options)
    if cotangents is None:
        return outputs
    gradients = oracle.by_tape(stated, specification, arrays, options, cotangents)
    return outputs | {f"gradient of {name}": x for name, x in gradients.items()}


def _outputs(operation: Operation, arrays: Values, options: Mapping[str, Any], *rows: Row) -> Computed:
    with np.errstate(all="ignore"):
        return operation.call(changed(*rows).function(operation.name), arrays, options)


def _equal(x: Computed, y: Computed) -> bool:
    return all(np.array_equal(x[name], y[name], equal_nan=True) for name in y)
