"""Each operation as a calibration sees it: which cases, which variants, what the oracle says of a family of cases.

A *call* is a family computed at once. `FamilyCall.expected` are the oracle's two answers, value and gradient, and
`FamilyCall.run` lets a variant compute; every array of theirs has, once `FamilyCall.by_case` has moved it, one row a
case.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance import cases, oracle
from conformance.base.dtypes import FLOATING, Array, accumulation
from conformance.cases import Limits
from conformance.operations import OPERATIONS, Operation
from conformance.operations.gru import GRU
from conformance.operations.mlstm import MLSTM
from conformance.tolerance.budget import Expected, Precision
from conformance.tolerance.designs import AnyDesign, TensorFloat32
from tests.suite.calibration import automatic_jax, automatic_torch, variants_decay, variants_gru, variants_scan
from tests.suite.calibration.arithmetic import Arithmetic
from tests.suite.calibration.families import Family
from tests.suite.calibration.mlstm_lanes import CLOSED_FORMS, MLSTM_FORMS, STEP_FORMS

Values = dict[str, np.ndarray]
Strategy = Callable[[Limits], st.SearchStrategy]
ALL = ("small", "chunk", "long")
SHORT = ("small", "chunk")


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


PrecisionOf = Callable[[str, int], Precision]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Variants of an operation, and the cases on which they are judged.

    Attributes:
        op: the operation's public name.
        setting: what sets these cases apart from the operation's usual ones; empty for those.
        variants: correct ones, by name.
        calls: a family as calls, one or (packed) one for each sequence.
        strategies: the laws' own, by name, each with its share of the cases.
        strata: sizes that the laws try.
        dtypes: of the values.
        eager: whether shapes are drawn freely; otherwise they come from the short tables for compiled targets.
        precision: of a dtype and a number of steps, what the tolerance is told.
        modules: of `conformance`, that say how large the tolerance is beside those of the operation.
    """

    op: str
    variants: Mapping[str, Any]
    calls: Callable[[Family, PrecisionOf], list[FamilyCall]]
    setting: str = ""
    strategies: Mapping[str, tuple[Strategy, float]] = field(default_factory=dict)
    strata: tuple[str, ...] = ALL
    dtypes: tuple[str, ...] = FLOATING
    eager: bool = True
    precision: PrecisionOf = Precision
    modules: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.op}, {self.setting}" if self.setting else self.op


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
    if floor_is_one:
        gradient = oracle.unstabilised(arrays, cotangents, precision)
        gradient = oracle.widened(gradient, arrays, cotangents, precision, floor_is_one=True)
        expected = (oracle.unstabilised(arrays, None, precision), gradient)
    else:
        expected = (
            oracle.mlstm(arrays, options, precision),
            oracle.mlstm_gradient(arrays, options, cotangents, precision),
        )

    def run(form: Any) -> tuple[Values, Values]:
        outputs, gradients = form.mlstm(arrays, cotangents, dtype, eps, floor_is_one)
        outputs = dict(outputs)
        m = expected[0].values["m"]
        # States are compared as C·exp(m − m*), in float64, as the laws do.
        for name in "Cn":
            outputs[name] = oracle.rescaled(outputs[name].astype(np.float64), outputs["m"].astype(np.float64), m)
        return outputs, gradients

    compared = _compared(MLSTM, with_states)
    dtype_of = _dtype_of(MLSTM, dtype, gate_dtype)
    return FamilyCall(expected, run, compared, dtype_of, lambda name, x: _rows(x, count), (precision, precision))


