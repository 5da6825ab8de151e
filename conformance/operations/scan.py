"""Reverse cumulative sums: `rev_cumsum` and `rev_cumsum_off`."""

from conformance import cases, oracle
from conformance.base.call import Call
from conformance.cases import SumCase
from conformance.operations._operation import Operation
from conformance.operations._record import Argument, Output


def _make_call(operation: str, case: SumCase, dtype: str) -> Call:
    cotangents = case.cotangent(dtype, square=False)
    return Call(operation=operation, arrays=case.scan(dtype), cotangents=cotangents, steps=case.steps)


_VECTOR_CASES = (
    SumCase((2, 3), 5),
    SumCase((), 1),
    SumCase((2,), 33, "wide"),
    SumCase((3,), 0),
    SumCase((), 97, "same sign"),
    SumCase((1, 1, 2), 64),
    SumCase((), cases.LONG_STEPS),
    SumCase((), cases.LONG_STEPS, "same sign"),
)


def _scan(name: str) -> Operation:
    return Operation(
        name=name,
        about=name,
        arguments=(Argument(name="x", shape="... S"),),
        outputs=(Output(name="y", shape="... S", cotangent="dy"),),
        returns=("y",),
        cases={"dense": cases.sums},
        make_call=_make_call,
        value=lambda arrays, options, precision: oracle.sums(name, arrays, precision),
        gradient=lambda arrays, options, cotangents, precision: oracle.sums_gradient(
            name, arrays, cotangents, precision
        ),
        immaterial={"layout": "contiguous"},
        vector_cases=_VECTOR_CASES,
        rows=(SumCase((2, 3), 5), SumCase((), 1)),
    )


REV_CUMSUM = _scan("rev_cumsum")
REV_CUMSUM_OFF = _scan("rev_cumsum_off")
RECORDS = (REV_CUMSUM, REV_CUMSUM_OFF)
