"""Features of calls of `mlstm` and `mlstm_step`."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from conformance.cases import MLSTMCase, without_states
from conformance.cases._gates import ABOVE, ABOVE_64, AT_FLOOR, HUGE_GATES, LARGEST_M, SHUT, huge, large
from conformance.cases._gates import INFINITE_GATES as INFINITE
from conformance.cases._gates import LARGE_GATES as LARGE
from conformance.features import calls
from conformance.features.feature import Feature, of_field, removed, restored

CHUNK = 64
"""The chunk length that is assumed if a call names none: most kernels process 64 steps or fewer at a time."""


@lru_cache(maxsize=512)
def _values(case: MLSTMCase) -> dict[str, np.ndarray]:
    return {name: array.values for name, array in case.arrays("float64").items()}


@lru_cache(maxsize=512)
def _above(case: MLSTMCase) -> tuple[bool, bool]:
    """Whether |n·q̂| is above its floor at any step, and whether it is at its floor at any."""
    values = _values(case)
    if case.lengths is not None:
        values = {name: x[None] if name in "qkvif" else x for name, x in values.items()}
    nu, floor = case.normaliser(values)
    return bool((nu > floor).any()), bool((nu <= floor).any())


def chunk(case: MLSTMCase) -> int:
    return case.chunk_size or CHUNK


def _exceeds(x: np.ndarray) -> bool:
    return bool((np.isfinite(x) & (x > LARGEST_M - 2)).any())


SEEDS = 40
"""Number of seeds that are tried until a small call has a property that depends on its drawn gates."""


def _gates(name: str, sentence: str, phrase: str, found: Callable[[dict], Any], regime: str) -> Feature:
    """A property of the gates; if every other property is removed, a case has only this one."""

    def present(case: MLSTMCase) -> bool:
        return bool(np.any(found(_values(case))))

    def added(case: MLSTMCase) -> MLSTMCase:
        others = tuple(dict.fromkeys((*case.removed, HUGE_GATES, *INFINITE, *LARGE, ABOVE_64)))
        others = tuple(each for each in others if name != ABOVE_64 or each != "large input gates")
        alone = restored(replace(case, gates=regime, removed=others), name)
        seeds = (replace(alone, seed=case.seed + 1000 * number) for number in range(SEEDS))
        return next((other for other in seeds if present(other)), alone)

    return Feature(
        name=name,
        sentence=sentence,
        phrase=phrase,
        present=present,
        without=removed(name),
        added=added,
        of_values=True,
    )


HUGE_FORGET_GATES = _gates(
    HUGE_GATES,
    "some finite forget preactivation is beyond ±1e6: a hard reset too, and in a sum it hides all other log gates",
    "where a finite forget gate is as low as -1e30",
    lambda values: huge(values["f"]),
    SHUT,
)

INFINITE_GATES = (
    _gates(
        "forget gates of -inf",
        "some forget preactivation is −∞, a hard reset that empties the memory",
        "where a forget gate is minus infinite (a hard reset)",
        lambda values: np.isneginf(values["f"]),
        "resets",
    ),
    _gates(
        "forget gates of +inf",
        "some forget preactivation is +∞, so that the memory does not decay",
        "where a forget gate is plus infinite",
        lambda values: np.isposinf(values["f"]),
        "resets",
    ),
    _gates(
        "input gates of -inf",
        "some input preactivation is −∞, so that nothing is written",
        "where an input gate is minus infinite",
        lambda values: np.isneginf(values["i"]),
        "resets",
    ),
)

LARGE_GATES = (
    _gates(
        "large forget gates",
        "some finite forget preactivation is beyond ±20",
        "where a finite forget gate is large",
        lambda values: large(values["f"]),
        "saturated",
    ),
    _gates(
        "large input gates",
        "some finite input preactivation, or the initial m, is beyond ±20",
        "where an input gate is large",
        lambda values: large(values["i"]).any() or large(values.get("m0", np.zeros(1))).any(),
        "large m",
    ),
    replace(
        _gates(
            ABOVE_64,
            "the stabiliser exceeds 64, where the normaliser's floor exp(−min(m, 64)) stops falling",
            "where m is above 64",
            lambda values: _exceeds(values["i"]) or _exceeds(values.get("m0", np.zeros(1))),
            "large m",
        ),
        contract=True,
    ),
)

NORMALISER = (
    Feature(
        name=ABOVE,
        sentence="at some step |n·q̂| exceeds exp(−min(m, 64)), so that h is divided by it",
        phrase="wherever |n·q̂| is above its floor",
        present=lambda case: _above(case)[0],
        without=removed(ABOVE),
        added=lambda case: removed(AT_FLOOR)(restored(case, ABOVE)),
        of_values=True,
    ),
    Feature(
        name=AT_FLOOR,
        sentence="at some step |n·q̂| is at most exp(−min(m, 64)), its floor, so that h is divided by the floor",
        phrase="wherever |n·q̂| is at its floor",
        present=lambda case: _above(case)[1],
        without=removed(AT_FLOOR),
        added=lambda case: restored(case, AT_FLOOR),
        of_values=True,
    ),
)

STATE = (
    calls.initial_state("none", "random"),
    Feature(
        name="empty initial memory",
        sentence="the initial state is the empty memory C = n = 0, m = −∞",
        phrase="where the initial memory is empty (m = −∞)",
        present=lambda case: case.state == "empty",
        without=lambda case: replace(case, state="random"),
        added=lambda case: replace(case, state="empty"),
    ),
)

FINAL_STATE = of_field(
    "return_state",
    False,
    True,
    name="final state",
    sentence="the call returns its final state",
    phrase="where the final state is returned",
)

STATE_COTANGENTS_IF_RETURNED = replace(
    calls.STATE_COTANGENTS,
    present=lambda case: case.return_state and case.cotangents != "output only",
    added=lambda case: replace(case, cotangents="dense", return_state=True),
)

CHUNKED = "S not a multiple of the chunk"
MULTIPLES = (
    calls.not_multiple(4, "S not a multiple of 16", CHUNKED),
    calls.not_multiple(16, CHUNKED),
    replace(
        calls.not_multiple(CHUNK, block=chunk),
        name=CHUNKED,
        sentence="the chunk size, or 64 where none is given, does not divide the number of steps",
        phrase="where the chunk size does not divide S",
    ),
)

SEVERAL_CHUNKS = calls.several_blocks(
    "several chunks",
    "some sequence has more steps than the chunk size, or 64 where none is given",
    "where a sequence has several chunks",
    chunk,
)

SIZES = (
    calls.NO_STEPS,
    calls.NO_SEQUENCES,
    calls.SEVERAL_STEPS,
    *MULTIPLES,
    SEVERAL_CHUNKS,
    calls.SEVERAL_SEQUENCES,
    calls.SEVERAL_HEADS,
    Feature(
        name="uneven head dims",
        sentence="K or V is not a multiple of 16",
        present=lambda case: bool(case.K % calls.MULTIPLE or case.V % calls.MULTIPLE),
        without=lambda case: replace(
            case, K=-(-case.K // calls.MULTIPLE) * calls.MULTIPLE, V=-(-case.V // calls.MULTIPLE) * calls.MULTIPLE
        ),
        added=lambda case: replace(case, K=5, V=3),
        of_sizes=True,
        letters=("K", "V"),
    ),
    *calls.above("K"),
    *calls.above("V"),
    Feature(
        name="K differs from V",
        sentence="keys and values have different head dims",
        phrase="where K differs from V",
        present=lambda case: case.K != case.V,
        without=lambda case: replace(case, K=max(case.K, case.V), V=max(case.K, case.V)),
        added=lambda case: replace(case, V=2 * case.K),
        of_sizes=True,
    ),
)

OPTIONS = (
    *calls.PACKING,
    of_field(
        "chunk_size",
        None,
        16,
        name="chunk_size",
        sentence="chunk_size is given",
        letters=("chunk_size",),
    ),
)

EPS = of_field("eps", 0.0, 1e-3, name="eps", contract=True, sentence="eps is above 0")

ARRAYS = (
    of_field(
        "wide_gates",
        False,
        True,
        name="gates wider than values",
        sentence="the gates are float32, the values have 16 bits",
        phrase="where gates are float32 and values have 16 bits",
    ),
    calls.LAYOUT,
    calls.scaled("keys and values", 4.0),
    calls.SCALED_COTANGENTS,
)

MLSTM = (
    *NORMALISER,
    *STATE,
    replace(FINAL_STATE, without=without_states),
    STATE_COTANGENTS_IF_RETURNED,
    *INFINITE_GATES,
    HUGE_FORGET_GATES,
    *LARGE_GATES,
    *SIZES,
    *OPTIONS,
    EPS,
    *ARRAYS,
)

_LENGTHS = (calls.NO_STEPS, calls.SEVERAL_STEPS, *MULTIPLES, SEVERAL_CHUNKS)
MLSTM_STEP = tuple(
    feature for feature in MLSTM if feature not in (*OPTIONS, *_LENGTHS) and feature.name != FINAL_STATE.name
)
"""A step always has a state (zeros if the case gives none), so ``initial state`` means a state other than zeros."""


def plain_mlstm(seed: int) -> MLSTMCase:
    """The plainest call: one chunk of 64 steps, moderate gates, |n·q̂| at its floor, no states, head dims of 16."""
    return MLSTMCase(1, CHUNK, 1, 16, 16, cotangents="output only", removed=(ABOVE,), seed=seed, return_state=False)


def plain_mlstm_step(seed: int) -> MLSTMCase:
    """The plainest step: from an empty start, and otherwise as in `plain_mlstm`."""
    return replace(plain_mlstm(seed), S=1, return_state=True)


def rich_mlstm(seed: int) -> MLSTMCase:
    """A small call with states, several sequences and heads, and |n·q̂| on both sides of its floor."""
    return MLSTMCase(2, 7, 2, 3, 2, state="random", held=0.3, seed=seed)


def rich_mlstm_step(seed: int) -> MLSTMCase:
    return replace(rich_mlstm(seed), B=3, S=1, held=0.0)
