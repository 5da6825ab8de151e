"""The sLSTM: `slstm` over whole sequences, and one step of it, `slstm_step`, whose cases are sequences of one step."""

import math
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from conformance import cases, oracle
from conformance.base.dtypes import Array
from conformance.cases import Limits, SLSTMCase
from conformance.operations._one_step import OneStep
from conformance.operations._operation import Operation
from conformance.operations._record import BACKEND, MAX_SEQLEN, Argument, Option, Output, StateTuple
from conformance.operations.mlstm import EXTREME_GATES
from reference.arguments import SLSTMState


def _extremes(limits: Limits, **fixed: Any) -> st.SearchStrategy:
    return st.one_of(*(cases.slstm(limits, gates=gates, **fixed) for gates in EXTREME_GATES))


_VECTOR_CASES = (
    SLSTMCase(2, 5, 2, 3, state="random"),
    SLSTMCase(1, 1, 1, 1),
    SLSTMCase(1, 33, 2, 3, state="random", gates="mixed", forget_gate="exp"),
    SLSTMCase(3, 0, 2, 2, lengths=(4, 0, 13), state="random"),
    SLSTMCase(2, 7, 2, 3, gates="extreme", state="random"),
    SLSTMCase(2, 0, 2, 3, state="random"),
    SLSTMCase(2, 13, 1, 3, gates="resets", forget_gate="sigmoid"),
    SLSTMCase(2, 7, 1, 2, gates="closed", state="empty"),
    SLSTMCase(1, 65, 2, 2, gates="large m", state="random", with_gradient_clipping=0.1),
    SLSTMCase(1, 31, 1, 5, gates="saturated", scale=2.0, cotangents="one step"),
    SLSTMCase(2, 5, 1, 3, gates="low m", state="random", forget_gate="exp", with_gradient_clipping=-0.5),
    SLSTMCase(3, 0, 1, 3, lengths=(0, 33, 1), gates="changing", cotangents="state only"),
    SLSTMCase(2, 7, 3, 2, gates="small", scale=0.01, state="random"),
    SLSTMCase(1, cases.LONG_STEPS, 1, 2, gates="remembering", state="random"),
)
_STATES = {"c": "c0", "n": "n0", "m": "m0", "last_h": "h0"}

SLSTM = Operation(
    name="slstm",
    about="slstm",
    helpers=("SLSTMState",),
    arguments=(
        *(Argument(name=name, shape="B S N H") for name in "zifo"),
        *(Argument(name=f"weight_{name}", shape="N H H") for name in "zifo"),
        *(
            Argument(name=given, shape="B N H", role="state", passed="tuple", optional=True, continues=name)
            for name, given in _STATES.items()
        ),
        Argument(name="cu_seqlens", shape="B+1", role="index", passed="keyword", optional=True),
    ),
    outputs=(
        Output(name="h", shape="B S N H", cotangent="dh"),
        Output(name="c", shape="B N H", role="state", log_scale="m"),
        Output(name="n", shape="B N H", role="state", log_scale="m"),
        Output(name="m", shape="B N H", role="state"),
        Output(name="last_h", shape="B N H", role="state"),
    ),
    returns=("h", tuple(_STATES)),
    options=(
        Option(name="return_state", default=False, changes_value=False, portable=False),
        Option(
            name="forget_gate",
            default="sigmoid",
            refused={"an unknown forget gate": "exponential", "a number for the forget gate": 1},
        ),
        Option(
            name="gradient_clipping",
            refused={"a word for the clipping": "1", "a clipping of NaN": math.nan},
        ),
        MAX_SEQLEN,
        BACKEND,
    ),
    state=StateTuple(name="initial_state", type=SLSTMState, cotangent="dstate"),
    state_switch="return_state",
    usual=True,
    cases={
        "dense": cases.slstm,
        "packed": cases.packed_slstm,
        "packed gradient": lambda limits: cases.packed_slstm(limits, **{cases.CLIPPING: None}),
        "cut": cases.halved_slstm,
    },
    value=oracle.slstm,
    gradient=oracle.slstm_gradient,
    immaterial={"room": None, "layout": "contiguous", "cut": 0.0},
    rows=(
        SLSTMCase(2, 5, 2, 3, state="random", seed=7),
        SLSTMCase(3, 0, 2, 3, lengths=(3, 0, 4), state="random", seed=8),
    ),
    vector_cases=_VECTOR_CASES,
    extremes=_extremes,
)


def _with_state(case: SLSTMCase, dtype: str) -> dict[str, Array]:
    """The arrays of a sequence with its initial state: the empty one if it has none."""
    return replace(case, state="empty" if case.state == "none" else case.state).arrays(dtype)


_FORGET_GATE = Option(name="forget_gate", default="sigmoid", refused={"an unknown forget gate": "exponential"})
_FIXED: dict[str, Any] = {cases.CLIPPING: None, "return_state": True}
SLSTM_STEP = OneStep(SLSTM, (_FORGET_GATE,), _with_state).record(
    cases={
        "dense": lambda limits, **fixed: cases.slstm(limits, S=1, **_FIXED, **fixed),
        "steps": lambda limits: cases.slstm(limits, layout="contiguous", **_FIXED),
    },
    rows=(SLSTMCase(2, 1, 2, 3, state="random", seed=9),),
    vector_cases=(
        SLSTMCase(2, 1, 3, 3, state="random"),
        SLSTMCase(1, 1, 1, 1, state="random"),
        SLSTMCase(3, 1, 4, 2, gates="extreme", state="random"),
        SLSTMCase(2, 1, 2, 5, gates="large m", state="random", forget_gate="exp"),
        SLSTMCase(3, 1, 2, 3, gates="resets", state="empty"),
        SLSTMCase(2, 1, 2, 3, gates="low m", state="random", cotangents="state only"),
    ),
    extremes=lambda limits: _extremes(limits, S=1, **_FIXED),
)

RECORDS = (SLSTM, SLSTM_STEP)
