"""Features of calls of `slstm` and `slstm_step`."""

from dataclasses import replace

from conformance.cases import SLSTMCase, without_states
from conformance.features import calls, mlstm
from conformance.features.feature import of_field

_LENGTHS = (calls.NO_STEPS, calls.SEVERAL_STEPS, *calls.BLOCKS)
SLSTM = (
    *mlstm.STATE,
    replace(mlstm.FINAL_STATE, without=without_states),
    mlstm.STATE_COTANGENTS_IF_RETURNED,
    replace(
        of_field("forget_gate", None, "exp", name="exponential forget gate", sentence="the forget gate is exponential"),
        present=lambda case: case.exponential,
    ),
    *mlstm.INFINITE_GATES,
    mlstm.HUGE_FORGET_GATES,
    *(feature for feature in mlstm.LARGE_GATES if not feature.contract),
    calls.CLIPPING,
    *_LENGTHS,
    calls.NO_SEQUENCES,
    calls.SEVERAL_SEQUENCES,
    calls.SEVERAL_HEADS,
    calls.UNEVEN_HEAD_DIMS,
    *calls.LARGE_H,
    *calls.PACKING,
    calls.LAYOUT,
    calls.scaled("z and o", 2.0),
    calls.SCALED_COTANGENTS,
)

SLSTM_STEP = tuple(
    feature
    for feature in SLSTM
    if feature not in (*_LENGTHS, *calls.PACKING, calls.CLIPPING) and feature.name != mlstm.FINAL_STATE.name
)


def plain_slstm(seed: int) -> SLSTMCase:
    """The plainest call: one sequence of 64 steps, one head of 16 units, no states, moderate gates."""
    return SLSTMCase(1, mlstm.CHUNK, 1, 16, cotangents="output only", seed=seed, return_state=False)


def plain_slstm_step(seed: int) -> SLSTMCase:
    return replace(plain_slstm(seed), S=1, return_state=True)


def rich_slstm(seed: int) -> SLSTMCase:
    """A small call with states, several sequences and heads, and clipping that has an effect."""
    return SLSTMCase(2, 7, 2, 3, state="random", held=0.3, with_gradient_clipping=0.1, seed=seed)


def rich_slstm_step(seed: int) -> SLSTMCase:
    return replace(rich_slstm(seed), B=3, S=1, held=0.0, with_gradient_clipping=None)
