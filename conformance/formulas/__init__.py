"""The formulas that a target may compute instead of an operation, alone and two at once."""

import itertools
import re
from collections.abc import Iterable, Iterator

from conformance.formulas import decay, gru, mlstm, slstm
from conformance.formulas.formula import Forms, Formula
from conformance.formulas.rows import formulas_of_rows, in_value
from conformance.operations import Operation

_FORMS: dict[str, Forms] = {
    "mlstm": mlstm.FORMS,
    "mlstm_step": mlstm.STEP_FORMS,
    "fwbw": mlstm.FWBW_FORMS,
    "gru": gru.FORMS,
    "slstm": slstm.FORMS,
    "slstm_step": slstm.STEP_FORMS,
}


def formulas_of(operation: Operation, chunk_size: int | None = None) -> tuple[Formula, ...]:
    """The known formulas of an operation for calls with a chunk size."""
    forms = _FORMS.get(operation.about)
    return decay.FORMULAS.get(operation.about, ()) if forms is None else forms.formulas(chunk_size)


def ranged(
    operation: Operation, *, above: int | None = None, factor: int | None = None, bound: float | None = None
) -> list[Formula]:
    """The formulas that differ from the definition for some sizes, or beyond a gate, alone.

    Args:
        above, factor: the number of steps above which, and that whose multiples are right.
        bound: the forget gate below which they differ.
    """
    forms = _FORMS.get(operation.about)
    return [] if forms is None else forms.ranged(above, factor, bound)


_DROPPING = re.compile(r"\(chunks of (\d+)\) in sequences of more than (\d+) steps")
_CLAMPED = re.compile(r"clamped at −([\d.]+)$")


def _ranged_of_name(operation: Operation, name: str) -> list[Formula]:
    if (said := _DROPPING.search(name)) is not None:
        return ranged(operation, factor=int(said[1]), above=int(said[2]))
    if (said := _CLAMPED.search(name)) is not None:
        return ranged(operation, bound=-float(said[1]))
    return []


def formula_named(operation: Operation, name: str, chunk_size: int | None = None) -> Formula | None:
    """A row, a known formula, a pair of formulas, or a pair with a gradient of its own, by its name."""
    for row in formulas_of_rows(operation):
        for each in (row, in_value(row)):
            if each.name == name:
                return each
    found = (*formulas_of(operation, chunk_size), *_ranged_of_name(operation, name))
    pairs = pairs_of(operation, itertools.permutations(found, 2))
    of_value = [formula for formula in found if formula.changes_value]
    of_gradient = [formula for formula in found if not formula.changes_value]
    both = pairs_of(operation, itertools.combinations(of_value, 2))
    several = itertools.chain(found, pairs, pairs_of(operation, itertools.product(both, of_gradient)))
    return next((formula for formula in several if formula.name == name), None)


def pairs_of(operation: Operation, formulas: Iterable[tuple[Formula, Formula]]) -> Iterator[Formula]:
    """Two formulas at once, for each pair that has a meaning."""
    forms = _FORMS.get(operation.about)
    several = ((first, second) for first, second in formulas if first.change and second.change)
    both = (None if forms is None else forms.combined(first, second) for first, second in several)
    return (formula for formula in both if formula is not None)
