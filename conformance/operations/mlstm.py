"""The mLSTM: `mlstm` over whole sequences, and one step of it, `mlstm_step`, whose cases are sequences of one step."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance import cases, oracle
from conformance.base.dtypes import Array
from conformance.cases import Limits, MLSTMCase
from conformance.operations._one_step import OneStep
from conformance.operations._operation import Operation
from conformance.operations._record import BACKEND, MAX_SEQLEN, Argument, Arrays, Option, Output, StateTuple
from conformance.oracle import Values
from conformance.tolerance.budget import Precision
from reference.arguments import MLSTMState

FORMS = ("mlstm_recurrent", "mlstm_parallel", "mlstm_chunkwise")
SHARDED = ("mlstm_sharded", "mlstm_sharded_backward")
"""Functions of a NumPy target whose sequences are lists of shards."""
EXTREME_GATES = ("extreme", "closed", "resets", "saturated")


def _extremes(limits: Limits, **fixed: Any) -> st.SearchStrategy:
    return st.one_of(*(cases.mlstm(limits, gates=gates, **fixed) for gates in EXTREME_GATES))


def _packed_without_eps(limits: Limits) -> st.SearchStrategy:
    return cases.packed_mlstm(limits, eps=0.0).filter(lambda case: bool(case.lengths))


def _cut_slack(precision: Precision, arrays: Arrays, results: Arrays) -> Values:
    """The rounding of g of the early part, dm₀(late part) − ⟨C, dC⟩ − ⟨n, dn⟩, where it should cancel to 0."""
    C, n, dC, dn, dm = (
        np.abs(results[name].values) for name in ("C", "n", "gradient of C", "gradient of n", "gradient of m")
    )
    g = precision.growth * (dm + (C * dC).sum(axis=(-2, -1)) + (n * dn).sum(axis=-1))
    with np.errstate(over="ignore"):
        gate = 1 / (1 + np.exp(arrays["f"].values))
    return {"i": np.broadcast_to(g[:, None], gate.shape), "f": g[:, None] * gate, "m0": g}


_VECTOR_CASES = (
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
    MLSTMCase(1, cases.LONG_STEPS, 1, 2, 2, gates="remembering", state="random"),
)

MLSTM = Operation(
    name="mlstm",
    about="mlstm",
    helpers=("MLSTMState", "explain_backend", *FORMS, *SHARDED),
    arguments=(
        Argument(name="q", shape="B S N K"),
        Argument(name="k", shape="B S N K"),
        Argument(name="v", shape="B S N V"),
        Argument(name="i", shape="B S N", role="gate"),
        Argument(name="f", shape="B S N", role="gate"),
        Argument(name="C0", shape="B N K V", role="state", passed="tuple", optional=True, continues="C"),
        Argument(name="n0", shape="B N K", role="state", passed="tuple", optional=True, continues="n"),
        Argument(name="m0", shape="B N", role="state", passed="tuple", optional=True, continues="m"),
        Argument(name="cu_seqlens", shape="B+1", role="index", passed="keyword", optional=True),
    ),
    outputs=(
        Output(name="h", shape="B S N V", cotangent="dh"),
        Output(name="C", shape="B N K V", role="state", log_scale="m"),
        Output(name="n", shape="B N K", role="state", log_scale="m"),
        Output(name="m", shape="B N", role="state"),
    ),
    returns=("h", ("C", "n", "m")),
    options=(
        Option(name="return_state", default=False, changes_value=False, portable=False),
        Option(
            name="chunk_size",
            changes_value=False,
            refused={
                "a chunk size of 0": 0,
                "a negative chunk size": -4,
                "a chunk size of 2.5": 2.5,
                "a chunk size of True": True,
            },
        ),
        Option(
            name="eps",
            default=0.0,
            refused={
                "a negative eps": -1e-6,
                "an eps of NaN": math.nan,
                "an infinite eps": math.inf,
                "a word for eps": "0",
            },
        ),
        MAX_SEQLEN,
        BACKEND,
    ),
    state=StateTuple(name="initial_state", type=MLSTMState, cotangent="dstate"),
    state_switch="return_state",
    usual=True,
    cases={
        "dense": cases.mlstm,
        "packed": cases.packed_mlstm,
        "packed gradient": cases.some_without_states(_packed_without_eps),
        "cut": cases.halved_mlstm,
    },
    value=oracle.mlstm,
    gradient=oracle.mlstm_gradient,
    immaterial={"chunk_size": None, "room": None, "layout": "contiguous", "cut": 0.0},
    rows=(
        MLSTMCase(2, 5, 2, 3, 2, state="random", chunk_size=2, seed=1),
        MLSTMCase(3, 0, 2, 3, 2, lengths=(3, 0, 4), state="random", chunk_size=2, seed=2),
    ),
    vector_cases=_VECTOR_CASES,
    never_0=("K",),
    extremes=_extremes,
    cut_slack=_cut_slack,
)


def _with_state(case: MLSTMCase, dtype: str) -> dict[str, Array]:
    """The arrays of a sequence with its initial state, or with the zeros that one left out stands for."""
    if case.state != "none":
        return case.arrays(dtype)
    arrays = replace(case, state="random").arrays(dtype)
    return arrays | {name: replace(arrays[name], values=0 * arrays[name].values) for name in MLSTM.state_arguments}


_STEP_VECTOR_CASES = (
    MLSTMCase(2, 1, 3, 3, 2, state="random"),
    MLSTMCase(1, 1, 1, 1, 1, state="random"),
    MLSTMCase(3, 1, 4, 2, 2, gates="extreme", state="random"),
    MLSTMCase(2, 1, 2, 5, 3, gates="large m", state="random"),
    MLSTMCase(3, 1, 2, 3, 1, gates="resets", state="random", wide_gates=True),
    MLSTMCase(3, 1, 2, 2, 2, gates="closed", state="empty"),
    MLSTMCase(2, 1, 2, 17, 11, gates="remembering", scale=4.0, state="random"),
    MLSTMCase(2, 1, 2, 3, 2, gates="low m", eps=1e-3, state="random", cotangents="state only"),
)
MLSTM_STEP = OneStep(MLSTM, (Option(name="eps", default=0.0, refused={"a negative eps": -1.0}),), _with_state).record(
    cases={
        "dense": lambda limits, **fixed: cases.mlstm(limits, S=1, **fixed),
        "steps": lambda limits: cases.mlstm(limits, layout="contiguous"),
    },
    rows=(MLSTMCase(2, 1, 2, 3, 2, state="random", seed=3),),
    vector_cases=_STEP_VECTOR_CASES,
    extremes=lambda limits: _extremes(limits, S=1),
)

RECORDS = (MLSTM, MLSTM_STEP)