def _compared(record: Operation, with_states: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The outputs, and the arguments that have a gradient."""
    outputs = tuple(output.name for output in record.outputs)
    return outputs, tuple(name for name in record.primals if with_states or name not in record.state_arguments)


def _dtype_of(record: Operation, dtype: str, gate_dtype: str) -> Callable[[str], str]:
    """The dtype of an argument or an output, by its role."""
    dtypes = {"value": dtype, "gate": gate_dtype, "state": accumulation(dtype)}
    roles = {array.name: array.role for array in (*record.arguments, *record.outputs)}
    return lambda name: dtypes[roles[name]]


def _rows(x: np.ndarray, count: int) -> np.ndarray:
    return x.reshape(count, x.size // count)


def _mlstm_calls(family: Family, precision_of: PrecisionOf) -> list[FamilyCall]:
    case, dtype = family.cases[0], family.dtype
    each = [one.arrays(dtype) for one in family.cases]
    d = [one.cotangent_arrays(dtype) for one in family.cases]
    facts: dict[str, Any] = {
        "gate_dtype": each[0]["i"].dtype,
        "with_states": case.state != "none",
        "eps": case.eps,
    }
    precision, count = precision_of(dtype, case.steps), len(each)
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


def _fwbw_calls(family: Family, precision_of: PrecisionOf) -> list[FamilyCall]:
    case, dtype = family.cases[0], family.dtype
    each = [one.inner.arrays(dtype) for one in family.cases]
    cotangents = _stacked([one.inner.cotangent_arrays(dtype) for one in family.cases])
    arrays = _stacked(each)
    if not case.use_initial_state:
        arrays = {name: x for name, x in arrays.items() if name not in MLSTM.state_arguments}
    if not case.return_state:
        cotangents |= {name: 0 * cotangents[name] for name in MLSTM.states}
    call = _mlstm_call(
        arrays,
        cotangents,
        dtype,
        len(each),
        precision_of(dtype, case.steps),
        gate_dtype=each[0]["i"].dtype,
        with_states=case.use_initial_state,
        eps=0.0,
        floor_is_one=not case.stabilize_correctly,
    )
    return [call]


def _gru_axis(name: str) -> int:
    """The axis of heads: of weights the first, of everything else the last but one."""
    return 0 if name in GRU.weights else -2


def _gru_calls(family: Family, precision_of: PrecisionOf) -> list[FamilyCall]:
    """Cases stand side by side along the head axis: each has weights of its own."""
    case, dtype, count = family.cases[0], family.dtype, len(family.cases)
    each = [one.arrays(dtype) for one in family.cases]
    cu_seqlens = each[0]["cu_seqlens"].values if case.packed else None
    floating = [{name: x for name, x in arrays.items() if name != "cu_seqlens"} for arrays in each]
    arrays = _stacked(floating, _gru_axis)
    cotangents = _stacked([one.cotangent_arrays(dtype) for one in family.cases], lambda name: -2)
    precision = precision_of(dtype, case.steps)
    packing = {} if cu_seqlens is None else {"cu_seqlens": cu_seqlens}
    expected = (
        oracle.gru({**arrays, **packing}, {}, precision),
        oracle.gru_gradient({**arrays, **packing}, case.options(), cotangents, precision),
    )
    given = arrays
    if "input_state" not in arrays:
        given = {**arrays, "input_state": np.zeros(expected[0].values["state"].shape)}

    def run(form: Any) -> tuple[Values, Values]:
        return form.gru(given, cu_seqlens, case.clipping, cotangents, dtype)

    def by_case(name: str, x: np.ndarray) -> np.ndarray:
        return _rows(np.moveaxis(x, _gru_axis(name), 0), count)

    compared, dtype_of = _compared(GRU, case.state), _dtype_of(GRU, dtype, dtype)
    return [FamilyCall(expected, run, compared, dtype_of, by_case, (precision, precision))]


def _sum_calls(operation: str, family: Family, precision_of: PrecisionOf) -> list[FamilyCall]:
    record, case, dtype, count = OPERATIONS[operation], family.cases[0], family.dtype, len(family.cases)
    each = [record.call_of(one, dtype) for one in family.cases]
    arrays, cotangents = (
        {name: np.stack([of[name].values for of in all_of]) for name in all_of[0]}
        for all_of in ([call.arrays for call in each], [call.cotangents for call in each])
    )
    precision = precision_of(dtype, case.steps)
    expected = (record.value(arrays, {}, precision), record.gradient(arrays, {}, cotangents, precision))
    kind = Arithmetic(dtype).type
    narrow, dy = ({name: x.astype(kind) for name, x in of.items()} for of in (arrays, cotangents))

    def run(variant: Any) -> tuple[Values, Values]:
        A = Arithmetic(dtype)
        if isinstance(variant, automatic_torch.TorchForm | automatic_jax.JaxForm):
            return variant.sums(arrays, cotangents, dtype)
        if isinstance(variant, variants_decay.Form):
            value, gradient = _DECAY[operation]
            return value(variant, narrow, A), gradient(variant, narrow, dy, A)
        return (
            variants_scan.value(operation, variant, narrow, A),
            variants_scan.gradient(operation, variant, narrow, dy, A),
        )

    compared = (("y",), tuple(arrays))
    return [
        FamilyCall(expected, run, compared, lambda name: dtype, lambda name, x: _rows(x, count), (precision, precision))
    ]


_DECAY = {
    "causal_forget_matrix": (variants_decay.forget_value, variants_decay.forget_gradient),
    "dtilde_matrix": (variants_decay.dtilde_value, variants_decay.dtilde_gradient),
}
COMPILED = "few shapes, compiled"
UNROLLED = "few short shapes, compiled"
CLOSED = "forget gates' gradients from sums that cancel"
ANY_DESIGN = ("tolerance/designs.py", "oracle/_any_design.py", "oracle/_flushed.py", "oracle/_gate_sums.py")


def _one_step(limits: Limits) -> st.SearchStrategy:
    return cases.mlstm(limits, S=1)


def _of_h_alone(limits: Limits) -> st.SearchStrategy:
    return cases.mlstm(limits, cotangents="output only")


def _ordinary_gates(limits: Limits) -> st.SearchStrategy:
    return cases.mlstm(limits, gates="ordinary")


def _small_gates(limits: Limits) -> st.SearchStrategy:
    """Every forget gate is half closed, so that the sums grow at each step."""
    return cases.mlstm(limits, gates="small")


def _dense(operation: str) -> dict[str, tuple[Strategy, float]]:
    return {"dense": (OPERATIONS[operation].cases["dense"], 1.0)}


def _dense_and_packed(operation: str) -> dict[str, tuple[Strategy, float]]:
    strategies = OPERATIONS[operation].cases
    return {"dense": (strategies["dense"], 0.75), "packed": (strategies["packed"], 0.25)}


def _of_sums(operation: str) -> tuple[Subject, ...]:
    record = OPERATIONS[operation]
    variants = variants_decay.FORMS if operation in _DECAY else variants_scan.SCANS
    facts = {
        "op": operation,
        "strategies": _dense(operation),
        "strata": record.strata,
        "calls": partial(_sum_calls, operation),
    }
    compiled = {**automatic_jax.sums(operation), **automatic_torch.sums_compiled(operation)}
    return (
        Subject(variants={**variants, **automatic_torch.sums(operation)}, **facts),
        Subject(setting=COMPILED, eager=False, variants=compiled, **facts),
    )


def _of_recurrence(
    operation: str,
    forms: Mapping[str, Any],
    calls: Callable[[Family, PrecisionOf], list[FamilyCall]],
    strategies: Mapping[str, tuple[Strategy, float]],
    dense: Mapping[str, tuple[Strategy, float]],
    strata: tuple[str, ...] = ALL,
) -> tuple[Subject, ...]:
    """The mLSTM's operations: usual cases, and those for compiled variants.

    XLA flushes to 0 what is below the smallest normal number.
    """
    return (
        Subject(op=operation, variants=forms, calls=calls, strategies=strategies, strata=strata),
        Subject(
            op=operation,
            setting=COMPILED,
            eager=False,
            variants={**automatic_jax.MLSTM, **automatic_torch.MLSTM_COMPILED},
            calls=calls,
            strategies=dense,
            strata=strata,
            precision=AnyDesign,
            modules=ANY_DESIGN,
        ),
    )


_MLSTM = {**MLSTM_FORMS, **automatic_torch.MLSTM}
_STEP = {"step": (_one_step, 1.0)}
SUBJECTS = {
    subject.name: subject
    for subject in (
        *_of_sums("rev_cumsum"),
        *_of_sums("rev_cumsum_off"),
        *_of_sums("causal_forget_matrix"),
        *_of_sums("dtilde_matrix"),
        *_of_recurrence("mlstm", _MLSTM, _mlstm_calls, _dense_and_packed("mlstm"), _dense("mlstm")),
        Subject(
            op="mlstm",
            setting=UNROLLED,
            eager=False,
            variants=automatic_torch.MLSTM_UNROLLED,
            calls=_mlstm_calls,
            strategies=_dense("mlstm"),
            strata=("small",),
        ),
        Subject(
            op="mlstm",
            setting="cotangents of h alone",
            eager=False,
            variants={**automatic_torch.MLSTM_DETACHED, **automatic_jax.MLSTM_DETACHED},
            calls=_mlstm_calls,
            strategies={"dense": (_of_h_alone, 1.0)},
        ),
        Subject(
            op="mlstm",
            setting=CLOSED,
            variants=CLOSED_FORMS,
            calls=_mlstm_calls,
            strategies=_dense_and_packed("mlstm"),
            precision=AnyDesign,
            modules=ANY_DESIGN,
        ),
        Subject(
            op="mlstm",
            setting="differences of cumulative sums",
            variants=automatic_torch.MLSTM_RUNNING_SUMS,
            calls=_mlstm_calls,
            strategies={"ordinary gates": (_ordinary_gates, 0.5), "small gates": (_small_gates, 0.5)},
            strata=SHORT,
            precision=AnyDesign,
            modules=(*ANY_DESIGN, "oracle/_weight_sums.py"),
        ),
        Subject(
            op="mlstm",
            setting="products in TF32",
            variants=automatic_torch.MLSTM_TF32,
            calls=_mlstm_calls,
            strategies=_dense("mlstm"),
            dtypes=("float32",),
            precision=TensorFloat32,
        ),
        *_of_recurrence("mlstm_step", {**STEP_FORMS, **automatic_torch.MLSTM}, _mlstm_calls, _STEP, _STEP, ("small",)),
        *_of_recurrence(
            "mlstm_fwbw_custom_grad",
            _MLSTM,
            _fwbw_calls,
            _dense("mlstm_fwbw_custom_grad"),
            _dense("mlstm_fwbw_custom_grad"),
        ),
        Subject(
            op="gru",
            variants={**variants_gru.FORMS, **automatic_torch.GRU_FORMS},
            calls=_gru_calls,
            strategies=_dense_and_packed("gru"),
        ),
        Subject(
            op="gru",
            setting=COMPILED,
            eager=False,
            variants=automatic_jax.GRU,
            calls=_gru_calls,
            strategies=_dense("gru"),
        ),
        Subject(
            op="gru",
            setting=UNROLLED,
            eager=False,
            variants=automatic_torch.GRU_UNROLLED,
            calls=_gru_calls,
            strategies=_dense("gru"),
            strata=("small",),
        ),
        Subject(
            op="gru",
            setting="products in TF32",
            variants=automatic_torch.GRU_TF32,
            calls=_gru_calls,
            strategies=_dense("gru"),
            dtypes=("float32",),
            precision=TensorFloat32,
        ),
    )
}
