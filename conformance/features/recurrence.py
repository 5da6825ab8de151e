"""Features of calls of a stated recurrence."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from conformance.cases import Drawn, RecurrenceCase
from conformance.cases._gates import large
from conformance.cases._recurrence import OPTION
from conformance.features import calls
from conformance.features.feature import Feature, removed, restored


@lru_cache(maxsize=512)
def _gates(case: RecurrenceCase) -> np.ndarray:
    stated, arrays = case._stated(), case.arrays("float64")
    gates = [name for name, given in stated.arguments.items() if given.role in ("gate", "log decay")]
    return np.concatenate([np.zeros(0), *(arrays[name].values.ravel() for name in gates if name in arrays)])


def _extreme(case: RecurrenceCase, kept: str, other: str) -> RecurrenceCase:
    return removed(other)(restored(case, kept, gates="extreme"))


_OF_GATES = (
    Feature(
        name="infinite gates",
        sentence="some gate or log decay is infinite",
        phrase="where a gate or a log decay is infinite",
        present=lambda case: bool(np.isinf(_gates(case)).any()),
        without=removed("infinite gates"),
        added=lambda case: _extreme(case, "infinite gates", "large gates"),
        of_values=True,
    ),
    Feature(
        name="large gates",
        sentence="some finite gate or log decay is beyond ±20",
        phrase="where a finite gate or log decay is beyond ±20",
        present=lambda case: bool(large(_gates(case)).any()),
        without=removed("large gates"),
        added=lambda case: _extreme(case, "large gates", "infinite gates"),
        of_values=True,
    ),
)


def features(drawn: Drawn) -> Iterator[Feature]:
    """The features of a recurrence's calls."""
    stated = drawn.stated
    if stated.states:
        yield calls.initial_state(False, True)
        yield calls.STATE_COTANGENTS
    if any(given.unbounded for given in stated.arguments.values()):
        yield from _OF_GATES
    yield from (calls.NO_STEPS, calls.NO_SEQUENCES, calls.SEVERAL_STEPS, *calls.BLOCKS, calls.SEVERAL_SEQUENCES)
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
            added=lambda case: replace(case, N=4, serves=drawn.serves),
            of_sizes=True,
        )
    for letter in drawn.features:
        yield _uneven(letter)
        yield from calls.above(letter)
    if stated.packs:
        yield calls.PACKING[0]
    for name, given in stated.arguments.items():
        if given.optional and given.role != "state":
            yield _left_out(name)
    for name, values in stated.options.items():
        for other in values[1:]:
            yield _option(name, values[0], other, several=len(values) > 2)
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


def plain(drawn: Drawn, seed: int) -> RecurrenceCase:
    """The plainest call: one sequence of 64 steps, one head, 16 features, no states, moderate gates."""
    sizes: dict[str, Any] = {letter: 1 if letter == "N" else calls.MULTIPLE for letter in drawn.letters}
    return drawn.kind(B=1, S=calls.BLOCK, **sizes, cotangents="output only", seed=seed)


def rich(drawn: Drawn, seed: int) -> RecurrenceCase:
    """A small call with states, several sequences and, where there are any, shared heads."""
    heads: dict[str, Any] = {"N": 4} if "N" in drawn.letters else {}
    return drawn.kind(B=2, S=7, state=bool(drawn.stated.states), seed=seed, serves=drawn.serves, **heads)
