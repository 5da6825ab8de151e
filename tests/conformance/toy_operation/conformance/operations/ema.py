"""The moving average: `ema`."""

from conformance.cases._ema import EMACase, ema
from conformance.operations._operation import Operation
from conformance.operations._record import Argument, Output
from conformance.oracle import _ema as oracle

EMA = Operation(
    name="ema",
    about="ema",
    arguments=(
        Argument(name="x", shape="B S N"),
        Argument(name="f", shape="B S N", role="gate"),
        Argument(name="initial", shape="B N", role="state", passed="keyword", optional=True, continues="last"),
    ),
    outputs=(
        Output(name="y", shape="B S N", cotangent="dy"),
        Output(name="last", shape="B N", role="state", cotangent="dlast"),
    ),
    returns=("y", "last"),
    cases={"dense": ema},
    value=oracle.ema,
    gradient=oracle.ema_gradient,
    immaterial={"layout": "contiguous", "cut": 0.0},
    rows=(EMACase(2, 5, 3, state=True, seed=1), EMACase(1, 4, 2)),
    vector_cases=(EMACase(2, 5, 3, state=True), EMACase(1, 33, 2), EMACase(2, 0, 1, state=True)),
    extremes=lambda limits: ema(limits, gates="extreme"),
)

RECORDS = (EMA,)
