"""Each operation as a calibration sees it: which cases, which variants, what the oracle says of a family of cases.

A *call* is a family computed at once. `FamilyCall.expected` are the oracle's two answers, value and gradient, and
`FamilyCall.run` lets a variant compute; every array of theirs has, once `FamilyCall.by_case` has moved it, one row a
case.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance import cases, oracle
from conformance.base.dtypes import FLOATING, Array, accumulation
from conformance.cases import CLIPPING, STRATA, Limits
from conformance.operations import LOG_SCALE, OPERATIONS, Operation
from conformance.operations.fwbw import FWBW
from conformance.operations.gru import GRU
from conformance.operations.mlstm import MLSTM
from conformance.operations.slstm import SLSTM
from conformance.tolerance.budget import Expected, Precision
from conformance.tolerance.designs import AnyDesign, TensorFloat32
from conformance.tolerance.staged import combined
from tests.suite.calibration import (
    automatic_jax,
    automatic_torch,
    variants_decay,
    variants_gru,
    variants_scan,
    variants_slstm,
)
from tests.suite.calibration.arithmetic import plain_sum
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
        cases: so many are judged.
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
    cases: int = 10_000

    @property
    def name(self) -> str:
        return f"{self.op}, {self.setting}" if self.setting else self.op


def _stacked(parts: list[dict[str, Array]], axis: Callable[[str], int] = lambda name: 0) -> Values:
    return {name: np.concatenate([part[name].values for part in parts], axis=axis(name)) for name in parts[0]}


def _rows(x: np.ndarray, count: int) -> np.ndarray:
    return x.reshape(count, x.size // count)


def _call(
    record: Operation,
    dtype: str,
    arrays: Values,
    cotangents: Values,
    options: Mapping[str, Any],
    expected: tuple[Expected, Expected],
    precision: Precision,
    by_case: Callable[[str, np.ndarray], np.ndarray],
    *,
    drawn: Mapping[str, Array],
    cu_seqlens: np.ndarray | None = None,
) -> FamilyCall:
    """A family as one call.

    Args:
        arrays, cotangents: all that a variant needs, those included that a call may omit.
        drawn: the arrays of a case; the others have no gradient.
    """

    def run(form: Any) -> tuple[Values, Values]:
        outputs, gradients = _answers(form, record, arrays, options, cotangents, dtype, cu_seqlens)
        # States are compared in the units of the expected ones, in float64, as the laws do.
        wide = {name: x.astype(np.float64) for name, x in outputs.items() if name in record.states}
        for name, scale in LOG_SCALE.items():
            if name in outputs:
                outputs = {**outputs, name: oracle.rescaled(wide[name], wide[scale], expected[0].values[scale])}
        return outputs, gradients

    roles = {array.name: array.role for array in (*record.arguments, *record.outputs)}
    gates = [drawn[name].dtype for name in record.primals if roles[name] == "gate"]
    dtypes = {"value": dtype, "gate": gates[0] if gates else dtype, "state": accumulation(dtype)}
    compared = (
        tuple(output.name for output in record.outputs),
        tuple(name for name in record.primals if name in drawn),
    )
    return FamilyCall(expected, run, compared, lambda name: dtypes[roles[name]], by_case, (precision, precision))


def _answers(
    form: Any,
    record: Operation,
    arrays: Values,
    options: Mapping[str, Any],
    cotangents: Values,
    dtype: str,
    cu_seqlens: np.ndarray | None,
) -> tuple[Values, Values]:
    """Outputs and gradients by a variant, which is called with dense arrays: of a packed call sequence by sequence."""
    if cu_seqlens is None:
        return form.answers(record, arrays, options, cotangents, dtype)
    states = {*record.states, *record.state_arguments}

    def part(name: str, x: np.ndarray, b: int, steps: slice) -> np.ndarray:
        return x if name in record.weights else x[b : b + 1] if name in states else x[None, steps]

    found = []
    for b, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
        given, dgiven = (
            {name: part(name, x, b, slice(start, end)) for name, x in of.items()} for of in (arrays, cotangents)
        )
        found.append(form.answers(record, given, options, dgiven, dtype))

    def joined(name: str, parts: list[np.ndarray]) -> np.ndarray:
        if name in record.weights:
            return getattr(form, "add", plain_sum)(np.stack(parts), 0)
        return np.concatenate(parts) if name in states else np.concatenate(parts, axis=1)[0]

    outputs, gradients = (
        {name: joined(name, [one[at][name] for one in found]) for name in found[0][at]} for at in (0, 1)
    )
    return outputs, gradients


def _mlstm_call(
    record: Operation,
    arrays: Values,
    cotangents: Values,
    dtype: str,
    count: int,
    precision: Precision,
    *,
    drawn: Mapping[str, Array],
    eps: float = 0.0,
    floor_is_one: bool = False,
) -> FamilyCall:
    """A dense call; one of the fwbw interface has no axis of heads until its answers are here."""
    options = {"config": {"stabilize_correctly": not floor_is_one}} if record is FWBW else {"eps": eps}
    expected = record.value(arrays, options, precision), record.gradient(arrays, options, cotangents, precision)
    if record is FWBW:
        arrays, cotangents = (_headed(of) for of in (arrays, cotangents))
        expected = tuple(Expected(_headed(each.values), _headed(each.slack)) for each in expected)
    options = {"eps": eps, "floor_is_one": floor_is_one}

    def by_case(name: str, x: np.ndarray) -> np.ndarray:
        return _rows(x, count)

    return _call(MLSTM, dtype, arrays, cotangents, options, expected, precision, by_case, drawn=drawn)


def _headed(arrays: dict[str, Any]) -> dict[str, Any]:
    """Arrays of the fwbw interface with one head."""
    return {name: x[:, :, None] if name in (*"qkvif", "h") else x[:, None] for name, x in arrays.items()}


def _mlstm_calls(family: Family, precision_of: PrecisionOf) -> list[FamilyCall]:
    case, dtype = family.cases[0], family.dtype
    each = [one.arrays(dtype) for one in family.cases]
    d = [one.cotangent_arrays(dtype) for one in family.cases]
    facts: dict[str, Any] = {"drawn": each[0], "eps": case.eps}
    precision, count = precision_of(dtype, case.steps), len(each)
    if case.lengths is None:
        arrays, cotangents = oracle.with_state(_stacked(each)), _stacked(d)
        return [_mlstm_call(MLSTM, arrays, cotangents, dtype, count, precision, **facts)]
    split = [
        oracle.each_sequence(oracle.with_state(oracle.values(arrays)), oracle.values(cotangents))
        for arrays, cotangents in zip(each, d, strict=True)
    ]
    calls = []
    for b in range(len(case.lengths)):
        arrays, cotangents = (
            {name: np.concatenate([one[b][at][name] for one in split]) for name in split[0][b][at]} for at in (0, 1)
        )
        calls.append(_mlstm_call(MLSTM, arrays, cotangents, dtype, count, precision, **facts))
    return calls


def _fwbw_calls(family: Family, precision_of: PrecisionOf) -> list[FamilyCall]:
    case, dtype = family.cases[0], family.dtype
    each = [FWBW.call_of(one, dtype) for one in family.cases]
    arrays = _stacked([call.arrays for call in each])
    arrays |= {name: arrays[name].reshape(arrays[name].shape[:2]) for name in "if"}
    B, _, K = arrays["q"].shape
    zeros = {"C0": np.zeros((B, K, arrays["v"].shape[-1])), "n0": np.zeros((B, K)), "m0": np.zeros(B)}
    cotangents = {name: zeros[f"{name}0"] for name in "Cnm"} | _stacked([call.cotangents for call in each])
    facts: dict[str, Any] = {"drawn": each[0].arrays, "floor_is_one": not case.stabilize_correctly}
    precision = precision_of(dtype, case.steps)
    return [_mlstm_call(FWBW, zeros | arrays, cotangents, dtype, len(each), precision, **facts)]


_TOGETHER = 25
"""Cases of the GRU and the sLSTM that the oracle answers at once: it holds all steps of many copies."""


def _calls_side_by_side(record: Operation, family: Family, precision_of: PrecisionOf) -> list[FamilyCall]:
    """Cases stand side by side along the head axis: each has weights of its own."""
    case, dtype, count = family.cases[0], family.dtype, len(family.cases)
    letters = {each.name: len(each.shape.split()) for each in (*record.arguments, *record.outputs)}
    # The axis of heads, counted from the last: packed arrays lack the axis of sequences.
    axes = {name: at - letters[name] for name, at in record.axes("N").items()}
    axis = axes.__getitem__
    drawn = [one.arrays(dtype) for one in family.cases]
    packing = {"cu_seqlens": drawn[0]["cu_seqlens"].values} if case.packed else {}
    each = [{name: x for name, x in arrays.items() if name != "cu_seqlens"} for arrays in drawn]
    d, precision = [one.cotangent_arrays(dtype) for one in family.cases], precision_of(dtype, case.steps)
    parts = []
    for at in range(0, count, _TOGETHER):
        some, of_some = ({**_stacked(of[at : at + _TOGETHER], axis)} for of in (each, d))
        some |= packing
        parts.append(
            (
                record.value(some, case.options(), precision),
                record.gradient(some, case.options(), of_some, precision),
            )
        )

    def side_by_side(which: int) -> Expected:
        answers = [part[which] for part in parts]

        def joined(name: str) -> Callable[..., np.ndarray]:
            return lambda *each: np.concatenate(each, axis(name))

        return Expected(
            {name: joined(name)(*(answer.values[name] for answer in answers)) for name in answers[0].values},
            {name: combined(joined(name), *(answer.slack[name] for answer in answers)) for name in answers[0].values},
        )

    expected = (side_by_side(0), side_by_side(1))
    arrays, cotangents = _stacked(each, axis), _stacked(d, axis)
    for output, name in record.states.items():
        shape = expected[0].values[output].shape
        arrays.setdefault(name, np.full(shape, -np.inf if name == "m0" else 0.0))
        # Without a final state only the other outputs have a cotangent.
        cotangents.setdefault(output, np.zeros(shape))
    if case.options().get("reset_after"):
        arrays.setdefault("recurrent_bias", np.zeros(arrays["weight"].shape[:-1]))
    options = {"gradient_clipping": getattr(case, CLIPPING)}
    if record.takes("forget_gate"):
        options["forget_gate"] = case.with_forget_gate or "sigmoid"

    def by_case(name: str, x: np.ndarray) -> np.ndarray:
        return _rows(np.moveaxis(x, axis(name), 0), count)

    cu_seqlens = packing.get("cu_seqlens")
    facts: dict[str, Any] = {"drawn": each[0], "cu_seqlens": cu_seqlens}
    return [_call(record, dtype, arrays, cotangents, options, expected, precision, by_case, **facts)]


def _sum_calls(operation: str, family: Family, precision_of: PrecisionOf) -> list[FamilyCall]:
    record, case, dtype, count = OPERATIONS[operation], family.cases[0], family.dtype, len(family.cases)
    each = [record.call_of(one, dtype) for one in family.cases]
    arrays, cotangents = (
        {name: np.stack([of[name].values for of in all_of]) for name in all_of[0]}
        for all_of in ([call.arrays for call in each], [call.cotangents for call in each])
    )
    precision = precision_of(dtype, case.steps)
    expected = (record.value(arrays, {}, precision), record.gradient(arrays, {}, cotangents, precision))

    def by_case(name: str, x: np.ndarray) -> np.ndarray:
        return _rows(x, count)

    return [_call(record, dtype, arrays, cotangents, {}, expected, precision, by_case, drawn=each[0].arrays)]


ROUNDED = ("mlstm", "mlstm_step", "mlstm_fwbw_custom_grad", "gru", "slstm", "slstm_step")
"""Operations whose tolerances come from runs of the specification, which take their time."""
COMPILED = "few shapes, compiled"
UNROLLED = "few short shapes, compiled"
RESET_AFTER = "reset gate after the product"
CLOSED = "forget gates' gradients from sums that cancel"
ANY_DESIGN = ("tolerance/designs.py", "rows/foreign.py")

_CALLS = {
    **{operation: partial(_sum_calls, operation) for operation in OPERATIONS},
    "mlstm": _mlstm_calls,
    "mlstm_step": _mlstm_calls,
    "mlstm_fwbw_custom_grad": _fwbw_calls,
    "gru": partial(_calls_side_by_side, GRU),
    "slstm": partial(_calls_side_by_side, SLSTM),
    "slstm_step": partial(_calls_side_by_side, SLSTM),
}


def _subject(op: str, variants: Mapping[str, Any], setting: str = "", packed: bool = False, **fields: Any) -> Subject:
    """Variants of an operation, on the cases of its record.

    Args:
        packed: whether a quarter of the cases are packed.
        fields: of the `Subject`, where they are not those of the record.
    """
    record = OPERATIONS[op]
    if op in ROUNDED:
        fields["cases"] = 1_000
    strategies = {"dense": (record.cases["dense"], 0.75 if packed else 1.0)}
    if packed:
        strategies["packed"] = (record.cases["packed"], 0.25)
    given = {"calls": _CALLS[op], "strategies": strategies, "strata": record.strata, **fields}
    return Subject(op=op, variants=variants, setting=setting, **given)


def _of_sums(op: str) -> tuple[Subject, ...]:
    by_hand = (variants_decay if "matrix" in op else variants_scan).FORMS
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
    short = {**fields, "strata": ("small", "chunk")}
    return (
        _subject(op, forms, packed=packed, **fields),
        _subject(op, compiled, COMPILED, eager=False, precision=AnyDesign, modules=ANY_DESIGN, **short),
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
    after = partial(replace, with_reset_after=True)
    left_out = st.sampled_from(((), ("recurrent_bias",)))
    return lambda limits: st.builds(after, strategy(limits), left_out=left_out)


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
            modules=ANY_DESIGN,
        ),
        _subject("mlstm", automatic_torch.MLSTM_TF32, "products in TF32", **_TF32),
        *_of_recurrence("mlstm_step", {**STEP_FORMS, **automatic_torch.MLSTM}, strategies=_STEP),
        *_of_recurrence("mlstm_fwbw_custom_grad", _MLSTM, strata=STRATA),
        *_of_gru(),
        *_of_gru(RESET_AFTER, _reset_after),
        _subject("slstm", {**variants_slstm.FORMS, **automatic_torch.SLSTM_FORMS}, packed=True),
        _subject("slstm", automatic_jax.SLSTM, COMPILED, eager=False, strata=("small", "chunk")),
        _subject("slstm", automatic_torch.SLSTM_UNROLLED, UNROLLED, eager=False, strata=("small",)),
        _subject("slstm", automatic_torch.SLSTM_TF32, "products in TF32", **_TF32),
        _subject("slstm_step", {**variants_slstm.FORMS, **automatic_torch.SLSTM_FORMS}),
        _subject("slstm_step", {**automatic_jax.SLSTM, **automatic_torch.SLSTM_UNROLLED}, COMPILED, eager=False),
    )
}
