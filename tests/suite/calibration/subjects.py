"""Each operation as a calibration sees it: which cases, which variants, what the oracle says of a family of cases.

A *call* is a family computed at once. `FamilyCall.expected` are the oracle's two answers, value and gradient, and
`FamilyCall.run` lets a variant compute; every array of theirs has, once `FamilyCall.by_case` has moved it, one row a
case.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance import cases, oracle
from conformance.budget import Expected, Precision
from conformance.cases import Plan
from conformance.dtypes import FLOATING, Array, accumulation
from conformance.operations.gru import GRU
from tests.suite.calibration import variants_decay, variants_gru, variants_scan
from tests.suite.calibration.arithmetic import Arithmetic
from tests.suite.calibration.families import Family
from tests.suite.calibration.mlstm_lanes import MLSTM_FORMS, STEP_FORMS, MLSTMForm, run_mlstm

Values = dict[str, np.ndarray]
Strategy = Callable[[Plan], st.SearchStrategy]


@dataclass(frozen=True)
class FamilyCall:
    """A family of cases as one call.

    Attributes:
        expected: the oracle's outputs and gradients.
        run: ``variant → (outputs, gradients)``, in the accumulation dtype.
        compared: the outputs and gradients that the laws compare.
        dtype_of: the dtype in which an output or a gradient comes back.
        by_case: moves an array so that its first axis counts cases.
        precision: what the budget is told.
    """

    expected: tuple[Expected, Expected]
    run: Callable[[Any], tuple[Values, Values]]
    compared: tuple[tuple[str, ...], tuple[str, ...]]
    dtype_of: Callable[[str], str]
    by_case: Callable[[str, np.ndarray], np.ndarray]
    precision: tuple[Precision, Precision]


@dataclass(frozen=True)
class Subject:
    """An operation to calibrate.

    Attributes:
        strategies: the laws' own, by name, each with its share of the cases.
        strata: sizes that the laws try.
        variants: correct ones, by name.
        calls: a family as calls, one or (packed) one for each sequence.
    """

    op: str
    strategies: Mapping[str, tuple[Strategy, float]]
    strata: tuple[str, ...]
    variants: Mapping[str, Any]
    calls: Callable[[Family], list[FamilyCall]]
    dtypes: tuple[str, ...] = FLOATING


def _stacked(parts: list[dict[str, Array]], axis: Callable[[str], int] = lambda name: 0) -> Values:
    return {name: np.concatenate([part[name].values for part in parts], axis=axis(name)) for name in parts[0]}


def _mlstm_call(
    arrays: Values,
    cotangents: Values,
    dtype: str,
    count: int,
    precision: Precision,
    *,
    gate_dtype: str,
    with_states: bool,
    eps: float,
    floor_is_one: bool = False,
) -> FamilyCall:
    arrays = oracle.with_state(arrays)
    options = {"eps": eps}
    wide = accumulation(dtype)
    if floor_is_one:
        expected = (oracle.unstabilised(arrays, None, precision), oracle.unstabilised(arrays, cotangents, precision))
    else:
        expected = (
            oracle.mlstm(arrays, options, precision),
            oracle.mlstm_gradient(arrays, options, cotangents, precision),
        )

    def run(form: MLSTMForm) -> tuple[Values, Values]:
        outputs, gradients = run_mlstm(form, arrays, cotangents, dtype, eps, floor_is_one)
        m = expected[0].values["m"]
        # States are compared as C·exp(m − m*), in float64, as the laws do.
        for name in "Cn":
            outputs[name] = oracle.rescaled(outputs[name].astype(np.float64), outputs["m"].astype(np.float64), m)
        return outputs, gradients

    def dtype_of(name: str) -> str:
        return gate_dtype if name in ("i", "f") else dtype if name in (*"qkv", "h") else wide

    compared = (tuple("hCnm"), (*"qkvif", "C0", "n0", "m0") if with_states else tuple("qkvif"))
    return FamilyCall(expected, run, compared, dtype_of, lambda name, x: _rows(x, count), (precision, precision))


def _rows(x: np.ndarray, count: int) -> np.ndarray:
    return x.reshape(count, x.size // count)


def _mlstm_calls(family: Family) -> list[FamilyCall]:
    case, dtype = family.cases[0], family.dtype
    each = [one.arrays(dtype) for one in family.cases]
    d = [one.cotangent_arrays(dtype) for one in family.cases]
    facts: dict[str, Any] = {
        "gate_dtype": each[0]["i"].dtype,
        "with_states": case.state != "none",
        "eps": case.eps,
    }
    precision, count = Precision(dtype, case.steps), len(each)
    if case.lengths is None:
        return [_mlstm_call(_stacked(each), _stacked(d), dtype, count, precision, **facts)]
    split = [
        oracle.each_sequence(oracle.values(arrays), oracle.values(cotangents), case.lengths)
        for arrays, cotangents in zip(each, d, strict=True)
    ]
    calls = []
    for b in range(len(case.lengths)):
        arrays, cotangents = (
            {name: np.concatenate([one[b][at][name] for one in split]) for name in split[0][b][at]} for at in (0, 1)
        )
        calls.append(_mlstm_call(arrays, cotangents, dtype, count, precision, **facts))
    return calls


def _fwbw_calls(family: Family) -> list[FamilyCall]:
    case, dtype = family.cases[0], family.dtype
    each = [one.inner.arrays(dtype) for one in family.cases]
    cotangents = _stacked([one.inner.cotangent_arrays(dtype) for one in family.cases])
    arrays = _stacked(each)
    if not case.use_initial_state:
        arrays = {name: x for name, x in arrays.items() if name not in ("C0", "n0", "m0")}
    if not case.return_state:
        cotangents |= {name: 0 * cotangents[name] for name in "Cnm"}
    call = _mlstm_call(
        arrays,
        cotangents,
        dtype,
        len(each),
        Precision(dtype, case.steps),
        gate_dtype=each[0]["i"].dtype,
        with_states=case.use_initial_state,
        eps=0.0,
        floor_is_one=not case.stabilize_correctly,
    )
    return [call]


def _gru_axis(name: str) -> int:
    return 0 if name.endswith("weight") else -2


def _gru_calls(family: Family) -> list[FamilyCall]:
    """Cases stand side by side along the head axis: each has weights of its own."""
    case, dtype, count = family.cases[0], family.dtype, len(family.cases)
    each = [one.arrays(dtype) for one in family.cases]
    cu_seqlens = each[0]["cu_seqlens"].values if case.packed else None
    floating = [{name: x for name, x in arrays.items() if name != "cu_seqlens"} for arrays in each]
    arrays = _stacked(floating, _gru_axis)
    cotangents = _stacked([one.cotangent_arrays(dtype) for one in family.cases], lambda name: -2)
    precision, wide = Precision(dtype, case.steps), accumulation(dtype)
    packing = {} if cu_seqlens is None else {"cu_seqlens": cu_seqlens}
    expected = (
        oracle.gru({**arrays, **packing}, {}, precision),
        oracle.gru_gradient({**arrays, **packing}, case.options(), cotangents, precision),
    )
    given = arrays
    if "input_state" not in arrays:
        given = {**arrays, "input_state": np.zeros(expected[0].values["state"].shape)}

    def run(form: variants_gru.Form) -> tuple[Values, Values]:
        return variants_gru.run(form, given, cu_seqlens, case.clipping, cotangents, dtype)

    def by_case(name: str, x: np.ndarray) -> np.ndarray:
        return _rows(np.moveaxis(x, _gru_axis(name), 0), count)

    compared = (("y", "state"), GRU.primals if case.state else tuple(GRU.head_axis))
    dtypes = {"state": wide, "input_state": wide}
    return [FamilyCall(expected, run, compared, lambda name: dtypes.get(name, dtype), by_case, (precision, precision))]


def _sum_calls(operation: str, family: Family) -> list[FamilyCall]:
    case, dtype, count = family.cases[0], family.dtype, len(family.cases)
    square = operation in ("causal_forget_matrix", "dtilde_matrix")
    draws = {"causal_forget_matrix": "log_gates", "dtilde_matrix": "preactivations"}
    batch = [
        {name: x.values[None] for name, x in getattr(one, draws.get(operation, "scan"))(dtype).items()}
        for one in family.cases
    ]
    arrays = {name: np.concatenate([one[name] for one in batch]) for name in batch[0]}
    cotangents = {"y": np.concatenate([one.cotangent(dtype, square=square)["y"].values[None] for one in family.cases])}
    precision = Precision(dtype, case.steps)
    of_gradient = Precision(dtype, case.steps**2) if square else precision
    if operation == "dtilde_matrix":
        expected = oracle.dtilde(arrays, precision), oracle.dtilde_gradient(arrays, cotangents, of_gradient)
    else:
        expected = (
            oracle.sums(operation, arrays, precision),
            oracle.sums_gradient(operation, arrays, cotangents, of_gradient),
        )
    forward, back = {
        "causal_forget_matrix": (variants_decay.forget_value, variants_decay.forget_gradient),
        "dtilde_matrix": (variants_decay.dtilde_value, variants_decay.dtilde_gradient),
    }.get(operation, (None, None))
    kind = Arithmetic(dtype).type
    narrow = {name: x.astype(kind) for name, x in arrays.items()}
    dy = {name: x.astype(kind) for name, x in cotangents.items()}

    def run(variant: Any) -> tuple[Values, Values]:
        A = Arithmetic(dtype)
        if forward is None or back is None:
            return (
                variants_scan.value(operation, variant, narrow, A),
                variants_scan.gradient(operation, variant, narrow, dy, A),
            )
        return forward(variant, narrow, A), back(variant, narrow, dy, A)

    compared = (("y",), tuple(arrays))
    return [
        FamilyCall(expected, run, compared, lambda name: dtype, lambda name, x: _rows(x, count), (precision, precision))
    ]


def _one_step(plan: Plan) -> st.SearchStrategy:
    return cases.mlstm(plan, S=1)


def _sum_subject(operation: str) -> Subject:
    matrix = operation in ("causal_forget_matrix", "dtilde_matrix")
    strategy = cases.gate_sums if matrix else cases.sums
    strata = ("small", "chunk") if matrix else ("small", "chunk", "long")
    variants = variants_decay.FORMS if matrix else variants_scan.SCANS
    return Subject(
        operation, {"dense": (strategy, 1.0)}, strata, variants, lambda family: _sum_calls(operation, family)
    )


ALL = ("small", "chunk", "long")
SUBJECTS = {
    subject.op: subject
    for subject in (
        *(_sum_subject(name) for name in ("rev_cumsum", "rev_cumsum_off", "causal_forget_matrix", "dtilde_matrix")),
        Subject(
            "mlstm",
            {"dense": (cases.mlstm, 0.75), "packed": (cases.packed_mlstm, 0.25)},
            ALL,
            MLSTM_FORMS,
            _mlstm_calls,
        ),
        Subject("mlstm_step", {"step": (_one_step, 1.0)}, ("small",), STEP_FORMS, _mlstm_calls),
        Subject("mlstm_fwbw_custom_grad", {"fwbw": (cases.fwbw, 1.0)}, ALL, MLSTM_FORMS, _fwbw_calls),
        Subject(
            "gru",
            {"dense": (cases.gru, 0.75), "packed": (cases.packed_gru, 0.25)},
            ALL,
            variants_gru.FORMS,
            _gru_calls,
        ),
    )
}
