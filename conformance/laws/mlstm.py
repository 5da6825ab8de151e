"""The mLSTM over whole sequences: `mlstm`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance import cases, oracle
from conformance.budget import Expected
from conformance.cases import MLSTMCase, Plan
from conformance.dtypes import Array, accumulation, array
from conformance.laws import law
from conformance.laws._refusals import BadCall, check_refusal, integers, recast, reshaped, with_arrays, with_options
from conformance.laws.scan import no_memory, pure
from conformance.trial import LawError, Trial

VALUE = "h_t = C_tᵀq̂_t / (max(|n_t·q̂_t|, exp(−min(m_t, 64))) + eps)"
GRADIENT = "dx = Σ_out ⟨d_out, ∂out/∂x⟩ for x in q, k, v, i, f, C₀, n₀, m₀ and out in h, C_T, n_T, m_T"
CARRY = ("C", "n", "m")


def expected_value(trial: Trial, case: MLSTMCase) -> Expected:
    """The oracle's outputs, with zeros for an initial state left out; a packed case is looped over."""

    def make() -> Expected:
        arrays, precision = oracle.values(case.arrays(trial.dtype)), trial.precision(case.steps)
        if case.lengths is None:
            return oracle.mlstm(arrays, case.options(), precision)
        calls = oracle.each_sequence(arrays, {}, case.lengths)
        return oracle.joined([oracle.mlstm(sequence, case.options(), precision) for sequence, _ in calls])

    return trial.remember(("mlstm value", replace(case, chunk_size=None, layout="contiguous", cut=0.0)), make)


def expected_gradient(trial: Trial, case: MLSTMCase) -> Expected:
    def make() -> Expected:
        arrays, precision = oracle.values(case.arrays(trial.dtype)), trial.precision(case.steps)
        cotangents = oracle.values(case.cotangent_arrays(trial.dtype))
        if case.lengths is None:
            return oracle.mlstm_gradient(arrays, case.options(), cotangents, precision)
        calls = oracle.each_sequence(arrays, cotangents, case.lengths)
        return oracle.joined([oracle.mlstm_gradient(x, case.options(), dx, precision) for x, dx in calls])

    return trial.remember(("mlstm gradient", replace(case, chunk_size=None, layout="contiguous", cut=0.0)), make)


def differentiable(case: MLSTMCase) -> tuple[str, ...]:
    return (*"qkvif", "C0", "n0", "m0") if case.state != "none" else tuple("qkvif")


def check_value(trial: Trial, case: MLSTMCase) -> None:
    trial.agree(trial.call("mlstm", case.arrays(trial.dtype), case.options()), expected_value(trial, case), case.steps)


def check_gradient(trial: Trial, case: MLSTMCase) -> None:
    outputs, gradients = trial.vjp(
        "mlstm", case.arrays(trial.dtype), case.cotangent_arrays(trial.dtype), case.options()
    )
    expected = expected_gradient(trial, case)
    trial.note_kinks(expected)
    trial.agree(outputs, expected_value(trial, case), case.steps)
    trial.agree(gradients, expected, case.steps, of="gradient of ", only=differentiable(case))


law(
    "mlstm",
    "Outputs and final state are the recurrence's.",
    VALUE,
    name="value",
    cases=cases.mlstm,
    compiled_dtypes=("float32", "bfloat16"),
    forward=True,
)(check_value)

law(
    "mlstm",
    "The gradient is exact for every floating argument, initial states and final-state cotangents included.",
    GRADIENT,
    name="gradient",
    cases=cases.mlstm,
    gradient="mlstm",
)(check_gradient)


def _chunks(plan: Plan) -> st.SearchStrategy:
    if plan.eager:
        sizes = {"small": (1, 2, 3, 7, 64), "chunk": (1, 2, 13, 16, 32, 64, 128, 131), "long": (64, 100, 256)}
        return st.builds(
            lambda case, size: replace(case, chunk_size=size),
            cases.mlstm(plan),
            st.sampled_from(sizes[plan.stratum]),
        )
    size = {"small": 2, "chunk": 16, "long": 100}[plan.stratum]
    return cases.mlstm(plan, chunk_size=size).filter(lambda case: case.state != "none" and case.S > 1)


