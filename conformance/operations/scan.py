"""Reverse cumulative sums: `rev_cumsum` and `rev_cumsum_off`."""

from functools import partial

from conformance import cases, oracle
from conformance.budget import Expected, Precision
from conformance.cases import SumCase
from conformance.diagnosis import sum_features
from conformance.operations._operation import Operation
from conformance.operations._record import Argument, Call, Options, Output
from conformance.oracle import Values


def _call_of(case: SumCase, dtype: str) -> Call:
    return Call(case.scan(dtype), case.cotangent(dtype, square=False), {}, case.steps)


def _value(name: str, arrays: Values, options: Options, precision: Precision) -> Expected:
    return oracle.sums(name, arrays, precision)


def _gradient(name: str, arrays: Values, options: Options, cotangents: Values, precision: Precision) -> Expected:
    return oracle.sums_gradient(name, arrays, cotangents, precision)


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
        call_of=_call_of,
        value=partial(_value, name),
        gradient=partial(_gradient, name),
        immaterial={"layout": "contiguous"},
        vector_cases=_VECTOR_CASES,
        features=sum_features.SCANS,
        rows=(SumCase((2, 3), 5), SumCase((), 1)),
        plain=sum_features.plain_sum,
    )


REV_CUMSUM = _scan("rev_cumsum")
REV_CUMSUM_OFF = _scan("rev_cumsum_off")
RECORDS = (REV_CUMSUM, REV_CUMSUM_OFF)
