"""The rows of an operation as formulas: what the specification computes with one line changed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from conformance import oracle
from conformance.operations import Operation
from conformance.rows import ROWS, families, sizes, taped
from conformance.rows.row import Row
from conformance.specification import traced
from conformance.specification.changed import Specification, changed

Values = Mapping[str, np.ndarray]
Computed = dict[str, np.ndarray]


class DoesNotRunError(Exception):
    """The specification with a row changed raises on this call, or does what the tape cannot follow."""


@dataclass(frozen=True, kw_only=True)
class Formula:
    """A function that differs from the definition.

    Attributes:
        name: the difference, in words that follow "equals".
        function: ``(arrays, options, cotangents, computing) → outputs`` and, where there are cotangents, gradients
            under ``gradient of q``. Arrays and options are those of a call; ``computing`` is the dtype in which the
            target computes.
        changes_value: whether outputs may differ from the definition's; otherwise only gradients do.
        rounds: whether it only loses digits, so that a target with the same formula is close to it but not equal.
    """

    name: str
    function: Callable[[Values, Mapping[str, Any], Values | None, str], Computed]
    changes_value: bool = True
    rounds: bool = False

    def compute(
        self, arrays: Values, options: Mapping[str, Any], cotangents: Values | None, computing: str = "float32"
    ) -> Computed:
        """What the function returns.

        Raises:
            DoesNotRunError: it cannot be computed on this call.
        """
        try:
            return self.function(arrays, options, cotangents, computing)
        except Exception as error:
            raise DoesNotRunError(f"{self.name}: {error}") from error


CHECKS = ("arguments.py", "_call.py")
"""Modules whose rows change what is refused, and no answer."""


def formulas_of(operation: Operation, chosen: tuple[Row, ...] = ()) -> Iterator[Formula]:
    """The formulas of an operation.

    The gradient of a row that changes the value is that of the changed value by the tape, or, in a second formula of
    the same name, what the written-out backward pass of the changed specification gives: a target may have one like it.

    Rows that begin with a size are left out: at what size a fault begins is found by bisection.

    Args:
        chosen: if there are any, these rows alone, not those of the operation.
    """
    if operation.stated is not None and not chosen:
        for fault, version in operation.stated.recurrence.wrong.items():
            yield Formula(name=f"the recurrence with a fault: {fault}", function=partial(_stated, operation, version))
    for row in chosen or _rows_of(operation):
        for by_tape in (row.taped,) if row.of_gradient else (True,) if row.rounds else (True, False):
            yield Formula(
                name=f"the specification with a fault: {row.name}",
                function=partial(_computed, operation, row, by_tape),
                changes_value=not row.of_gradient,
                rounds=row.rounds,
            )
    if not chosen and (operation.stated is None or operation.stated.recurrence.gradient_options):
        yield Formula(
            name="the gradient of the forward pass as automatic differentiation gives it, without what the contract "
            "decides otherwise",
            function=partial(_computed, operation, None, True),
            changes_value=False,
        )


def _rows_of(operation: Operation) -> list[Row]:
    """The rows of an operation; of one step, those of the recurrence too, where they are in what both call."""
    whole = operation.about.removesuffix("_step")
    rows = [row for row in dict.fromkeys((*ROWS, *taped.ROWS, *families.USUAL)) if row.module not in CHECKS]
    own = [row for row in rows if row.op == operation.about and row not in sizes.ROWS]
    if whole == operation.about:
        return own
    names = {row.name for row in own}
    shared = (row for row in rows if row.op == whole and row.function.startswith("_"))
    return [*own, *(row for row in shared if row.name not in names)]


def in_value(formula: Formula) -> Formula:
    """The same formula, where a target's gradient is another."""
    return replace(formula, name=f"in value alone {formula.name}")


def _computed(
    operation: Operation,
    row: Row | None,
    by_tape: bool,
    arrays: Values,
    options: Mapping[str, Any],
    cotangents: Values | None,
    computing: str,
) -> Computed:
    """Outputs and gradients of the specification with a row changed; of None, of the definition by the tape.

    Args:
        by_tape: whether the gradient is the tape's, not that of the written-out backward pass.
    """
    row = row if row is None or not row.rounds else replace(row, by=row.by.replace("np.float32", f"np.{computing}"))
    rows = () if row is None else (row,)
    # The value does not depend on chunks. A row that is about them shows where there are some.
    plain = {name: option for name, option in options.items() if name != "chunk_size"}
    untaped = () if row is None or row.taped else (row,)
    outputs = _outputs(operation, arrays, plain, *untaped)
    if options.get("chunk_size") is not None and _equal(outputs, _outputs(operation, arrays, plain)):
        chunked = _outputs(operation, arrays, options, *untaped)
        if not _equal(chunked, _outputs(operation, arrays, options)):
            plain, outputs = options, chunked
    if cotangents is None:
        return outputs
    if not by_tape:
        function = changed(*rows).function(operation.backward_name)
        with np.errstate(all="ignore"):
            found = operation.differentiate(function, _copied(arrays), plain, _copied(cotangents))
        return outputs | {f"gradient of {name}": x for name, x in found.items() if x is not None}
    given = {name: traced.made(x.copy()) if x.dtype.kind == "f" else x for name, x in arrays.items()}
    clipped = row is not None and options.get("gradient_clipping") is not None and operation.about in taped.CLIPPED
    specification = changed(*rows, *((taped.CLIPPED[operation.about],) if clipped else ()))
    with traced.tracing(specification.modules):
        results = operation.call(specification.function(operation.name), given, plain)
    return outputs | {f"gradient of {name}": x for name, x in traced.gradients(results, cotangents, given).items()}


def _stated(
    operation: Operation,
    version: Callable[[], Specification],
    arrays: Values,
    options: Mapping[str, Any],
    cotangents: Values | None,
    computing: str,
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
        return operation.call(changed(*rows).function(operation.name), _copied(arrays), options)


def _copied(arrays: Values) -> Computed:
    """Copies of arrays, because some rows overwrite what they are given."""
    return {name: x.copy() for name, x in arrays.items()}


def _equal(x: Computed, y: Computed) -> bool:
    return all(np.array_equal(x[name], y[name], equal_nan=True) for name in y)