@law(
    "mlstm",
    "No value and no gradient depends on the chunk size.",
    "mlstm(…, chunk_size=L) = mlstm(…) for every L ≥ 1",
    name="chunk_invariance",
    cases=_chunks,
    dtypes=("float64", "float32", "bfloat16"),
    compiled_dtypes=("float32",),
    share=0.75,
)
def chunk_invariance(trial: Trial, case: MLSTMCase) -> None:
    if trial.implementation.no_gradient("mlstm") is None:
        check_gradient(trial, case)
        if not trial.implementation.eager:
            return
    check_value(trial, case)


def tokens(arrays: Mapping[str, Array], part: slice, names: str) -> dict[str, Array]:
    """The steps ``part`` of the arrays of that name."""
    return {name: replace(x, values=x.values[:, part]) for name, x in arrays.items() if name in names}


def _cuts(plan: Plan) -> st.SearchStrategy:
    if plan.eager:
        shares = st.sampled_from((0.5, 0.0, 1.0, 0.25, 0.8))
        return st.builds(lambda case, cut: replace(case, cut=cut), cases.mlstm(plan), shares)
    # Both halves have the shape of a row that other laws compile.
    S = {"small": 10, "chunk": 130}.get(plan.stratum, 0)
    return cases.mlstm(plan, S=S).filter(lambda case: case.state != "none" and case.N > 1)


@law(
    "mlstm",
    "Cutting a sequence and carrying the state gives what the uncut sequence gives, gradients included.",
    "mlstm(x) = concat(mlstm(x[:t]), mlstm(x[t:], initial_state=state(x[:t])))",
    name="split_and_carry",
    cases=_cuts,
    strata=("small", "chunk"),
    dtypes=("float64", "float32", "bfloat16"),
    compiled_dtypes=("float32",),
    share=0.75,
)
def split_and_carry(trial: Trial, case: MLSTMCase) -> None:
    arrays, options = case.arrays(trial.dtype), case.options()
    cut = round(case.cut * case.S)
    states = {name: arrays[name] for name in ("C0", "n0", "m0") if name in arrays}
    early = {**tokens(arrays, slice(None, cut), "qkvif"), **states}
    late = tokens(arrays, slice(cut, None), "qkvif")
    with_gradient = trial.implementation.no_gradient("mlstm") is None
    if not with_gradient:
        first = trial.call("mlstm", early, options)
        second = trial.call("mlstm", {**late, **carried(first)}, options)
    else:
        cotangents = case.cotangent_arrays(trial.dtype)
        zeros = {name: replace(x, values=0 * x.values) for name, x in cotangents.items()}
        first, _ = trial.vjp("mlstm", early, {**zeros, **tokens(cotangents, slice(None, cut), "h")}, options)
        dlate = {**cotangents, **tokens(cotangents, slice(cut, None), "h")}
        second, gradients = trial.vjp("mlstm", {**late, **carried(first)}, dlate, options)
        dearly = {
            "h": tokens(cotangents, slice(None, cut), "h")["h"],
            **{name: gradients[f"{name}0"] for name in CARRY},
        }
        _, before = trial.vjp("mlstm", early, dearly, options)
        joined = {name: along_steps(before[name], gradients[name]) for name in "qkvif"}
        joined |= {name: before[name] for name in states}
        expected = _uncancelled(expected_gradient(trial, case), arrays["f"].values)
        trial.agree(joined, expected, case.steps, of="gradient of ", only=differentiable(case), times=2)
    outputs = {"h": along_steps(first["h"], second["h"]), **{name: second[name] for name in CARRY}}
    trial.agree(outputs, expected_value(trial, case), case.steps, times=2)


def _uncancelled(expected: Expected, f: np.ndarray) -> Expected:
    """With room for g of the early part, dm₀(late part) − ⟨C, dC⟩ − ⟨n, dn⟩, where it ought to cancel to 0."""
    assert expected.carried is not None
    of_g = expected.carried[:, None]
    with np.errstate(over="ignore"):
        gate = 1 / (1 + np.exp(f))
    shares = {"i": of_g, "f": of_g * gate, "m0": expected.carried}
    return replace(expected, slack={name: x + shares.get(name, 0.0) for name, x in expected.slack.items()})


def carried(outputs: Mapping[str, Array]) -> dict[str, Array]:
    return {f"{name}0": outputs[name] for name in CARRY}


