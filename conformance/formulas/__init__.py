"""The formulas that a target may compute instead of an operation, alone and two at once."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from conformance.formulas import decay, gru, layouts, mlstm
from conformance.formulas.formula import Formula, no_pair
from conformance.operations import Operation

_FORMULAS: dict[
    str, tuple[Callable[[int | None], tuple[Formula, ...]], Callable[[Formula, Formula], Formula | None]]
] = {
    "causal_forget_matrix": (partial(decay.formulas, "causal_forget_matrix"), no_pair),
    "dtilde_matrix": (partial(decay.formulas, "dtilde_matrix"), no_pair),
    "mlstm": (mlstm.formulas, mlstm.combined),
    "mlstm_step": (layouts.step_formulas, layouts.step_pair),
    "fwbw": (layouts.fwbw_formulas, layouts.fwbw_pair),
    "gru": (gru.formulas, gru.combined),
}
"""By operation: its formulas, given the chunk size of a call, and two of them at once (None if that has no meaning)."""


def formulas_of(operation: Operation, chunk_size: int | None = None) -> tuple[Formula, ...]:
    """The known formulas of an operation for calls with a chunk size."""
    return _FORMULAS[operation.about][0](chunk_size) if operation.about in _FORMULAS else ()


def formula_named(operation: Operation, name: str, chunk_size: int | None = None) -> Formula | None:
    """A known formula, a pair of formulas, or a pair with a gradient of its own, by its name."""
    found = formulas_of(operation, chunk_size)
    pairs = pairs_of(operation, itertools.permutations(found, 2))
    of_value = [formula for formula in found if formula.changes_value]
    of_gradient = [formula for formula in found if not formula.changes_value]
    both = pairs_of(operation, itertools.combinations(of_value, 2))
    several = itertools.chain(found, pairs, pairs_of(operation, itertools.product(both, of_gradient)))
    return next((formula for formula in several if formula.name == name), None)


def pairs_of(operation: Operation, formulas: Iterable[tuple[Formula, Formula]]) -> Iterator[Formula]:
    """Two formulas at once, for each pair that has a meaning."""
    if operation.about not in _FORMULAS:
        return iter(())
    both = (_FORMULAS[operation.about][1](first, second) for first, second in formulas)
    return (formula for formula in both if formula is not None)
