"""Each operation as a calibration sees it: which cases, which variants, what the oracle says of a family of cases.

A *call* is a family computed at once. `FamilyCall.expected` are the oracle's two answers, value and gradient, and
`FamilyCall.run` lets a variant compute; every array of theirs has, once `FamilyCall.by_case` has moved it, one row a
case.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance import cases, oracle
from conformance.base.dtypes import FLOATING, Array, accumulation
from conformance.cases import STRATA, Limits
from conformance.operations import OPERATIONS, Operation
from conformance.operations.gru import GRU
from conformance.operations.mlstm import MLSTM
from conformance.operations.slstm import SLSTM
from conformance.tolerance.budget import Expected, Precision
from conformance.tolerance.designs import AnyDesign, TensorFloat32
from tests.suite.calibration import (
    automatic_jax,
    automatic_torch,
    variants_decay,
    variants_gru,
    variants_scan,
    variants_slstm,
)
from tests.suite.calibration.arithmetic import Arithmetic
from tests.suite.calibration.families import Family
from tests.suite.calibration.mlstm_lanes import CLOSED_FORMS, MLSTM_FORMS, STEP_FORMS

Values = dict[str, np.ndarray]
Strategy = Callable[[Limits], st.SearchStrategy]


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
    strata: tuple[str, ...] = STRATA
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


_GRU_AXES = {
    each.name: GRU.axes("N")[each.name] - len(each.shape.split())
    for each in (*GRU.arguments, *GRU.outputs)
    if each.name in GRU.axes("N")
}
"""The axis of heads, counted from the last."""


def _gru_calls(family: Family, precision_of: PrecisionOf) -> list[FamilyCall]:
    """Cases stand side by side along the head axis: each has weights of its own."""
    case, dtype, count = family.cases[0], family.dtype, len(family.cases)
    each = [one.arrays(dtype) for one in family.cases]
    cu_seqlens = each[0]["cu_seqlens"].values if case.packed else None
    floating = [{name: x for name, x in arrays.items() if name != "cu_seqlens"} for arrays in each]
    arrays = _stacked(floating, _GRU_AXES.__getitem__)
    cotangents = _stacked([one.cotangent_arrays(dtype) for one in family.cases], _GRU_AXES.__getitem__)
    precision = precision_of(dtype, case.steps)
    packing = {} if cu_seqlens is None else {"cu_seqlens": cu_seqlens}
    expected = (
        oracle.gru({**arrays, **packing}, case.options(), precision),
        oracle.gru_gradient({**arrays, **packing}, case.options(), cotangents, precision),
    )
    given = arrays
    if "input_state" not in arrays:
        given = {**arrays, "input_state": np.zeros(expected[0].values["state"].shape)}
    if case.reset_after and "recurrent_bias" not in arrays:
        given = {**given, "recurrent_bias": np.zeros(arrays["weight"].shape[:-1])}

    def run(form: Any) -> tuple[Values, Values]:
        return form.gru(given, cu_seqlens, case.clipping, cotangents, dtype)

    def by_case(name: str, x: np.ndarray) -> np.ndarray:
        return _rows(np.moveaxis(x, _GRU_AXES[name], 0), count)

    outputs, primals = _compared(GRU, case.state)
    compared, dtype_of = (outputs, tuple(name for name in primals if name in arrays)), _dtype_of(GRU, dtype, dtype)
    return [FamilyCall(expected, run, compared, dtype_of, by_case, (precision, precision))]


_SLSTM_AXES = {name: 0 if name.startswith("weight") else -2 for name in SLSTM.axes("N")}
"""The axis of heads, that of arrays with steps or states counted from the last."""
_TOGETHER = 10
"""Cases that the oracle answers at once: it holds all steps of many copies."""


def _slstm_calls(family: Family, precision_of: PrecisionOf) -> list[FamilyCall]:
    """Cases stand side by side along the head axis: each has weights of its own."""
    case, dtype, count = family.cases[0], family.dtype, len(family.cases)
    axis = _SLSTM_AXES.__getitem__
    each = [one.arrays(dtype) for one in family.cases]
    packing = {"cu_seqlens": each[0]["cu_seqlens"].values} if case.packed else {}
    floating = [{name: x for name, x in arrays.items() if name != "cu_seqlens"} for arrays in each]
    d = [one.cotangent_arrays(dtype) for one in family.cases]
    arrays, cotangents, precision = _stacked(floating, axis), _stacked(d, axis), precision_of(dtype, case.steps)
    options = case.options()
    parts = []
    for at in range(0, count, _TOGETHER):
        some = {**_stacked(floating[at : at + _TOGETHER], axis), **packing}
        of_some = _stacked(d[at : at + _TOGETHER], axis)
        parts.append((oracle.slstm(some, options, precision), oracle.slstm_gradient(some, options, of_some, precision)))

    def side_by_side(which: int) -> Expected:
        values, slack = (
            {name: np.concatenate([getattr(part[which], of)[name] for part in parts], axis(name)) for name in names}
            for of in ("values", "slack")
            for names in [parts[0][which].values]
        )
        return Expected(values, slack)

    expected = (side_by_side(0), side_by_side(1))
    given = arrays
    if "c0" not in arrays:
        empty = {"c0": 0.0, "n0": 0.0, "m0": -np.inf, "h0": 0.0}
        shape = expected[0].values["c"].shape
        given = {**arrays, **{name: np.full(shape, value) for name, value in empty.items()}}
    # Without a final state only h has a cotangent.
    whole = {name: np.zeros(expected[0].values[name].shape) for name in SLSTM.states} | cotangents

    def run(form: Any) -> tuple[Values, Values]:
        found, gradients = form.slstm(
            given, packing.get("cu_seqlens"), case.forget_gate or "sigmoid", case.clipping, whole, dtype
        )
        outputs, m = dict(found), expected[0].values["m"]
        for name in ("c", "n"):
            outputs[name] = oracle.rescaled(outputs[name].astype(np.float64), outputs["m"].astype(np.float64), m)
        return outputs, gradients

    def by_case(name: str, x: np.ndarray) -> np.ndarray:
        return _rows(np.moveaxis(x, axis(name), 0), count)

    compared, dtype_of = _compared(SLSTM, case.state != "none"), _dtype_of(SLSTM, dtype, dtype)
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
RESET_AFTER = "reset gate after the product"
CLOSED = "forget gates' gradients from sums that cancel"
ANY_DESIGN = ("tolerance/designs.py", "oracle/_any_design.py", "oracle/_flushed.py", "oracle/_gate_sums.py")

_CALLS = {
    **{operation: partial(_sum_calls, operation) for operation in OPERATIONS},
    "mlstm": _mlstm_calls,
    "mlstm_step": _mlstm_calls,
    "mlstm_fwbw_custom_grad": _fwbw_calls,
    "gru": _gru_calls,
    "slstm": _slstm_calls,
    "slstm_step": _slstm_calls,
}


def _subject(op: str, variants: Mapping[str, Any], setting: str = "", packed: bool = False, **fields: Any) -> Subject:
    """Variants of an operation, on the cases of its record.

    Args:
        packed: whether a quarter of the cases are packed.
        fields: of the `Subject`, where they are not those of the record.
    """
    record = OPERATIONS[op]
    strategies = {"dense": (record.cases["dense"], 0.75 if packed else 1.0)}
    if packed:
        strategies["packed"] = (record.cases["packed"], 0.25)
    given = {"calls": _CALLS[op], "strategies": strategies, "strata": record.strata, **fields}
    return Subject(op=op, variants=variants, setting=setting, **given)


def _of_sums(op: str) -> tuple[Subject, ...]:
    by_hand = variants_decay.FORMS if op in _DECAY else variants_scan.SCANS
    compiled = {**automatic_jax.sums(op), **automatic_torch.sums_compiled(op)}
    return (
        _subject(op, {**by_hand, **automatic_torch.sums(op)}),
        _subject(op, compiled, COMPILED, eager=False),
    )


def _of_recurrence(op: str, forms: Mapping[str, Any], packed: bool = False, **fields: Any) -> tuple[Subject, ...]:
    """The mLSTM's operations: usual cases, and those for compiled variants.

    XLA flushes to 0 what is below the smallest normal number.
    """
    compiled = {**automatic_jax.MLSTM, **automatic_torch.MLSTM_COMPILED}
    return (
        _subject(op, forms, packed=packed, **fields),
        _subject(op, compiled, COMPILED, eager=False, precision=AnyDesign, modules=ANY_DESIGN, **fields),
    )


def _of_gru(form: str = "", formed: Callable[[Strategy], Strategy] = lambda strategy: strategy) -> tuple[Subject, ...]:
    """Subjects of one form of the GRU.

    Args:
        form: what the form is called; empty for the usual one.
        formed: makes cases of this form of cases of the usual one.
    """
    by_hand = {**variants_gru.FORMS, **automatic_torch.GRU_FORMS}
    usual = (
        _subject("gru", by_hand, packed=True),
        _subject("gru", automatic_jax.GRU, COMPILED, eager=False),
        _subject("gru", automatic_torch.GRU_UNROLLED, UNROLLED, eager=False, strata=("small",)),
        _subject("gru", automatic_torch.GRU_TF32, "products in TF32", **_TF32),
    )
    return tuple(
        replace(
            subject,
            setting=", ".join(part for part in (form, subject.setting) if part),
            strategies={name: (formed(strategy), share) for name, (strategy, share) in subject.strategies.items()},
        )
        for subject in usual
    )


def _reset_after(strategy: Strategy) -> Strategy:
    """Cases with the reset gate after the product, half of them with a recurrent bias."""
    biases = st.sampled_from((True, False))
    return lambda limits: st.builds(partial(replace, reset_after=True), strategy(limits), bias=biases)


def _fixed(**fields: Any) -> Strategy:
    return partial(cases.mlstm, **fields)


_MLSTM = {**MLSTM_FORMS, **automatic_torch.MLSTM}
_OF_H_ALONE = {"dense": (_fixed(cotangents="output only"), 1.0)}
# With small gates every forget gate is half closed, so that the sums grow at each step.
_OF_SUMS = {"ordinary gates": (_fixed(gates="ordinary"), 0.5), "small gates": (_fixed(gates="small"), 0.5)}
_TF32: dict[str, Any] = {"dtypes": ("float32",), "precision": TensorFloat32}
_STEP = {"step": (OPERATIONS["mlstm_step"].cases["dense"], 1.0)}
SUBJECTS = {
    subject.name: subject
    for subject in (
        *_of_sums("rev_cumsum"),
        *_of_sums("rev_cumsum_off"),
        *_of_sums("causal_forget_matrix"),
        *_of_sums("dtilde_matrix"),
        *_of_recurrence("mlstm", _MLSTM, packed=True),
        _subject("mlstm", automatic_torch.MLSTM_UNROLLED, UNROLLED, eager=False, strata=("small",)),
        _subject(
            "mlstm",
            {**automatic_torch.MLSTM_DETACHED, **automatic_jax.MLSTM_DETACHED},
            "cotangents of h alone",
            eager=False,
            strategies=_OF_H_ALONE,
        ),
        _subject("mlstm", CLOSED_FORMS, CLOSED, packed=True, precision=AnyDesign, modules=ANY_DESIGN),
        _subject(
            "mlstm",
            automatic_torch.MLSTM_RUNNING_SUMS,
            "differences of cumulative sums",
            strategies=_OF_SUMS,
            strata=("small", "chunk"),
            precision=AnyDesign,
            modules=(*ANY_DESIGN, "oracle/_weight_sums.py"),
        ),
        _subject("mlstm", automatic_torch.MLSTM_TF32, "products in TF32", **_TF32),
        *_of_recurrence("mlstm_step", {**STEP_FORMS, **automatic_torch.MLSTM}, strategies=_STEP),
        *_of_recurrence("mlstm_fwbw_custom_grad", _MLSTM, strata=STRATA),
        *_of_gru(),
        *_of_gru(RESET_AFTER, _reset_after),
        _subject("slstm", {**variants_slstm.FORMS, **automatic_torch.SLSTM_FORMS}, packed=True),
        _subject("slstm", automatic_jax.SLSTM, COMPILED, eager=False),
        _subject("slstm", automatic_torch.SLSTM_UNROLLED, UNROLLED, eager=False, strata=("small",)),
        _subject("slstm", automatic_torch.SLSTM_TF32, "products in TF32", **_TF32),
        _subject("slstm_step", {**variants_slstm.FORMS, **automatic_torch.SLSTM_FORMS}),
        _subject("slstm_step", {**automatic_jax.SLSTM, **automatic_torch.SLSTM_UNROLLED}, COMPILED, eager=False),
    )
}