def along_steps(*parts: Array) -> Array:
    return replace(parts[0], values=np.concatenate([part.values for part in parts], axis=1))


@law(
    "mlstm",
    "No output depends on a later input, and no later input has a gradient from an earlier output.",
    "h_t(x) = h_t(x′) where x_s = x′_s for s ≤ t;  ∂h_t/∂x_s = 0 for s > t",
    name="causality",
    cases=cases.mlstm,
    strata=("small", "chunk"),
    dtypes=("float64", "float32"),
    share=0.5,
)
def causality(trial: Trial, case: MLSTMCase) -> None:
    arrays, options = case.arrays(trial.dtype), case.options()
    cut = round(case.cut * case.S)
    other = replace(case, seed=case.seed + 1, scale=50.0, gates="extreme").arrays(trial.dtype)
    mixed = {
        name: replace(x, values=np.concatenate([x.values[:, :cut], other[name].values[:, cut:]], axis=1))
        if name in "qkvif"
        else x
        for name, x in arrays.items()
    }
    expected = expected_value(trial, case)
    h, h_mixed = (trial.call("mlstm", each, options)["h"] for each in (arrays, mixed))
    early = replace(h_mixed, values=h_mixed.values[:, :cut])
    trial.close("h", early, h.values[:, :cut], expected.slack["h"][:, :cut], case.steps, times=2)
    if trial.implementation.no_gradient("mlstm") is not None:
        return
    cotangents = case.cotangent_arrays(trial.dtype)
    cotangents = {name: replace(x, values=0 * x.values) if name != "h" else x for name, x in cotangents.items()}
    cotangents["h"].values[:, cut:] = 0
    _, gradients = trial.vjp("mlstm", arrays, cotangents, options)
    for name in "qkvif":
        late = gradients[name].values[:, cut:]
        if late.size and np.abs(late).max() > 0:
            raise LawError(f"gradient of {name}", f"is {np.abs(late).max():.3g} at a step after every cotangent")


@law(
    "mlstm",
    "A packed call gives what a loop over its sequences gives, empty ones included.",
    "mlstm(x, cu_seqlens)[b] = mlstm(x[cu_b:cu_{b+1}])",
    name="packed",
    cases=cases.packed_mlstm,
    dtypes=("float64", "float32", "bfloat16"),
    compiled_dtypes=("float32",),
    forward=True,
)
def packed(trial: Trial, case: MLSTMCase) -> None:
    if not case.lengths:
        outputs = trial.call("mlstm", case.arrays(trial.dtype), case.options())
        shapes = {
            "h": (0, case.N, case.V),
            "C": (0, case.N, case.K, case.V),
            "n": (0, case.N, case.K),
            "m": (0, case.N),
        }
        for name, shape in shapes.items():
            if outputs[name].shape != shape:
                raise LawError(name, f"shape {outputs[name].shape}, expected {shape}")
        return
    check_value(trial, case)


@law(
    "mlstm",
    "The gradient of a packed call is that of a loop over its sequences.",
    "d mlstm(x, cu_seqlens)[b] = d mlstm(x[cu_b:cu_{b+1}])",
    name="packed_gradient",
    cases=lambda plan: cases.packed_mlstm(plan).filter(lambda case: bool(case.lengths)),
    dtypes=("float64", "float32", "bfloat16"),
    gradient="mlstm",
    share=0.75,
)
def packed_gradient(trial: Trial, case: MLSTMCase) -> None:
    check_gradient(trial, case)


@law(
    "mlstm",
    "Sequences of a batch, and heads, are independent: permuting them permutes the results.",
    "mlstm(πx) = π mlstm(x)",
    name="permutation",
    cases=cases.mlstm,
    strata=("small", "chunk"),
    dtypes=("float64", "float32"),
    compiled_dtypes=("float32",),
    share=0.5,
)
def permutation(trial: Trial, case: MLSTMCase) -> None:
    batch, heads = np.arange(case.B)[::-1], np.roll(np.arange(case.N), 1)

    def permuted(name: str, x: np.ndarray) -> np.ndarray:
        return x[batch][:, heads] if name in ("C0", "n0", "m0", *CARRY) else x[batch][:, :, heads]

    arrays = {name: replace(x, values=permuted(name, x.values)) for name, x in case.arrays(trial.dtype).items()}
    expected = expected_value(trial, case)
    expected = Expected(
        {name: permuted(name, x) for name, x in expected.values.items()},
        {name: permuted(name, x) for name, x in expected.slack.items()},
    )
    trial.agree(trial.call("mlstm", arrays, case.options()), expected, case.steps)


