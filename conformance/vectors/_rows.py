"""Which calls a set of test vectors holds, as data.

The laws draw their cases; a set is read by people, so its cases are listed: every length that may trip a program (0, 1,
odd, prime, past the end of a chunk, over a thousand), every regime of gates, every kind of state and of option. Their
values come from the seed. Rows stand with the most ordinary first, for whoever takes only a few.
"""

import zlib
from dataclasses import replace
from typing import Any

from conformance.cases import HEADS, LONG_STEPS, FwbwCase, GRUCase, MLSTMCase, SumCase

_ONE = (1, 1, 1, 1, 1, 1)

_SCANS = (
    SumCase((2, 3), 5),
    SumCase((), 1),
    SumCase((2,), 33, "wide"),
    SumCase((3,), 0),
    SumCase((), 97, "same sign"),
    SumCase((1, 1, 2), 64),
    SumCase((), LONG_STEPS),
    SumCase((), LONG_STEPS, "same sign"),
)

_DECAYS = (
    SumCase((2, 3), 5),
    SumCase((), 1),
    SumCase((2,), 7, "resets"),
    SumCase((3,), 0),
    SumCase((2,), 13, "extreme"),
    SumCase((), 31, "wide"),
    SumCase((1, 2), 2),
    SumCase((), 65, "resets"),
)

_MLSTM = (
    MLSTMCase(2, 5, 2, 3, 2, state="random"),
    MLSTMCase(1, 1, 1, 1, 1),
    MLSTMCase(1, 65, 2, 5, 3, state="random", gates="mixed", chunk_size=16),
    MLSTMCase(3, 0, 2, 3, 2, lengths=(4, 0, 13), state="random"),
    MLSTMCase(2, 7, 2, 3, 2, gates="extreme", state="random"),
    MLSTMCase(2, 0, 2, 3, 2, state="random"),
    MLSTMCase(2, 13, 1, 2, 3, gates="resets", wide_gates=True),
    MLSTMCase(2, 7, 1, 2, 2, gates="closed", state="empty"),
    MLSTMCase(1, 33, 2, 4, 1, gates="large m", state="random"),
    MLSTMCase(1, 31, 1, 8, 5, gates="saturated", scale=4.0, cotangents="one step"),
    MLSTMCase(2, 5, 1, 3, 2, gates="low m", eps=1e-3, state="random"),
    MLSTMCase(3, 0, 1, 2, 3, lengths=(0, 33, 1), gates="mixed", cotangents="state only", wide_gates=True),
    MLSTMCase(1, LONG_STEPS, 1, 2, 2, gates="remembering", state="random"),
)

_STEP = (
    MLSTMCase(2, 1, 3, 3, 2, state="random"),
    MLSTMCase(1, 1, 1, 1, 1, state="random"),
    MLSTMCase(3, 1, 4, 2, 2, gates="extreme", state="random"),
    MLSTMCase(2, 1, 2, 5, 3, gates="large m", state="random"),
    MLSTMCase(3, 1, 2, 3, 1, gates="resets", state="random", wide_gates=True),
    MLSTMCase(3, 1, 2, 2, 2, gates="closed", state="empty"),
    MLSTMCase(2, 1, 2, 17, 11, gates="remembering", scale=4.0, state="random"),
    MLSTMCase(2, 1, 2, 3, 2, gates="low m", eps=1e-3, state="random", cotangents="state only"),
)


def _fwbw(inner: MLSTMCase, chunk_size: int | None, *keep: str, **fields: bool) -> FwbwCase:
    return FwbwCase(inner, chunk_size, use_initial_state=inner.state != "none", keep=keep, **fields)


_FWBW = (
    _fwbw(MLSTMCase(2, 5, 1, 3, 2, state="random"), 2, "keep_gates", return_state=True, stabilize_correctly=True),
    _fwbw(MLSTMCase(1, 1, 1, 1, 1), 512, "keep_gates"),
    _fwbw(MLSTMCase(2, 7, 1, 3, 2, state="random"), 7, "keep_G", "keep_M", return_state=True, flat_gates=False),
    _fwbw(MLSTMCase(1, 65, 1, 5, 3, gates="mixed"), 16, "keep_c", stabilize_correctly=True),
    _fwbw(MLSTMCase(2, 7, 1, 2, 2, gates="extreme", state="random"), 3, stabilize_correctly=True, return_state=True),
    _fwbw(MLSTMCase(2, 0, 1, 3, 2, state="random"), None, return_state=True, flat_gates=False),
    _fwbw(MLSTMCase(2, 13, 1, 2, 3, gates="resets", state="random", wide_gates=True), 4, return_state=True),
    _fwbw(MLSTMCase(1, 31, 1, 2, 2, gates="large m", state="random"), 8, return_state=True, stabilize_correctly=True),
    _fwbw(MLSTMCase(1, LONG_STEPS, 1, 2, 2, gates="remembering"), 64, "keep_gates", stabilize_correctly=True),
)

_GRU = (
    GRUCase(2, 5, 3, HEADS[0], state=True),
    GRUCase(1, 1, 1, _ONE),
    GRUCase(1, 33, 2, HEADS[2], state=True, clipping=0.1),
    GRUCase(3, 0, 2, HEADS[4], lengths=(4, 0, 13), state=True),
    GRUCase(2, 7, 2, HEADS[1], gates="extreme", state=True),
    GRUCase(2, 0, 3, HEADS[1], state=True, clipping=0.1),
    GRUCase(1, 31, 5, _ONE, gates="saturated", scale=2.0),
    GRUCase(2, 13, 2, HEADS[6], gates="closed", state=True, clipping=-0.5),
    GRUCase(3, 0, 2, HEADS[3], lengths=(0, 33, 1), gates="remembering", clipping=0.5),
    GRUCase(1, 65, 1, HEADS[1], gates="remembering", state=True, cotangents="one step"),
    GRUCase(2, 7, 3, HEADS[2], gates="small", scale=0.01, state=True, cotangents="state only"),
    GRUCase(1, LONG_STEPS, 2, (2, 1, 1, 2, 1, 1), gates="remembering", state=True),
)

ROWS: dict[str, tuple[Any, ...]] = {
    "rev_cumsum": _SCANS,
    "rev_cumsum_off": _SCANS,
    "causal_forget_matrix": _DECAYS,
    "dtilde_matrix": _DECAYS,
    "mlstm": _MLSTM,
    "mlstm_step": _STEP,
    "mlstm_fwbw_custom_grad": _FWBW,
    "gru": _GRU,
}


def case_of(operation: str, dtype: str, index: int, seed: int, max_steps: int, redrawn: int = 0) -> Any:
    """The case of that index: its row, at most ``max_steps`` long, with values of its own; rows come round again.

    Args:
        redrawn: how often its values were drawn before and would not do.
    """
    rows = ROWS[operation]
    salt = zlib.crc32(f"{seed}/{operation}/{dtype}/{index}/{redrawn}".encode())
    return _seeded(rows[index % len(rows)], salt, max_steps)


def _seeded(row: Any, seed: int, max_steps: int) -> Any:
    if isinstance(row, FwbwCase):
        return replace(row, inner=_seeded(row.inner, seed, max_steps))
    lengths = getattr(row, "lengths", None)
    if lengths is not None:
        return replace(row, seed=seed, lengths=tuple(min(length, max_steps) for length in lengths))
    return replace(row, seed=seed, S=min(row.S, max_steps))
