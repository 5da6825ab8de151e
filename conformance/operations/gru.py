"""The multi-head GRU: `gru`."""

import math

from hypothesis import strategies as st

from conformance import cases, oracle
from conformance.cases import GRUCase, Limits
from conformance.operations._operation import Operation
from conformance.operations._record import BACKEND, MAX_SEQLEN, Argument, Option, Output


def _extremes(limits: Limits) -> st.SearchStrategy:
    return st.one_of(*(cases.gru(limits, gates=gates) for gates in ("extreme", "saturated")))


_ONE_HEAD = (1, 1, 1, 1, 1, 1)
_VECTOR_CASES = (
    GRUCase(2, 5, 3, cases.HEADS[0], state=True),
    GRUCase(1, 1, 1, _ONE_HEAD),
    GRUCase(1, 33, 2, cases.HEADS[2], state=True, clipping=0.1),
    GRUCase(3, 0, 2, cases.HEADS[4], lengths=(4, 0, 13), state=True),
    GRUCase(2, 7, 2, cases.HEADS[1], gates="extreme", state=True),
    GRUCase(2, 0, 3, cases.HEADS[1], state=True, clipping=0.1),
    GRUCase(1, 31, 5, _ONE_HEAD, gates="saturated", scale=2.0),
    GRUCase(2, 13, 2, cases.HEADS[6], gates="closed", state=True, clipping=-0.5),
    GRUCase(3, 0, 2, cases.HEADS[3], lengths=(0, 33, 1), gates="remembering", clipping=0.5),
    GRUCase(1, 65, 1, cases.HEADS[1], gates="remembering", state=True, cotangents="one step"),
    GRUCase(2, 7, 3, cases.HEADS[2], gates="small", scale=0.01, state=True, cotangents="state only"),
    GRUCase(1, cases.LONG_STEPS, 2, (2, 1, 1, 2, 1, 1), gates="remembering", state=True),
    GRUCase(2, 7, 3, cases.HEADS[0], state=True, clipping=0.5, reset_after=True, bias=True),
    GRUCase(3, 0, 2, cases.HEADS[4], lengths=(4, 0, 5), reset_after=True),
)

GRU = Operation(
    name="gru",
    about="gru",
    arguments=(
        Argument(name="input", shape="B S Nx H"),
        Argument(name="weight", shape="Nw H H"),
        Argument(name="forget_input", shape="B S Nxf H"),
        Argument(name="forget_weight", shape="Nwf H H"),
        Argument(name="reset_input", shape="B S Nxr H"),
        Argument(name="reset_weight", shape="Nwr H H"),
        Argument(name="input_state", shape="B N H", role="state", passed="keyword", optional=True, continues="state"),
        Argument(name="recurrent_bias", shape="Nw H", passed="keyword", optional=True),
        Argument(name="cu_seqlens", shape="B+1", role="index", passed="keyword", optional=True),
    ),
    outputs=(
        Output(name="y", shape="B S N H", cotangent="dy"),
        Output(name="state", shape="B N H", role="state", cotangent="dstate"),
    ),
    returns=("y", "state"),
    options=(
        Option(
            name="gradient_clipping",
            refused={"a word for the clipping": "1", "a clipping of NaN": math.nan},
        ),
        Option(
            name="reset_after",
            default=False,
            refused={"a number for the form of the reset gate": 1},
            sentence="the reset gate is applied after the recurrent product",
            example=True,
        ),
        MAX_SEQLEN,
        BACKEND,
    ),
    usual=True,
    cases={
        "dense": cases.gru,
        "packed": cases.packed_gru,
        "packed gradient": lambda limits: cases.packed_gru(limits, **cases.NO_GRU_OPTIONS),
        "cut": cases.halved_gru,
    },
    value=oracle.gru,
    gradient=oracle.gru_gradient,
    immaterial={"layout": "contiguous", "room": None, "cut": 0.0},
    rows=(
        GRUCase(2, 5, 3, cases.HEADS[0], state=True, seed=5),
        GRUCase(3, 0, 2, cases.HEADS[2], lengths=(3, 0, 4), state=True, seed=6),
    ),
    vector_cases=_VECTOR_CASES,
    extremes=_extremes,
)

RECORDS = (GRU,)
