"""Features of calls of `gru`."""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from conformance.cases import GRUCase
from conformance.features import calls
from conformance.features.feature import Feature

GATES = ("forget_input", "reset_input")


@lru_cache(maxsize=512)
def _gates(case: GRUCase) -> np.ndarray:
    arrays = case.arrays("float64")
    return np.concatenate([arrays[name].values.ravel() for name in GATES])


GRU = (
    calls.initial_state(False, True),
    calls.STATE_COTANGENTS,
    *calls.of_gates(_gates, "preactivation of the forget or the reset gate", "gate"),
    calls.CLIPPING,
    calls.NO_STEPS,
    calls.NO_SEQUENCES,
    calls.SEVERAL_STEPS,
    *calls.BLOCKS,
    calls.SEVERAL_SEQUENCES,
    replace(
        calls.SEVERAL_HEADS,
        without=lambda case: replace(case, heads=(1,) * 6),
        added=lambda case: case if case.N > 1 else replace(case, heads=(2,) * 6),
    ),
    Feature(
        name="grouped heads",
        sentence="inputs and weights have different numbers of heads, so that one head serves several",
        phrase="where heads are shared (the six head counts differ)",
        present=lambda case: len(set(case.heads)) > 1,
        without=lambda case: replace(case, heads=(case.N,) * 6),
        added=lambda case: replace(case, heads=(4, 2, 1, 4, 2, 2)),
        of_sizes=True,
    ),
    calls.UNEVEN_HEAD_DIMS,
    *calls.LARGE_H,
    *calls.PACKING,
    calls.LAYOUT,
    calls.scaled("inputs and weights", 2.0),
    calls.SCALED_COTANGENTS,
)


def plain_gru(seed: int) -> GRUCase:
    """The plainest call: one sequence of 64 steps, one head of 16 units, no state, moderate gates."""
    return GRUCase(1, calls.BLOCK, 16, (1, 1, 1, 1, 1, 1), cotangents="output only", seed=seed)


def rich_gru(seed: int) -> GRUCase:
    """A small call with a state, several sequences, shared heads and clipping that has an effect."""
    return GRUCase(2, 7, 3, (4, 2, 1, 4, 2, 2), state=True, clipping=0.1, seed=seed)
