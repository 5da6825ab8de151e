"""One step of the mLSTM: `mlstm_step`. Its cases are sequences of one step; a step has no step axis."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from conformance import cases
from conformance.base.call import Call
from conformance.base.dtypes import Array
from conformance.cases import Limits, MLSTMCase
from conformance.operations._one_step import OneStep
from conformance.operations._operation import Operation
from conformance.operations._record import BACKEND, Option, StateTuple
from conformance.operations.mlstm import EXTREME_GATES, MLSTM
from reference.arguments import MLSTMState

ONE_STEP = OneStep(MLSTM)
STATES = MLSTM.state_arguments


def with_state(case: MLSTMCase, dtype: str) -> dict[str, Array]:
    """The arrays of a sequence with its initial state, or with the zeros that one left out stands for."""
    if case.state != "none":
        return case.arrays(dtype)
    arrays = replace(case, state="random").arrays(dtype)
    return arrays | {name: replace(arrays[name], values=0 * arrays[name].values) for name in STATES}


def _make_call(operation: str, case: MLSTMCase, dtype: str) -> Call:
    return Call(
        operation=operation,
        arrays=ONE_STEP.at(with_state(case, dtype), 0),
        options={"eps": case.eps} if case.eps else {},
        cotangents=ONE_STEP.at(case.cotangent_arrays(dtype), 0),
    )


def _one_step(limits: Limits, **fixed: Any) -> st.SearchStrategy:
    return cases.mlstm(limits, S=1, **fixed)


def _extremes(limits: Limits) -> st.SearchStrategy:
    return st.one_of(*(_one_step(limits, gates=gates) for gates in EXTREME_GATES))


_VECTOR_CASES = (
    MLSTMCase(2, 1, 3, 3, 2, state="random"),
    MLSTMCase(1, 1, 1, 1, 1, state="random"),
    MLSTMCase(3, 1, 4, 2, 2, gates="extreme", state="random"),
    MLSTMCase(2, 1, 2, 5, 3, gates="large m", state="random"),
    MLSTMCase(3, 1, 2, 3, 1, gates="resets", state="random", wide_gates=True),
    MLSTMCase(3, 1, 2, 2, 2, gates="closed", state="empty"),
    MLSTMCase(2, 1, 2, 17, 11, gates="remembering", scale=4.0, state="random"),
    MLSTMCase(2, 1, 2, 3, 2, gates="low m", eps=1e-3, state="random", cotangents="state only"),
)

MLSTM_STEP = Operation(
    name="mlstm_step",
    about="mlstm_step",
    helpers=("MLSTMState",),
    arguments=ONE_STEP.arguments,
    outputs=ONE_STEP.outputs,
    returns=MLSTM.returns,
    options=(Option(name="eps", default=0.0, refused={"a negative eps": -1.0}), BACKEND),
    state=StateTuple(name="state", type=MLSTMState, cotangent="dstate", passed="position"),
    cases={"dense": _one_step},
    make_call=_make_call,
    value=ONE_STEP.value,
    gradient=ONE_STEP.gradient,
    immaterial={"chunk_size": None, "room": None, "layout": "contiguous", "cut": 0.0},
    rows=(MLSTMCase(2, 1, 2, 3, 2, state="random", seed=3),),
    vector_cases=_VECTOR_CASES,
    never_0=("K",),
    extremes=_extremes,
    strata=("small",),
)

RECORDS = (MLSTM_STEP,)
