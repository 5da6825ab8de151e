"""The laws that every operation shares, registered for each."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance import cases, oracle
from conformance.budget import Expected, Precision
from conformance.cases import FwbwCase, GRUCase, MLSTMCase, Plan, SumCase
from conformance.dtypes import Array
from conformance.laws import _general_arrays, _general_backends, _general_device, _general_transforms
from conformance.laws._subjects import Call, Subject
from conformance.oracle import Values

_EXTREME = ("extreme", "closed", "resets", "saturated")


def _scan(operation: str) -> Subject:
    def call(case: SumCase, dtype: str) -> Call:
        return Call(case.scan(dtype), case.cotangent(dtype, square=False), {}, case.steps)

    return Subject(
        operation,
        operation,
        cases.sums,
        call,
        lambda arrays, options, precision: oracle.sums(operation, arrays, precision),
        lambda arrays, options, cotangents, precision: oracle.sums_gradient(operation, arrays, cotangents, precision),
        rows=(SumCase((2, 3), 5), SumCase((), 1)),
        in_dtype=("y",),
    )


def _decay(operation: str) -> Subject:
    of_gates = operation == "causal_forget_matrix"

    def call(case: SumCase, dtype: str) -> Call:
        arrays = case.log_gates(dtype) if of_gates else case.preactivations(dtype)
        return Call(arrays, case.cotangent(dtype, square=True), {}, case.steps)

    def value(arrays: Values, options: Mapping[str, Any], precision: Precision) -> Expected:
        return oracle.sums(operation, arrays, precision) if of_gates else oracle.dtilde(arrays, precision)

    def gradient(arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
        # Each element is a sum of up to S² terms.
        precision = replace(precision, steps=precision.steps**2)
        if of_gates:
            return oracle.sums_gradient(operation, arrays, cotangents, precision)
        return oracle.dtilde_gradient(arrays, cotangents, precision)

    return Subject(
        operation,
        operation,
        cases.gate_sums,
        call,
        value,
        gradient,
        rows=(SumCase((2, 3), 5), SumCase((), 4, "resets")),
        in_dtype=("y",),
        extremes=lambda plan: cases.sums(plan, ("resets", "extreme")),
        strata=("small", "chunk"),
    )


def _dense_and_packed(dense: Callable, packed: Callable) -> Callable[[Plan], st.SearchStrategy]:
    """Both where a new shape is cheap; else those that other laws have compiled already."""

    def strategy(plan: Plan) -> st.SearchStrategy:
        sequences = packed(plan).filter(lambda case: bool(case.lengths))
        return st.one_of(dense(plan), sequences) if plan.eager else dense(plan)

    return strategy


def _lengths(arrays: Values) -> tuple[int, ...] | None:
    return tuple(np.diff(arrays["cu_seqlens"]).tolist()) if "cu_seqlens" in arrays else None


def _mlstm() -> Subject:
    def call(case: MLSTMCase, dtype: str) -> Call:
        return Call(case.arrays(dtype), case.cotangent_arrays(dtype), case.options(), case.steps)

    def value(arrays: Values, options: Mapping[str, Any], precision: Precision) -> Expected:
        lengths = _lengths(arrays)
        if lengths is None:
            return oracle.mlstm(arrays, options, precision)
        calls = oracle.each_sequence(arrays, {}, lengths)
        return oracle.joined([oracle.mlstm(sequence, options, precision) for sequence, _ in calls])

    def gradient(arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
        lengths = _lengths(arrays)
        if lengths is None:
            return oracle.mlstm_gradient(arrays, options, cotangents, precision)
        calls = oracle.each_sequence(arrays, cotangents, lengths)
        return oracle.joined([oracle.mlstm_gradient(x, options, dx, precision) for x, dx in calls])

    return Subject(
        "mlstm",
        "mlstm",
        _dense_and_packed(cases.mlstm, cases.packed_mlstm),
        call,
        value,
        gradient,
        rows=(
            MLSTMCase(2, 5, 2, 3, 2, state="random", chunk_size=2, seed=1),
            MLSTMCase(3, 0, 2, 3, 2, lengths=(3, 0, 4), state="random", chunk_size=2, seed=2),
        ),
        in_dtype=("h",),
        extremes=lambda plan: st.one_of(*(cases.mlstm(plan, gates=gates) for gates in _EXTREME)),
        stepless=(MLSTMCase(2, 0, 1, 3, 2, state="random"),),
    )


def _mlstm_step() -> Subject:
    def squeezed(arrays: Mapping[str, Array]) -> dict[str, Array]:
        return {name: replace(x, values=x.values[:, 0]) if name == "h" else x for name, x in arrays.items()}

    def call(case: MLSTMCase, dtype: str) -> Call:
        # A step always has a state: zeros where the case gives none.
        arrays = replace(case, state="random" if case.state == "none" else case.state).arrays(dtype)
        if case.state == "none":
            arrays |= {name: replace(arrays[name], values=0 * arrays[name].values) for name in ("C0", "n0", "m0")}
        step = {name: replace(x, values=x.values[:, 0]) if name in "qkvif" else x for name, x in arrays.items()}
        return Call(step, squeezed(case.cotangent_arrays(dtype)), {"eps": case.eps} if case.eps else {})

    def with_axis(values: Values) -> Values:
        return {name: x[:, None] if name in (*"qkvif", "h") else x for name, x in values.items()}

    def without_axis(expected: Expected) -> Expected:
        values, slack = (
            {name: x[:, 0] if name in (*"qkvif", "h") else x for name, x in of.items()}
            for of in (expected.values, expected.slack)
        )
        return replace(expected, values=values, slack=slack)

    def value(arrays: Values, options: Mapping[str, Any], precision: Precision) -> Expected:
        return without_axis(oracle.mlstm(with_axis(arrays), options, precision))

    def gradient(arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
        return without_axis(oracle.mlstm_gradient(with_axis(arrays), options, with_axis(cotangents), precision))

    return Subject(
        "mlstm_step",
        "mlstm_step",
        lambda plan: cases.mlstm(plan, S=1),
        call,
        value,
        gradient,
        rows=(MLSTMCase(2, 1, 2, 3, 2, state="random", seed=3),),
        in_dtype=("h",),
        extremes=lambda plan: st.one_of(*(cases.mlstm(plan, S=1, gates=gates) for gates in _EXTREME)),
        strata=("small",),
    )


def _fwbw() -> Subject:
    def call(case: FwbwCase, dtype: str) -> Call:
        options = {"config": case.config()}
        return Call(case.arrays(dtype), case.cotangent_arrays(dtype), options, case.steps)

    inner = MLSTMCase(2, 5, 1, 3, 2, state="random", seed=4)
    return Subject(
        "fwbw",
        "mlstm_fwbw_custom_grad",
        cases.fwbw,
        call,
        lambda arrays, options, precision: oracle.fwbw(arrays, options["config"], precision),
        lambda arrays, options, cotangents, precision: oracle.fwbw_gradient(
            arrays, options["config"], cotangents, precision
        ),
        rows=(
            FwbwCase(inner, 2, return_state=True, use_initial_state=True, stabilize_correctly=True),
            FwbwCase(inner, 2, keep=("keep_G", "keep_M", "keep_c"), flat_gates=False),
        ),
        in_dtype=("h",),
        extremes=lambda plan: cases.fwbw(plan).map(
            lambda case: replace(case, inner=replace(case.inner, gates="extreme"))
        ),
        strata=("small", "chunk"),
        stepless=(FwbwCase(replace(inner, S=0), return_state=True, use_initial_state=True),),
    )


def _gru() -> Subject:
    def call(case: GRUCase, dtype: str) -> Call:
        return Call(case.arrays(dtype), case.cotangent_arrays(dtype), case.options(), case.steps)

    return Subject(
        "gru",
        "gru",
        _dense_and_packed(cases.gru, cases.packed_gru),
        call,
        oracle.gru,
        oracle.gru_gradient,
        rows=(
            GRUCase(2, 5, 3, cases.HEADS[0], state=True, seed=5),
            GRUCase(3, 0, 2, cases.HEADS[2], lengths=(3, 0, 4), state=True, seed=6),
        ),
        in_dtype=("y",),
        extremes=lambda plan: st.one_of(*(cases.gru(plan, gates=gates) for gates in ("extreme", "saturated"))),
        stepless=(GRUCase(2, 0, 3, cases.HEADS[1], state=True),),
    )


SUBJECTS = (
    _scan("rev_cumsum"),
    _scan("rev_cumsum_off"),
    _decay("causal_forget_matrix"),
    _decay("dtilde_matrix"),
    _mlstm(),
    _mlstm_step(),
    _fwbw(),
    _gru(),
)
WITH_BACKENDS = ("mlstm", "mlstm_step", "gru")

for _subject in SUBJECTS:
    _general_arrays.register(_subject)
    _general_transforms.register(_subject)
    _general_device.register(_subject)
    if _subject.op in WITH_BACKENDS:
        _general_backends.register(_subject)
