"""Decay matrices: `causal_forget_matrix` and `dtilde_matrix`."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from conformance import cases, oracle
from conformance.base.call import Call
from conformance.base.dtypes import Array
from conformance.cases import SumCase
from conformance.operations._operation import Operation
from conformance.operations._record import Argument, Output
from conformance.tolerance.budget import Precision


def _call(arrays: Callable[[SumCase, str], dict[str, Array]], operation: str, case: SumCase, dtype: str) -> Call:
    cotangents = case.cotangent(dtype, square=True)
    return Call(operation=operation, arrays=arrays(case, dtype), cotangents=cotangents, steps=case.steps)


def _dtilde_call(operation: str, case: SumCase, dtype: str) -> Call:
    call = _call(SumCase.preactivations, operation, case, dtype)
    if case.masked_cotangents:
        return call
    values = oracle.dtilde(oracle.values(call.arrays), Precision(dtype)).values["y"]
    dy = call.cotangents["y"]
    return replace(call, cotangents={"y": replace(dy, values=np.where(np.isneginf(values), 0.0, dy.values))})


def _squared(precision: Precision) -> Precision:
    """Each element of a gradient is a sum of up to S² terms."""
    return replace(precision, steps=precision.steps**2)


_VECTOR_CASES = (
    SumCase((2, 3), 5),
    SumCase((), 1),
    SumCase((2,), 7, "resets"),
    SumCase((3,), 0),
    SumCase((2,), 13, "extreme"),
    SumCase((), 31, "wide"),
    SumCase((1, 2), 2),
    SumCase((), 65, "resets"),
)

CAUSAL_FORGET_MATRIX = Operation(
    name="causal_forget_matrix",
    about="causal_forget_matrix",
    arguments=(Argument(name="forget_gates", shape="... S"),),
    outputs=(Output(name="y", shape="... S S", cotangent="dF"),),
    returns=("y",),
    cases={"dense": cases.gate_sums},
    make_call=partial(_call, SumCase.log_gates),
    value=lambda arrays, options, precision: oracle.sums("causal_forget_matrix", arrays, precision),
    gradient=lambda arrays, options, cotangents, precision: oracle.sums_gradient(
        "causal_forget_matrix", arrays, cotangents, _squared(precision)
    ),
    immaterial={"layout": "contiguous"},
    rows=(SumCase((2, 3), 5), SumCase((), 4, "resets")),
    vector_cases=_VECTOR_CASES,
    extremes=lambda limits: cases.sums(limits, ("resets", "extreme")),
    strata=("small", "chunk"),
)

DTILDE_MATRIX = replace(
    CAUSAL_FORGET_MATRIX,
    name="dtilde_matrix",
    about="dtilde_matrix",
    arguments=(Argument(name="igate", shape="... S 1"), Argument(name="fgate", shape="... S 1")),
    outputs=(Output(name="y", shape="... S S", cotangent="dD"),),
    make_call=_dtilde_call,
    value=lambda arrays, options, precision: oracle.dtilde(arrays, precision),
    gradient=lambda arrays, options, cotangents, precision: oracle.dtilde_gradient(
        arrays, cotangents, _squared(precision)
    ),
)

RECORDS = (CAUSAL_FORGET_MATRIX, DTILDE_MATRIX)
