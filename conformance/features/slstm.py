"""Features of calls of `slstm` and `slstm_step`."""

from dataclasses import replace

from conformance.cases import SLSTMCase, without_states
from conformance.features.calls import (
    CLIPPING,
    LAYOUT,
    NO_SEQUENCES,
    NO_STEPS,
    PACKING,
    SEVERAL_HEADS,
    SEVERAL_SEQUENCES,
    SEVERAL_STEPS,
    UNEVEN_HEAD_DIMS,
    not_multiple,
    scaled,
    several_blocks,
)
from conformance.features.feature import of_field
from conformance.features.mlstm import (
    CHUNK,
    FINAL_STATE,
    HUGE_FORGET_GATES,
    INFINITE_GATES,
    LARGE_GATES,
    STATE,
    STATE_COTANGENTS_IF_RETURNED,
)

_LENGTHS = (
    NO_STEPS,
    SEVERAL_STEPS,
    not_multiple(4, "S not a multiple of 16", "S not a multiple of 64"),
    not_multiple(16, "S not a multiple of 64"),
    not_multiple(CHUNK),
    several_blocks("S above 64", "some sequence has more than 64 steps", "where S is above 64", lambda case: CHUNK),
)
SLSTM = (
    *STATE,
    replace(FINAL_STATE, without=without_states),
    STATE_COTANGENTS_IF_RETURNED,
    replace(
        of_field("forget_gate", None, "exp", name="exponential forget gate", sentence="the forget gate is exponential"),
        present=lambda case: case.exponential,
    ),
    *INFINITE_GATES,
    HUGE_FORGET_GATES,
    *(feature for feature in LARGE_GATES if not feature.contract),
    CLIPPING,
    *_LENGTHS,
    NO_SEQUENCES,
    SEVERAL_SEQUENCES,
    SEVERAL_HEADS,
    UNEVEN_HEAD_DIMS,
    *PACKING,
    LAYOUT,
    scaled("z and o", 2.0),
)

SLSTM_STEP = tuple(
    feature for feature in SLSTM if feature not in (*_LENGTHS, *PACKING, CLIPPING) and feature.name != FINAL_STATE.name
)


def plain_slstm(seed: int) -> SLSTMCase:
    """The plainest call: one sequence of 64 steps, one head of 16 units, no states, moderate gates."""
    return SLSTMCase(1, CHUNK, 1, 16, cotangents="output only", seed=seed, return_state=False)


def plain_slstm_step(seed: int) -> SLSTMCase:
    return replace(plain_slstm(seed), S=1, return_state=True)


def rich_slstm(seed: int) -> SLSTMCase:
    """A small call with states, several sequences and heads, and clipping that has an effect."""
    return SLSTMCase(2, 7, 2, 3, state="random", held=0.3, clipping=0.1, seed=seed)


def rich_slstm_step(seed: int) -> SLSTMCase:
    return replace(rich_slstm(seed), B=3, S=1, held=0.0, clipping=None)
