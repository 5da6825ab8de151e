"""Features of calls of a stated recurrence."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from conformance.cases import RecurrenceCase, RecurrenceCases, without_states
from conformance.cases._recurrence import OPTION
from conformance.features import calls, mlstm
from conformance.features.feature import Feature


@lru_cache(maxsize=512)
def _gates(case: RecurrenceCase) -> np.ndarray:
    stated, arrays = case._stated(), case.arrays("float64")
    gates = [name for name, given in stated.arguments.items() if given.gates]
    return np.concatenate([np.zeros(0), *(arrays[name].values.ravel() for name in gates if name in arrays)])


_EMPTY = Feature(
    name="empty initial memory",
    sentence="the initial states are those of an empty memory, as if none were given",
    phrase="where the initial memory is empty",
    present=lambda case: case.state and case.empty,
    without=lambda case: replace(case, empty=False),
    added=lambda case: replace(case, state=True, empty=True),
)


def features(cases: RecurrenceCases, of_step: Sequence[str] | None = None) -> Iterator[Feature]:
    """The features of a recurrence's calls, or of one step of it, which has these options and is given all arrays."""
    stated, whole = cases.recurrence, of_step is None
    if stated.states:
        yield from (calls.initial_state(False, True),) if whole else ()
        if any(given.empty for given in stated.arguments.values()):
            yield _EMPTY
        if stated.state_switch:
            yield from (replace(mlstm.FINAL_STATE, without=without_states),) if whole else ()
        yield mlstm.STATE_COTANGENTS_IF_RETURNED if stated.state_switch else calls.STATE_COTANGENTS
    if stated.stabilised:
        yield from (*mlstm.INFINITE_GATES, mlstm.HUGE_FORGET_GATES)
        yield from (feature for feature in mlstm.LARGE_GATES if not feature.contract)
    elif any(given.unbounded for given in stated.arguments.values()):
        roles = dict.fromkeys(given.role for given in stated.arguments.values() if given.gates)
        yield from calls.of_gates(_gates, " or ".join(roles), " or a ".join(roles))
    yield from (calls.NO_STEPS, calls.NO_SEQUENCES) if whole else (calls.NO_SEQUENCES,)
    yield from (calls.SEVERAL_STEPS, *calls.BLOCKS) if whole else ()
    yield calls.SEVERAL_SEQUENCES
    if any("N" in given.letters for given in stated.arguments.values()):
        yield calls.SEVERAL_HEADS
    if stated.grouped:
        ones = (1,) * len(stated.grouped)
        yield Feature(
            name="grouped heads",
            sentence="arrays have different numbers of heads, so that one head serves several",
            phrase="where heads are shared",
            present=lambda case: len({case.sizes[letter] for letter in (*stated.grouped, "N")}) > 1,
            without=lambda case: replace(case, serves=ones),
            added=lambda case: replace(case, N=4, serves=cases.serves),
            of_sizes=True,
        )
    for letter in cases.features:
        yield _uneven(letter)
        yield from calls.above(letter)
    if stated.packs and whole:
        yield calls.PACKING[0]
    for name, given in stated.arguments.items():
        if given.optional and given.role != "state" and whole:
            yield _left_out(name)
    for name in stated.options if of_step is None else of_step:
        default, *others = stated.options[name]
        if name == "gradient_clipping":
            yield calls.CLIPPING
            continue
        for other in others:
            yield _option(name, default, other, several=len(others) > 1)
    yield calls.LAYOUT
    yield calls.scaled("values", 2.0)
    yield calls.SCALED_COTANGENTS


def _uneven(letter: str) -> Feature:
    def even(case: Any) -> Any:
        return replace(case, **{letter: -(-getattr(case, letter) // calls.MULTIPLE) * calls.MULTIPLE})

    return Feature(
        name=f"{letter} not a multiple of 16",
        present=lambda case: bool(getattr(case, letter) % calls.MULTIPLE),
        without=even,
        added=lambda case: replace(case, **{letter: 5}),
        of_sizes=True,
        letters=(letter,),
        sentence=f"{letter} is not a multiple of {calls.MULTIPLE}",
    )


def _left_out(name: str) -> Feature:
    return Feature(
        name=f"no {name}",
        sentence=f"`{name}` is not given",
        present=lambda case: name in case.left_out,
        without=lambda case: replace(case, left_out=tuple(each for each in case.left_out if each != name)),
        added=lambda case: replace(case, left_out=(*case.left_out, name)),
    )


def _option(name: str, default: Any, other: Any, several: bool) -> Feature:
    field = OPTION + name
    return Feature(
        name=f"{name}={other!r}" if several else name,
        sentence=f"{name}={other!r} is given",
        present=lambda case: getattr(case, field) == other,
        without=lambda case: replace(case, **{field: default}),
        added=lambda case: replace(case, **{field: other}),
    )


def plain(cases: RecurrenceCases, seed: int, **fixed: Any) -> RecurrenceCase:
    """The plainest call: one sequence of 64 steps, one head, 16 features, no states, moderate gates."""
    sizes: dict[str, Any] = {letter: 1 if letter == "N" else calls.MULTIPLE for letter in cases.letters}
    fields: dict[str, Any] = {"B": 1, "S": calls.BLOCK, **sizes, "cotangents": "output only"}
    return cases.kind(**{**fields, "return_state": not cases.recurrence.state_switch, **fixed}, seed=seed)


def rich(cases: RecurrenceCases, seed: int, **fixed: Any) -> RecurrenceCase:
    """A small call with states, several sequences and, where there are any, shared heads."""
    heads: dict[str, Any] = {"N": 4} if "N" in cases.letters else {}
    stated = cases.recurrence
    fields: dict[str, Any] = {"B": 2, "S": 7, "state": bool(stated.states), "serves": cases.serves, **heads}
    return cases.kind(**{**fields, "held": 0.3 if stated.stabilised else 0.0, **fixed}, seed=seed)
