"""One step of the mLSTM: `mlstm_step`. Its cases are sequences of one step; a step has no step axis."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from conformance import cases, oracle
from conformance.base.call import Call
from conformance.base.dtypes import Array
from conformance.cases import Limits, MLSTMCase
from conformance.operations._operation import Operation
from conformance.operations._record import BACKEND, Option, Options, StateTuple
from conformance.operations.mlstm import EXTREME_GATES, MLSTM
from conformance.oracle import Values
from conformance.tolerance.budget import Expected, Precision
from reference.arguments import MLSTMState

STEPPED = (*"qkvif", "h")
STATES = MLSTM.state_arguments


def at_step(arrays: Mapping[str, Array], t: int) -> dict[str, Array]:
    """The arrays, or cotangents, of step ``t`` of a sequence."""
    return {name: replace(x, values=x.values[:, t]) if name in STEPPED else x for name, x in arrays.items()}


def with_state(case: MLSTMCase, dtype: str) -> dict[str, Array]:
    """The arrays of a sequence with its initial state, or with the zeros that one left out stands for."""
    if case.state != "none":
        return case.arrays(dtype)
    arrays = replace(case, state="random").arrays(dtype)
    return arrays | {name: replace(arrays[name], values=0 * arrays[name].values) for name in STATES}


def _make_call(operation: str, case: MLSTMCase, dtype: str) -> Call:
    return Call(
        operation=operation,
        arrays=at_step(with_state(case, dtype), 0),
        options={"eps": case.eps} if case.eps else {},
        cotangents=at_step(case.cotangent_arrays(dtype), 0),
    )


def _as_sequence(values: Values) -> Values:
    return {name: x[:, None] if name in STEPPED else x for name, x in values.items()}


def _of_step(expected: Expected) -> Expected:
    values, slack = (
        {name: x[:, 0] if name in STEPPED else x for name, x in of.items()} for of in (expected.values, expected.slack)
    )
    return replace(expected, values=values, slack=slack)


def _value(arrays: Values, options: Options, precision: Precision) -> Expected:
    return _of_step(oracle.mlstm(_as_sequence(arrays), options, precision))


def _gradient(arrays: Values, options: Options, cotangents: Values, precision: Precision) -> Expected:
    return _of_step(oracle.mlstm_gradient(_as_sequence(arrays), options, _as_sequence(cotangents), precision))


def _one_step(limits: Limits, **fixed: Any) -> st.SearchStrategy:
    return cases.mlstm(limits, S=1, **fixed)


def _extremes(limits: Limits) -> st.SearchStrategy:
    return st.one_of(*(_one_step(limits, gates=gates) for gates in EXTREME_GATES))


def _stepless(array: Any, **changes: Any) -> Any:
    """An argument or an output of the sequence, as a step has it."""
    return replace(array, shape=array.shape.replace("S ", ""), **changes)


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
    arguments=tuple(_stepless(argument, optional=False) for argument in MLSTM.arguments if argument.role != "index"),
    outputs=tuple(map(_stepless, MLSTM.outputs)),
    returns=MLSTM.returns,
    options=(Option(name="eps", default=0.0, refused={"a negative eps": -1.0}), BACKEND),
    state=StateTuple(name="state", type=MLSTMState, cotangent="dstate", passed="position"),
    cases={"dense": _one_step},
    make_call=_make_call,
    value=_value,
    gradient=_gradient,
    immaterial={"chunk_size": None, "room": None, "layout": "contiguous", "cut": 0.0},
    rows=(MLSTMCase(2, 1, 2, 3, 2, state="random", seed=3),),
    vector_cases=_VECTOR_CASES,
    extremes=_extremes,
    strata=("small",),
)

RECORDS = (MLSTM_STEP,)
