"""The mLSTM over whole sequences: `mlstm`. The laws that it shares with every recurrence are in `_recurrence_laws`."""

from dataclasses import replace
from functools import partial

from hypothesis import strategies as st

from conformance import cases
from conformance.cases import MLSTMCase, Plan
from conformance.checker import Checker, LawError
from conformance.laws import _large_gates, _packing_laws, _recurrence_laws, law
from conformance.laws import _mlstm_checks as checks
from conformance.laws._answers import check_gradient, check_value
from conformance.laws._mlstm_calls import bad_calls
from conformance.laws._refusals import register as register_refusals
from conformance.laws._relations import results_of, same_results
from conformance.operations.mlstm import FORMS, MLSTM

VALUE = "h_t = C_tᵀq̂_t / (max(|n_t·q̂_t|, exp(−min(m_t, 64))) + eps)"
GRADIENT = "dx = Σ_out ⟨d_out, ∂out/∂x⟩ for x in q, k, v, i, f, C₀, n₀, m₀ and out in h, C_T, n_T, m_T"


law(
    "mlstm",
    "Outputs and final state are the recurrence's.",
    VALUE,
    name="value",
    kind="definition",
    cases=cases.some_without_states(cases.mlstm),
    forward=True,
    quick=True,
)(partial(check_value, MLSTM))

law(
    "mlstm",
    "The gradient is exact for every floating argument, initial states and final-state cotangents included.",
    GRADIENT,
    name="gradient",
    kind="definition",
    cases=cases.some_without_states(partial(cases.mlstm, eps=0.0)),
    gradient="mlstm",
    quick=True,
)(partial(check_gradient, MLSTM))


def _chunks(plan: Plan) -> st.SearchStrategy:
    if plan.eager:
        usual = {"small": (2, 1, 3, 7, 64), "chunk": (16, 1, 2, 13, 32, 64, 128, 131), "long": (64, 100, 256)}
        longest = {"small": 8, "chunk": 140, "long": 1100}[plan.stratum]
        sizes = st.one_of(st.sampled_from(usual[plan.stratum]), st.integers(usual[plan.stratum][0], longest))
        return st.builds(lambda case, size: replace(case, chunk_size=size), cases.mlstm(plan), sizes)
    size = {"small": 2, "chunk": 16, "long": 100}[plan.stratum]
    return cases.mlstm(plan, chunk_size=size).filter(lambda case: case.state != "none" and case.S > 1)


@law(
    "mlstm",
    "No value and no gradient depends on the chunk size.",
    "mlstm(…, chunk_size=L) = mlstm(…) for every L ≥ 1",
    name="chunk_invariance",
    kind="relation",
    strata=cases.STRATA,
    cases=_chunks,
    dtypes=("float64", "float32", "bfloat16"),
    share=0.75,
)
def chunk_invariance(checker: Checker, case: MLSTMCase) -> None:
    call = MLSTM.call_of(case, checker.dtype)
    own = results_of(MLSTM, checker, call.arrays, call.cotangents, replace(case, chunk_size=None).options())
    in_chunks = results_of(MLSTM, checker, call.arrays, call.cotangents, call.options)
    same_results(MLSTM, checker, case, call, in_chunks, own)
    if checker.implementation.eager and own[1] is not None:
        outputs = checker.call("mlstm", call.arrays, call.options)
        same_results(MLSTM, checker, case, call, (outputs, None), own)


law(
    "mlstm",
    "The recurrent, the parallel and the chunkwise form are the same function.",
    "mlstm_recurrent(x) = mlstm_parallel(x) = mlstm_chunkwise(x)",
    name="forms",
    kind="relation",
    cases=lambda plan: _chunks(plan) if plan.eager else cases.mlstm(plan),
    needs=FORMS,
    subject=("final state",),
    share=0.5,
)(checks.forms)


def _cuts(plan: Plan) -> st.SearchStrategy:
    if plan.eager:
        return _recurrence_laws.cut_anywhere(cases.mlstm(plan))

    # Halves have the shape of a row that other laws compile; the small ones may also be cut after one step or before.
    def cut(case: MLSTMCase, place: int) -> MLSTMCase:
        one, several = (1, case.S) if place == 1 else (case.S, 1)
        if plan.stratum == "small" and place and case.S < plan.max_steps:
            return replace(case, S=case.S + 1, cut=one / (one + several))
        return replace(case, S=min(2 * case.S, plan.max_steps))

    whole = cases.mlstm(plan).filter(lambda case: case.state != "none" and case.S > 1)
    return st.builds(cut, whole, st.sampled_from((0, 1, 2)))


def _ordinary_with_state(plan: Plan) -> st.SearchStrategy:
    if plan.eager:
        return cases.mlstm(plan, gates="ordinary", state="random", eps=0.0, scale=1.0)
    return cases.mlstm(plan).filter(lambda case: case.state != "none")


def _packed_without_eps(plan: Plan) -> st.SearchStrategy:
    return cases.packed_mlstm(plan, eps=0.0).filter(lambda case: bool(case.lengths))


_recurrence_laws.register(MLSTM, _cuts)


