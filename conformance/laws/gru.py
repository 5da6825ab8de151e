"""The multi-head GRU: `gru`."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance import cases, oracle
from conformance.budget import Expected
from conformance.cases import GRUCase, Plan
from conformance.dtypes import ROUNDOFF, Array, array
from conformance.laws import law
from conformance.laws._refusals import BadCall, check_refusal, integers, recast, reshaped, with_arrays, with_options
from conformance.laws.mlstm import along_steps
from conformance.laws.scan import no_memory, pure
from conformance.operations import GRU_ARRAYS
from conformance.trial import LawError, Trial

STEP = "r = σ(hWr + xr), f = σ(hWf + xf), z = tanh((r⊙h)W + x), h' = f⊙h + (1−f)⊙z"
SEQUENCES = ("input", "forget_input", "reset_input")


def expected_value(trial: Trial, case: GRUCase) -> Expected:
    def make() -> Expected:
        return oracle.gru(oracle.values(case.arrays(trial.dtype)), {}, trial.precision(case.steps))

    return trial.remember(("gru value", replace(case, layout="contiguous", cut=0.0)), make)


def expected_gradient(trial: Trial, case: GRUCase) -> Expected:
    def make() -> Expected:
        arrays, cotangents = case.arrays(trial.dtype), case.cotangent_arrays(trial.dtype)
        return oracle.gru_gradient(
            oracle.values(arrays), case.options(), oracle.values(cotangents), trial.precision(case.steps)
        )

    return trial.remember(("gru gradient", replace(case, layout="contiguous", cut=0.0)), make)


def differentiable(case: GRUCase) -> tuple[str, ...]:
    return (*GRU_ARRAYS, "input_state") if case.state else GRU_ARRAYS


def check_value(trial: Trial, case: GRUCase) -> None:
    trial.agree(trial.call("gru", case.arrays(trial.dtype), case.options()), expected_value(trial, case), case.steps)


def check_gradient(trial: Trial, case: GRUCase) -> None:
    outputs, gradients = trial.vjp("gru", case.arrays(trial.dtype), case.cotangent_arrays(trial.dtype), case.options())
    trial.agree(outputs, expected_value(trial, case), case.steps)
    expected = expected_gradient(trial, case)
    trial.agree(gradients, expected, case.steps, of="gradient of ", only=differentiable(case))


law(
    "gru",
    "Outputs and final state are the recurrence's, for any head counts.",
    STEP,
    name="value",
    cases=cases.gru,
    compiled_dtypes=("float32", "bfloat16"),
    forward=True,
)(check_value)

law(
    "gru",
    "The gradient is exact for every argument, initial state and final-state cotangent included; clipping bounds what "
    "reaches h_t from the step after it, before dy_t is added, and not the initial state's.",
    "dh_t = clip(from step t+1, ±|c|) + dy_t",
    name="gradient",
    cases=cases.gru,
    gradient="gru",
)(check_gradient)


def _cuts(plan: Plan) -> st.SearchStrategy:
    # Clipping survives a cut: the gradient of the late part's initial state is clipped as the early part's cotangent.
    if plan.eager:
        shares = st.sampled_from((0.5, 0.0, 1.0, 0.25, 0.8))
        return st.builds(lambda case, cut: replace(case, cut=cut), cases.gru(plan), shares)
    S = {"small": 10, "chunk": 130}[plan.stratum]
    return cases.gru(plan, S=S).filter(lambda case: case.heads == cases.HEADS[0])


@law(
    "gru",
    "Cutting a sequence and carrying the state gives what the uncut sequence gives, gradients included.",
    "gru(x) = concat(gru(x[:t]), gru(x[t:], input_state=state(x[:t])))",
    name="split_and_carry",
    cases=_cuts,
    strata=("small", "chunk"),
    dtypes=("float64", "float32", "bfloat16"),
    compiled_dtypes=("float32",),
    share=0.75,
)
def split_and_carry(trial: Trial, case: GRUCase) -> None:
    arrays = case.arrays(trial.dtype)
    cut = round(case.cut * case.S)

    def part(steps: slice) -> dict[str, Array]:
        return {
            name: replace(x, values=x.values[:, steps]) if name in SEQUENCES else x
            for name, x in arrays.items()
            if name != "input_state"
        }

    early, late = part(slice(None, cut)), part(slice(cut, None))
    if case.state:
        early["input_state"] = arrays["input_state"]
    options = case.options()
    if trial.implementation.no_gradient("gru") is not None:
        first = trial.call("gru", early, options)
        second = trial.call("gru", {**late, "input_state": first["state"]}, options)
    else:
        cotangents = case.cotangent_arrays(trial.dtype)
        dy_early, dy_late = (
            replace(cotangents["y"], values=cotangents["y"].values[:, steps])
            for steps in (slice(None, cut), slice(cut, None))
        )
        nothing = replace(cotangents["state"], values=0 * cotangents["state"].values)
        first, _ = trial.vjp("gru", early, {"y": dy_early, "state": nothing}, options)
        resumed = {**late, "input_state": first["state"]}
        second, after = trial.vjp("gru", resumed, {"y": dy_late, "state": cotangents["state"]}, options)
        _, before = trial.vjp("gru", early, {"y": dy_early, "state": after["input_state"]}, options)
        joined = {
            name: along_steps(before[name], after[name])
            if name in SEQUENCES
            else replace(before[name], values=before[name].values + after[name].values)
            for name in GRU_ARRAYS
        }
        if case.state:
            joined["input_state"] = before["input_state"]
        expected = expected_gradient(trial, case)
        slack = {
            # Two weight gradients, each rounded to its dtype, are added: their magnitudes may cancel.
            name: expected.slack[name] + (_rounding(before[name], after[name]) if name.endswith("weight") else 0.0)
            for name in joined
        }
        trial.agree(
            joined,
            Expected(expected.values, slack),
            case.steps,
            of="gradient of ",
            only=differentiable(case),
            times=2,
        )
    outputs = {"y": along_steps(first["y"], second["y"]), "state": second["state"]}
    trial.agree(outputs, expected_value(trial, case), case.steps, times=2)


def _rounding(*parts: Array) -> np.ndarray:
    return np.asarray(sum(ROUNDOFF[part.dtype] * np.abs(part.values) for part in parts))


@law(
    "gru",
    "No output depends on a later input.",
    "y_t(x) = y_t(x′) where x_s = x′_s for s ≤ t",
    name="causality",
    cases=cases.gru,
    strata=("small", "chunk"),
    dtypes=("float64", "float32"),
    share=0.5,
)
def causality(trial: Trial, case: GRUCase) -> None:
    arrays = case.arrays(trial.dtype)
    cut = round(case.cut * case.S)
    other = replace(case, seed=case.seed + 1, gates="extreme").arrays(trial.dtype)
    mixed = {
        name: replace(x, values=np.concatenate([x.values[:, :cut], other[name].values[:, cut:]], axis=1))
        if name in SEQUENCES
        else x
        for name, x in arrays.items()
    }
    y = trial.call("gru", mixed, case.options())["y"]
    expected = expected_value(trial, case)
    early = replace(y, values=y.values[:, :cut])
    trial.close("y", early, expected.values["y"][:, :cut], expected.slack["y"][:, :cut], case.steps)


@law(
    "gru",
    "A packed call gives what a loop over its sequences gives; an empty one returns its initial state.",
    "gru(x, cu_seqlens)[b] = gru(x[cu_b:cu_{b+1}])",
    name="packed",
    cases=cases.packed_gru,
    dtypes=("float64", "float32", "bfloat16"),
    compiled_dtypes=("float32",),
    forward=True,
)
def packed(trial: Trial, case: GRUCase) -> None:
    check_value(trial, case)


@law(
    "gru",
    "The gradient of a packed call is that of a loop over its sequences.",
    "d gru(x, cu_seqlens)[b] = d gru(x[cu_b:cu_{b+1}])",
    name="packed_gradient",
    cases=cases.packed_gru,
    dtypes=("float64", "float32", "bfloat16"),
    gradient="gru",
    share=0.75,
)
def packed_gradient(trial: Trial, case: GRUCase) -> None:
    check_gradient(trial, case)


@law(
    "gru",
    "Grouped heads give what the same heads written out give, and their gradient is the group's sum.",
    "gru(x, W) = gru(repeat(x), repeat(W));  dW = Σ_group d repeat(W)",
    name="grouped_heads",
    cases=lambda plan: cases.gru(plan) if plan.eager else cases.gru(plan).filter(lambda case: case.S in (5, 65)),
    strata=("small", "chunk"),
    dtypes=("float64", "float32"),
    compiled_dtypes=("float32",),
    share=0.5,
)
def grouped_heads(trial: Trial, case: GRUCase) -> None:
    arrays, N = case.arrays(trial.dtype), case.N
    axes = {name: 0 if name.endswith("weight") else -2 for name in GRU_ARRAYS}

    def expand(name: str, x: Array) -> Array:
        if name not in axes:
            return x
        return replace(x, values=np.repeat(x.values, N // x.shape[axes[name]], axis=axes[name]))

    written_out = {name: expand(name, x) for name, x in arrays.items()}
    expected = expected_value(trial, case)
    if trial.implementation.no_gradient("gru") is not None:
        trial.agree(trial.call("gru", written_out, case.options()), expected, case.steps)
        return
    cotangents = case.cotangent_arrays(trial.dtype)
    outputs, gradients = trial.vjp("gru", written_out, cotangents, case.options())
    trial.agree(outputs, expected, case.steps)
    of_groups = expected_gradient(trial, case)
    for name, axis in axes.items():
        got, heads = gradients[name], arrays[name].shape[axes[name]]
        axis %= len(got.shape)
        shape = (*got.shape[:axis], heads, N // heads, *got.shape[axis + 1 :])
        summed = replace(got, values=got.values.reshape(shape).sum(axis=axis + 1))
        slack = of_groups.slack[name] + trial.precision(1).roundoff * np.abs(got.values.reshape(shape)).sum(axis + 1)
        trial.close(f"gradient of {name}", summed, of_groups.values[name], slack, case.steps, times=2)


@law(
    "gru",
    "Sequences of a batch are independent: permuting them permutes the results.",
    "gru(πx) = π gru(x)",
    name="permutation",
    cases=cases.gru,
    strata=("small", "chunk"),
    dtypes=("float64", "float32"),
    share=0.5,
)
def permutation(trial: Trial, case: GRUCase) -> None:
    order = np.arange(case.B)[::-1]
    arrays = {
        name: replace(x, values=x.values[order]) if not name.endswith("weight") else x
        for name, x in case.arrays(trial.dtype).items()
    }
    expected = expected_value(trial, case)
    expected = Expected(
        {name: x[order] for name, x in expected.values.items()}, {name: x[order] for name, x in expected.slack.items()}
    )
    trial.agree(trial.call("gru", arrays, case.options()), expected, case.steps)


@law(
    "gru",
    "A forget gate of 1 keeps the state bit by bit, and its gradient passes whole.",
    "xf = +∞ ⇒ y_t = h_0, dh_0 = dh_T + Σ dy_t",
    name="fixed_point",
    cases=lambda plan: (
        cases.gru(plan, gates="ordinary", clipping=None)
        if plan.eager
        else cases.gru(plan).filter(lambda case: case.state and not case.clipping)
    ),
    strata=("chunk",),
    dtypes=("float64", "float32"),
    share=0.25,
)
def fixed_point(trial: Trial, case: GRUCase) -> None:
    arrays = dict(case.arrays(trial.dtype))
    arrays["forget_input"] = replace(arrays["forget_input"], values=np.full(arrays["forget_input"].shape, np.inf))
    outputs = trial.call("gru", arrays, case.options())
    h0 = arrays["input_state"].values if case.state else np.zeros((case.B, case.N, case.H))
    kept = np.broadcast_to(h0[:, None], (case.B, case.S, case.N, case.H))
    if not np.array_equal(outputs["y"].values, kept) or not np.array_equal(outputs["state"].values, h0):
        raise LawError("y", "a state behind a forget gate of exactly 1 changed")


@law(
    "gru",
    "Finite in, finite out: no preactivation, however extreme, makes a NaN, in outputs or gradients.",
    "xf, xr ∈ [−∞, ∞] ⇒ no NaN",
    name="finite",
    cases=lambda plan: st.one_of(*(cases.gru(plan, gates=gates) for gates in ("extreme", "saturated"))),
    share=0.75,
)
def finite(trial: Trial, case: GRUCase) -> None:
    arrays, options = case.arrays(trial.dtype), case.options()
    trial.expect_no_nan(trial.call("gru", arrays, options))
    if trial.implementation.no_gradient("gru") is None:
        outputs, gradients = trial.vjp("gru", arrays, case.cotangent_arrays(trial.dtype), options)
        trial.expect_no_nan(outputs)
        trial.expect_no_nan(gradients, "gradient of ")


@law(
    "gru",
    "The output has the dtype of the input, the state the accumulation dtype, each gradient the dtype of its primal.",
    "dtype(y) = dtype(x), dtype(state) = float32 or wider, dtype(dx) = dtype(x)",
    name="dtypes",
    cases=cases.gru,
    strata=("small",),
    gradient="gru",
    share=0.5,
)
def dtypes(trial: Trial, case: GRUCase) -> None:
    arrays = case.arrays(trial.dtype)
    outputs, gradients = trial.vjp("gru", arrays, case.cotangent_arrays(trial.dtype), case.options())
    trial.expect_dtypes(outputs, gradients, arrays, ("y",))


@law(
    "gru",
    "Strided inputs give what contiguous ones give; inputs are left alone and no output shares memory.",
    "gru(x[::2]) = gru(copy of x[::2])",
    name="memory",
    cases=lambda plan: st.one_of(cases.gru(plan), cases.packed_gru(plan)),
    strata=("small",),
    dtypes=("float64", "float32"),
    skip=no_memory,
)
def memory(trial: Trial, case: GRUCase) -> None:
    for layout in trial.implementation.layouts:
        laid = replace(case, layout=layout)
        check_value(trial, laid)
        if trial.implementation.no_gradient("gru") is None:
            check_gradient(trial, laid)
        pure(trial, "gru", laid.arrays(trial.dtype), laid.cotangent_arrays(trial.dtype), laid.options())


@law(
    "gru",
    "The state is carried in the accumulation dtype: 16-bit values remember as float32 does, over many steps.",
    "W = 0, xf constant ⇒ h_T = fᵀh_0 + (1 − fᵀ) tanh(x), to a few float32 roundoffs",
    name="accumulation",
    cases=lambda plan: cases.gru(plan, scale=1.0, state=True, clipping=None) if plan.eager else cases.gru(plan),
    strata=("chunk", "long"),
    dtypes=("bfloat16", "float16"),
    share=0.25,
)
def state_accumulation(trial: Trial, case: GRUCase) -> None:
    # With no weights there is no product whose operand might be rounded: only the carried state is left.
    arrays = dict(case.arrays(trial.dtype))
    for name in GRU_ARRAYS:
        if name.endswith("weight"):
            arrays[name] = replace(arrays[name], values=0 * arrays[name].values)
    arrays["forget_input"] = replace(arrays["forget_input"], values=np.full(arrays["forget_input"].shape, 4.0))
    precise = replace(trial.precision(case.steps), dtype="float32")
    expected = oracle.gru(oracle.values(arrays), {}, precise)
    got = trial.call("gru", arrays, case.options())
    trial.agree(got, expected, case.steps, only=("state",))


def _base() -> dict[str, Any]:
    return GRUCase(2, 3, 4, (4, 2, 1, 4, 2, 1)).arrays("float32")


def _stateful() -> dict[str, Any]:
    return GRUCase(2, 3, 4, (4, 2, 1, 4, 2, 1), state=True).arrays("float32")


def _packed() -> dict[str, Any]:
    return GRUCase(2, 0, 4, (4, 2, 1, 4, 2, 1), lengths=(2, 4)).arrays("float32")


def _bad_calls() -> list[BadCall]:
    op = "gru"
    arrays = [
        ("`input` of rank 3", {"input": reshaped(2, 3, 4)}),
        ("`weight` that is not square", {"weight": reshaped(2, 4, 5)}),
        ("`weight` of another H", {"weight": reshaped(2, 5, 5)}),
        ("`weight` of rank 2", {"weight": reshaped(4, 4)}),
        ("`forget_input` of another S", {"forget_input": reshaped(2, 4, 1, 4)}),
        ("`reset_input` of another B", {"reset_input": reshaped(1, 3, 2, 4)}),
        ("`forget_weight` of another H", {"forget_weight": reshaped(4, 3, 3)}),
        ("`reset_weight` with 3 heads of 4", {"reset_weight": reshaped(3, 4, 4)}),
        ("`input` with 3 heads of 4", {"input": reshaped(2, 3, 3, 4)}),
        ("`weight` with no heads", {"weight": reshaped(0, 4, 4)}),
        ("`input` of integers", {"input": recast("int32")}),
        ("`reset_weight` in float64", {"reset_weight": recast("float64")}),
        ("`forget_input` in float16", {"forget_input": recast("float16")}),
        ("None for `weight`", {"weight": None}),
    ]
    states = [
        ("a state of another N", {"input_state": reshaped(2, 2, 4)}),
        ("a state of another B", {"input_state": reshaped(1, 4, 4)}),
        ("a state of rank 2", {"input_state": reshaped(2, 16)}),
        ("a state in float16", {"input_state": recast("float16")}),
        ("a state of integers", {"input_state": recast("int32")}),
    ]
    packings = [
        ("`cu_seqlens` that falls", integers(0, 5, 4, 6)),
        ("`cu_seqlens` that starts above 0", integers(1, 2, 6)),
        ("`cu_seqlens` that ends short", integers(0, 2, 5)),
        ("`cu_seqlens` that ends beyond", integers(0, 2, 7)),
        ("`cu_seqlens` of rank 2", integers([0, 2, 6])),
        ("empty `cu_seqlens`", integers()),
        ("floating `cu_seqlens`", array(np.array([0.0, 2.0, 6.0]), "float32")),
    ]
    options = [
        ("a word for the clipping", {"gradient_clipping": "1"}),
        ("a clipping of NaN", {"gradient_clipping": float("nan")}),
        ("`max_seqlen` without `cu_seqlens`", {"max_seqlen": 3}),
    ]
    return [
        *(with_arrays(_base, op, label, **changes) for label, changes in arrays),
        *(with_arrays(_stateful, op, label, **changes) for label, changes in states),
        *(with_arrays(_packed, op, label, cu_seqlens=packing) for label, packing in packings),
        with_arrays(_base, op, "`cu_seqlens` beside dense arrays", cu_seqlens=integers(0, 3)),
        *(with_options(_base, op, label, **changes) for label, changes in options),
        with_options(_packed, op, "a `max_seqlen` that is too short", max_seqlen=3),
    ]


law(
    "gru",
    "A bad call raises the reference's error, in type and text.",
    "error(target) = error(reference)",
    name="bad_calls",
    rows=_bad_calls,
    dtypes=("float32",),
)(check_refusal)