@law(
    "mlstm",
    "h is linear in the values (and the memory of values, C₀).",
    "h(v + v′) = h(v) + h(v′)",
    name="linearity",
    cases=lambda plan: cases.mlstm(plan, state="none") if plan.eager else cases.mlstm(plan, scale=1.0),
    strata=("small", "chunk"),
    dtypes=("float64", "float32"),
    compiled_dtypes=("float32",),
    share=0.5,
)
def linearity(trial: Trial, case: MLSTMCase) -> None:
    arrays = case.arrays(trial.dtype)
    rng = cases.generator(case.seed, 20)

    def eighths(shape: tuple[int, ...]) -> np.ndarray:
        return rng.integers(-16, 17, shape) / 8

    parts = []
    for _ in range(2):
        changed = {"v": replace(arrays["v"], values=eighths(arrays["v"].shape))}
        if "C0" in arrays:
            changed["C0"] = replace(arrays["C0"], values=eighths(arrays["C0"].shape))
        parts.append(changed)
    both = {name: replace(x, values=x.values + parts[1][name].values) for name, x in parts[0].items()}
    results, slack = [], np.zeros(arrays["v"].shape)
    for changed in (*parts, both):
        given = {**arrays, **changed}
        results.append(trial.call("mlstm", given, case.options())["h"])
        expected = oracle.mlstm(oracle.values(given), case.options(), trial.precision(case.steps))
        slack = slack + expected.slack["h"] + trial.precision(1).roundoff * np.abs(expected.values["h"])
    trial.close("h", results[2], results[0].values + results[1].values, slack, case.steps)


@law(
    "mlstm",
    "Finite in, finite out: no gate, however extreme, makes a NaN, in outputs or gradients.",
    "f ∈ [−∞, ∞], i ∈ [−∞, ∞) ⇒ no NaN",
    name="finite",
    cases=lambda plan: st.one_of(
        *(cases.mlstm(plan, gates=gates) for gates in ("extreme", "closed", "resets", "saturated"))
    ),
    share=0.75,
)
def finite(trial: Trial, case: MLSTMCase) -> None:
    arrays, options = case.arrays(trial.dtype), case.options()
    trial.expect_no_nan(trial.call("mlstm", arrays, options))
    if trial.implementation.no_gradient("mlstm") is None:
        outputs, gradients = trial.vjp("mlstm", arrays, case.cotangent_arrays(trial.dtype), options)
        trial.expect_no_nan(outputs)
        trial.expect_no_nan(gradients, "gradient of ")


@law(
    "mlstm",
    "h has the dtype of v, states the accumulation dtype, each gradient the dtype of its primal.",
    "dtype(h) = dtype(v), dtype(C, n, m) = float32 or wider, dtype(dx) = dtype(x)",
    name="dtypes",
    cases=cases.mlstm,
    strata=("small",),
    gradient="mlstm",
    share=0.5,
)
def dtypes(trial: Trial, case: MLSTMCase) -> None:
    arrays = case.arrays(trial.dtype)
    outputs, gradients = trial.vjp("mlstm", arrays, case.cotangent_arrays(trial.dtype), case.options())
    trial.expect_dtypes(outputs, gradients, arrays, ("h",))


@law(
    "mlstm",
    "Strided inputs give what contiguous ones give; inputs are left alone and no output shares memory.",
    "mlstm(x[::2]) = mlstm(copy of x[::2])",
    name="memory",
    cases=lambda plan: st.one_of(cases.mlstm(plan), cases.packed_mlstm(plan).filter(lambda case: bool(case.lengths))),
    strata=("small",),
    dtypes=("float64", "float32"),
    skip=no_memory,
)
def memory(trial: Trial, case: MLSTMCase) -> None:
    for layout in trial.implementation.layouts:
        laid = replace(case, layout=layout)
        check_value(trial, laid)
        if trial.implementation.no_gradient("mlstm") is None:
            check_gradient(trial, laid)
        pure(trial, "mlstm", laid.arrays(trial.dtype), laid.cotangent_arrays(trial.dtype), laid.options())


