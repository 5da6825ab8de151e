"""The formulas that a target may compute instead of an operation, alone and two at once."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from conformance.formulas import decay, gru, layouts, mlstm, slstm
from conformance.formulas.formula import Forms, Formula
from conformance.operations import Operation


@dataclass(frozen=True, kw_only=True)
class _Known:
    """The known formulas of an operation.

    Attributes:
        formulas: all of them, given the chunk size of a call.
        combined: two of them at once; None if that has no meaning.
        dropping: the formula that drops a partial chunk of this many steps in sequences of more steps than another
            number.
        clamped: the formula with log gates of at least a number.
    """

    formulas: Callable[[int | None], tuple[Formula, ...]]
    combined: Callable[[Formula, Formula], Formula | None] = lambda first, second: None
    dropping: Callable[[int, int], Formula] | None = None
    clamped: Callable[[float], Formula] | None = None


def _of_step(forms: Forms, of_least: Callable[[float], Formula]) -> _Known:
    return _Known(
        formulas=partial(layouts.step_formulas, forms),
        combined=partial(layouts.step_pair, forms),
        clamped=lambda least: layouts.for_step(of_least(least)),
    )


_FORMULAS = {
    "causal_forget_matrix": _Known(formulas=partial(decay.formulas, "causal_forget_matrix")),
    "dtilde_matrix": _Known(formulas=partial(decay.formulas, "dtilde_matrix")),
    "mlstm": _Known(
        formulas=mlstm.formulas, combined=mlstm.combined, dropping=mlstm.FORMS.dropping, clamped=mlstm.of_least
    ),
    "mlstm_step": _of_step(mlstm.FORMS, mlstm.of_least),
    "fwbw": _Known(
        formulas=layouts.fwbw_formulas,
        combined=layouts.fwbw_pair,
        dropping=lambda chunk, above: layouts.for_fwbw(mlstm.FORMS.dropping(chunk, above)),
        clamped=lambda least: layouts.for_fwbw(mlstm.of_least(least)),
    ),
    "gru": _Known(formulas=gru.formulas, combined=gru.combined, dropping=gru.FORMS.dropping),
    "slstm": _Known(
        formulas=slstm.formulas, combined=slstm.combined, dropping=slstm.FORMS.dropping, clamped=slstm.of_least
    ),
    "slstm_step": _of_step(slstm.FORMS, slstm.of_least),
}


def formulas_of(operation: Operation, chunk_size: int | None = None) -> tuple[Formula, ...]:
    """The known formulas of an operation for calls with a chunk size."""
    return _FORMULAS[operation.about].formulas(chunk_size) if operation.about in _FORMULAS else ()


def ranged(
    operation: Operation, *, above: int | None = None, factor: int | None = None, bound: float | None = None
) -> list[Formula]:
    """The formulas that differ from the definition for some sizes, or beyond a gate, alone.

    Args:
        above, factor: the number of steps above which, and that whose multiples are right.
        bound: the forget gate below which they differ.
    """
    known = _FORMULAS.get(operation.about)
    found = []
    if known is not None and known.dropping is not None and factor is not None:
        found.append(known.dropping(factor, above or 0))
    if known is not None and known.clamped is not None and bound is not None and bound < 0:
        found.append(known.clamped(bound))
    return found


_DROPPING = re.compile(r"\(chunks of (\d+)\) in sequences of more than (\d+) steps")
_CLAMPED = re.compile(r"clamped at −([\d.]+)$")


def _ranged_of_name(operation: Operation, name: str) -> list[Formula]:
    if (said := _DROPPING.search(name)) is not None:
        return ranged(operation, factor=int(said[1]), above=int(said[2]))
    if (said := _CLAMPED.search(name)) is not None:
        return ranged(operation, bound=-float(said[1]))
    return []


def formula_named(operation: Operation, name: str, chunk_size: int | None = None) -> Formula | None:
    """A known formula, a pair of formulas, or a pair with a gradient of its own, by its name."""
    found = (*formulas_of(operation, chunk_size), *_ranged_of_name(operation, name))
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
    both = (_FORMULAS[operation.about].combined(first, second) for first, second in formulas)
    return (formula for formula in both if formula is not None)