@law(
    "mlstm",
    "A packed call gives the same results as a loop over its sequences, empty ones included.",
    "mlstm(x, cu_seqlens)[b] = mlstm(x[cu_b:cu_{b+1}])",
    name="packed",
    kind="definition",
    cases=cases.some_without_states(cases.packed_mlstm),
    dtypes=("float64", "float32", "bfloat16"),
    compiled_dtypes=("float32",),
    forward=True,
)
def packed(checker: Checker, case: MLSTMCase) -> None:
    if not case.lengths:
        outputs = checker.call("mlstm", case.arrays(checker.dtype), case.options())
        shapes = {
            "h": (0, case.N, case.V),
            "C": (0, case.N, case.K, case.V),
            "n": (0, case.N, case.K),
            "m": (0, case.N),
        }
        for name, shape in shapes.items():
            if (name == "h" or case.return_state) and outputs[name].shape != shape:
                raise LawError(name, f"shape {outputs[name].shape}, expected {shape}", nature="shape")
        return
    check_value(MLSTM, checker, case)


law(
    "mlstm",
    "The gradient of a packed call is that of a loop over its sequences.",
    "d mlstm(x, cu_seqlens)[b] = d mlstm(x[cu_b:cu_{b+1}])",
    name="packed_gradient",
    kind="definition",
    cases=cases.some_without_states(_packed_without_eps),
    dtypes=("float64", "float32", "bfloat16"),
    gradient="mlstm",
    share=0.75,
)(partial(check_gradient, MLSTM))

_packing_laws.register(MLSTM)

law(
    "mlstm",
    "h is linear in the values (and the memory of values, C₀), and so is its gradient with respect to every other "
    "argument.",
    "h(v + v′) = h(v) + h(v′),  dx(v + v′) = dx(v) + dx(v′) for x other than v, C₀",
    name="linearity",
    kind="relation",
    cases=cases.mlstm,
    share=0.5,
)(checks.linearity)

law(
    "mlstm",
    "Where n·q̂ is 0, h is Cᵀq̂ divided by the normaliser's floor.",
    "n·q̂ = 0, m ≤ 64 ⇒ h = Cᵀq̂ / exp(−m), dn₀ = 0",
    name="floor",
    kind="definition",
    cases=_ordinary_with_state,
    strata=("small",),
    dtypes=("float64", "float32"),
    share=0.5,
)(checks.floor)

law(
    "mlstm",
    "The normaliser's floor falls with m until m = 64 and no further; above that, m counts as a constant in it.",
    "n·q̂ = 0, m > 64 ⇒ h = Cᵀq̂ / exp(−64)",
    name="cap",
    kind="contract",
    cases=_ordinary_with_state,
    share=0.25,
)(checks.cap)

law(
    "mlstm",
    "In the normaliser, eps is added to numbers in units of exp(m), and m counts as a constant there.",
    "h = Cᵀq̂ / (max(|n·q̂|, exp(−min(m, 64))) + eps), whose gradient treats eps as if m did not depend on any input",
    name="eps_gradient",
    kind="contract",
    cases=lambda plan: (
        cases.mlstm(plan, eps=1e-3) if plan.eager else cases.mlstm(plan).filter(lambda case: bool(case.eps))
    ),
    dtypes=("float64", "float32", "bfloat16"),
    compiled_dtypes=("float32",),
    gradient="mlstm",
    share=0.5,
)(partial(check_gradient, MLSTM))

law(
    "mlstm",
    "Gates may be float32 where the values have 16 bits, and then their gradients are float32.",
    "dtype(i) = dtype(f) = float32 with dtype(v) = bfloat16 or float16",
    name="gate_dtypes",
    kind="contract",
    cases=lambda plan: cases.mlstm(plan, wide_gates=True, eps=0.0),
    strata=("small", "chunk"),
    dtypes=("bfloat16", "float16"),
    compiled_dtypes=("bfloat16",),
    share=0.25,
)(checks.gate_dtypes)

_packing_laws.register_max_seqlen(MLSTM)

law(
    "mlstm",
    "Where the carried memory and a write both attain the stabiliser, exactly, its gradient goes to the carried one.",
    "a_t + m_{t−1} = i_t ⇒ ∂m_t/∂m_{t−1} = 1, ∂m_t/∂i_t = 0",
    name="ties",
    kind="contract",
    cases=cases.mlstm,
    strata=("small", "chunk"),
    compiled_dtypes=("float32",),
    gradient="mlstm",
    subject=("final state", "state cotangents"),
    share=0.25,
)(checks.ties)

_large_gates.register(
    MLSTM,
    partial(cases.mlstm, **_large_gates.PLAIN),
    lambda plan: _chunks(plan).map(lambda case: replace(case, **_large_gates.PLAIN)),
)

register_refusals("mlstm", bad_calls)

law(
    "mlstm",
    "States are kept in the accumulation dtype: over many steps, 16-bit values lose no more than float32 values do.",
    "|C_T − C*_T| is a few float32 roundoffs for 16-bit v whose products are exact",
    name="accumulation",
    kind="behaviour",
    cases=lambda plan: cases.mlstm(plan, gates="remembering", held=0.0, scale=1.0),
    strata=("chunk", "long"),
    dtypes=("bfloat16", "float16"),
    subject=("final state",),
    share=0.25,
)(checks.state_accumulation)