@law(
    "mlstm",
    "The normaliser's floor falls with m until m = 64 and no further; on it, m is a constant to h.",
    "n·q̂ = 0 ⇒ h = Cᵀq̂ / exp(−min(m, 64)), dn₀ = 0",
    name="floor",
    cases=lambda plan: (
        cases.mlstm(plan, gates="ordinary", state="random", eps=0.0, scale=1.0)
        if plan.eager
        else cases.mlstm(plan).filter(lambda case: case.state != "none")
    ),
    strata=("small",),
    dtypes=("float64", "float32"),
    share=0.5,
)
def floor(trial: Trial, case: MLSTMCase) -> None:
    # Nothing is written and no normaliser carried, so ν = 0 exactly, whatever m is.
    case = replace(case, state="random")
    arrays = dict(case.arrays(trial.dtype))
    rng = cases.generator(case.seed, 22)
    arrays["i"] = replace(arrays["i"], values=np.full(arrays["i"].shape, -np.inf))
    arrays["n0"] = replace(arrays["n0"], values=np.zeros(arrays["n0"].shape))
    arrays["m0"] = replace(arrays["m0"], values=rng.choice([-3.0, 0.0, 60.0, 66.0, 70.0, 75.0], arrays["m0"].shape))
    precision = trial.precision(case.steps)
    expected = oracle.mlstm(oracle.values(arrays), case.options(), precision)
    trial.agree(trial.call("mlstm", arrays, case.options()), expected, case.steps)
    if trial.implementation.no_gradient("mlstm") is None:
        cotangents = case.cotangent_arrays(trial.dtype)
        _, gradients = trial.vjp("mlstm", arrays, cotangents, case.options())
        of_gradient = oracle.mlstm_gradient(oracle.values(arrays), case.options(), oracle.values(cotangents), precision)
        trial.agree(gradients, of_gradient, case.steps, of="gradient of ", only=differentiable(case))


def _base() -> dict[str, Any]:
    return MLSTMCase(2, 3, 2, 4, 5).arrays("float32")


def _stateful() -> dict[str, Any]:
    return MLSTMCase(2, 3, 2, 4, 5, state="random").arrays("float32")


def _packed() -> dict[str, Any]:
    return MLSTMCase(2, 0, 2, 4, 5, lengths=(2, 4)).arrays("float32")


def state_option(**parts: Any) -> dict[str, Any]:
    return {"initial_state": tuple(parts.values())}


def _bad_calls() -> list[BadCall]:
    op = "mlstm"
    arrays = [
        ("`q` of rank 3", {"q": reshaped(2, 3, 4)}),
        ("`q` of rank 5", {"q": reshaped(1, 2, 3, 2, 4)}),
        ("a head dim of 0", {"q": reshaped(2, 3, 2, 0), "k": reshaped(2, 3, 2, 0)}),
        ("`k` of another K", {"k": reshaped(2, 3, 2, 8)}),
        ("`k` of another S", {"k": reshaped(2, 4, 2, 4)}),
        ("`v` of another N", {"v": reshaped(2, 3, 1, 5)}),
        ("`v` of rank 3", {"v": reshaped(2, 3, 5)}),
        ("`i` with a last axis of 1", {"i": reshaped(2, 3, 2, 1)}),
        ("`f` of another B", {"f": reshaped(1, 3, 2)}),
        ("`q` of integers", {"q": recast("int32")}),
        ("`f` of integers", {"f": recast("int32")}),
        ("`k` in float64", {"k": recast("float64")}),
        ("`v` in float16", {"v": recast("float16")}),
        ("gates in float64", {"i": recast("float64"), "f": recast("float64")}),
        ("one gate in float16", {"i": recast("float16")}),
        ("a list for `v`", {"v": [1.0]}),
        ("None for `k`", {"k": None}),
    ]
    states = [
        ("a state without `n`", {"n0": None}),
        ("a state without `C`", {"C0": None}),
        ("`C` of another V", {"C0": reshaped(2, 2, 4, 4)}),
        ("`C` transposed", {"C0": reshaped(2, 2, 5, 4)}),
        ("`n` of another K", {"n0": reshaped(2, 2, 5)}),
        ("`m` of another B", {"m0": reshaped(3, 2)}),
        ("`m` with a last axis of 1", {"m0": reshaped(2, 2, 1)}),
        ("a state in float16", {"C0": recast("float16")}),
        ("an integer `m`", {"m0": recast("int32")}),
    ]
    packings = [
        ("`cu_seqlens` that falls", integers(0, 5, 4, 6)),
        ("`cu_seqlens` that starts above 0", integers(1, 2, 6)),
        ("`cu_seqlens` that starts below 0", integers(-1, 2, 6)),
        ("`cu_seqlens` that ends short", integers(0, 2, 5)),
        ("`cu_seqlens` that ends beyond", integers(0, 2, 7)),
        ("`cu_seqlens` of rank 2", integers([0, 2, 6])),
        ("`cu_seqlens` of rank 0", integers(6)),
        ("empty `cu_seqlens`", integers()),
        ("floating `cu_seqlens`", array(np.array([0.0, 2.0, 6.0]), "float32")),
        ("a list for `cu_seqlens`", [0, 2, 6]),
    ]
    options = [
        ("a chunk size of 0", {"chunk_size": 0}),
        ("a negative chunk size", {"chunk_size": -4}),
        ("a chunk size of 2.5", {"chunk_size": 2.5}),
        ("a chunk size of True", {"chunk_size": True}),
        ("a negative eps", {"eps": -1e-6}),
        ("an eps of NaN", {"eps": float("nan")}),
        ("an infinite eps", {"eps": float("inf")}),
        ("a word for eps", {"eps": "0"}),
        ("`max_seqlen` without `cu_seqlens`", {"max_seqlen": 3}),
        ("a pair for a state", {"initial_state": (1, 2)}),
        ("a number for a state", {"initial_state": 1.0}),
        ("a word for a state", {"initial_state": "CNM"}),
    ]
    packed_options = [
        ("a `max_seqlen` that is too short", {"max_seqlen": 3}),
        ("a negative `max_seqlen`", {"max_seqlen": -1}),
        ("a `max_seqlen` of 4.0", {"max_seqlen": 4.0}),
    ]
    return [
        *(with_arrays(_base, op, label, **changes) for label, changes in arrays),
        *(with_arrays(_stateful, op, label, **changes) for label, changes in states),
        *(with_arrays(_packed, op, label, cu_seqlens=packing) for label, packing in packings),
        with_arrays(_packed, op, "packed `k` of another T", k=reshaped(5, 2, 4)),
        with_arrays(_base, op, "`cu_seqlens` beside dense arrays", cu_seqlens=integers(0, 3)),
        *(with_options(_base, op, label, **changes) for label, changes in options),
        *(with_options(_packed, op, label, **changes) for label, changes in packed_options),
    ]


law(
    "mlstm",
    "A bad call raises the reference's error, in type and text.",
    "error(target) = error(reference)",
    name="bad_calls",
    rows=_bad_calls,
    dtypes=("float32",),
)(check_refusal)


@law(
    "mlstm",
    "States are kept in the accumulation dtype: 16-bit values remember as float32 does, over many steps.",
    "|C_T − C*_T| is a few float32 roundoffs for 16-bit v whose products are exact",
    name="accumulation",
    cases=lambda plan: cases.mlstm(plan, gates="remembering", scale=1.0),
    strata=("chunk", "long"),
    dtypes=("bfloat16", "float16"),
    share=0.25,
)
def state_accumulation(trial: Trial, case: MLSTMCase) -> None:
    # Powers of two are exact operands in any dtype, so the state owes nothing to the rounding of an operand.
    rng = cases.generator(case.seed, 21)
    arrays = dict(case.arrays(trial.dtype))
    for name in "kv":
        shape = arrays[name].shape
        arrays[name] = replace(arrays[name], values=2.0 ** rng.integers(-2, 2, shape) * rng.choice([-1.0, 1.0], shape))
    wide = accumulation(trial.dtype)
    precise = replace(trial.precision(case.steps), dtype=wide)
    expected = oracle.mlstm(oracle.values(arrays), case.options(), precise)
    got = trial.call("mlstm", arrays, case.options())
    trial.agree(got, expected, case.steps, only=CARRY)
