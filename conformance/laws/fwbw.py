"""The fwbw interface: `fwbw_forward`, `fwbw_backward` and `mlstm_fwbw_custom_grad`."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from conformance import cases
from conformance.cases import FwbwCase, Limits
from conformance.laws import SHORT, SINGLE, SMALL, UP_TO_BFLOAT16, law
from conformance.laws._answers import check_gradient, check_value, expect_gradient, expect_value, expected_gradient
from conformance.laws._relations import same_results
from conformance.laws.checker import Checker, LawError
from conformance.laws.mlstm import GRADIENT
from conformance.operations.fwbw import FWBW, by_hand

OP = "mlstm_fwbw_custom_grad"


@law(FWBW, "definition", cases=cases.fwbw, compiled_dtypes=SINGLE, forward=True)
def value(checker: Checker, case: FwbwCase) -> None:
    """The value is the mLSTM's for any chunk size and any choice of residuals; with stabilize_correctly=False its floor
    is 1.

    h_t = C_tᵀq̂_t / (max(|n_t·q̂_t|, exp(−min(m_t, 64))))
    """
    check_value(FWBW, checker, case)


@law(
    FWBW,
    "definition",
    equation=GRADIENT,
    cases=cases.fwbw,
    # Its calls are those of the mLSTM inside.
    usual=2,
    compiled_dtypes=UP_TO_BFLOAT16,
    gradient=OP,
    quick=True,
)
def gradient(checker: Checker, case: FwbwCase) -> None:
    """The custom gradient is exact, initial states and final-state cotangents included."""
    outputs, gradients = check_gradient(FWBW, checker, case)
    arrays = case.arrays(checker.dtype)
    checker.expect_dtypes(outputs, {name: gradients[name] for name in arrays}, arrays, FWBW.in_dtype)


@law(
    "fwbw",
    "definition",
    name="by_hand",
    cases=cases.fwbw,
    strata=SHORT,
    dtypes=UP_TO_BFLOAT16,
    compiled_dtypes=SINGLE,
    needs=("fwbw_forward", "fwbw_backward"),
)
def forward_and_backward(checker: Checker, case: FwbwCase) -> None:
    """fwbw_forward and fwbw_backward, called directly, give the value and the exact gradient; without an initial state
    the last three gradients are None.

    fwbw_backward(ctx, dh, dc_last, dn_last, dm_last) = d fwbw_forward
    """
    functions, call = checker.implementation.functions, FWBW.call_of(case, checker.dtype)
    arrays, names = call.arrays, tuple(call.cotangents)

    def run(given: dict[str, Any]) -> dict[str, Any]:
        arrays = {name: x for name, x in given.items() if not name.startswith("cotangent of ")}
        cotangents = {name: given[f"cotangent of {name}"] for name in names}
        outputs, gradients = by_hand(functions, arrays, call.options, cotangents, checker.implementation.kind)
        return {**outputs, **{f"gradient of {name}": x for name, x in gradients.items()}}

    given = {**arrays, **{f"cotangent of {name}": x for name, x in call.cotangents.items()}}
    results = checker.implementation.run(("fwbw by hand", repr(case.config())), run, given)
    gradients = {n.removeprefix("gradient of "): x for n, x in results.items() if n.startswith("gradient of ")}
    if set(gradients) != set(arrays):
        raise LawError("gradients", f"are given for {sorted(gradients)}, expected {sorted(arrays)}")
    expect_value(FWBW, checker, case, call, results)
    checker.note_kinks(expected_gradient(FWBW, checker, case))
    expect_gradient(FWBW, checker, case, call, gradients)


def _keeps(limits: Limits) -> st.SearchStrategy:
    if limits.eager:
        return cases.fwbw(limits)
    return cases.fwbw(limits, keep=("keep_G", "keep_gates", "keep_M", "keep_c"))


@law(FWBW, "relation", cases=_keeps, gradient=OP, share=0.75)
def keep(checker: Checker, case: FwbwCase) -> None:
    """The choice of residuals changes no value and no gradient.

    f(keep_G, keep_gates, keep_M, keep_c) = f()
    """
    call = FWBW.call_of(case, checker.dtype)
    everything, nothing = (
        checker.vjp(call.with_options(config=replace(case, keep=kept).config()))
        for kept in (("keep_G", "keep_gates", "keep_M", "keep_c"), ())
    )
    same_results(FWBW, checker, case, call, everything, nothing)


def _few(limits: Limits) -> st.SearchStrategy:
    # A memory that ends empty is at a tie, where either side passes; with few elements, ties would be too many.
    drawn = cases.fwbw(limits, use_initial_state=False).filter(lambda case: case.inner.gates not in ("closed", "mixed"))
    if not limits.eager:
        return drawn
    return drawn.map(lambda case: replace(case, inner=replace(case.inner, B=3 * case.inner.B)))


@law(FWBW, "relation", compiled_dtypes=None, cases=_few, strata=SMALL, dtypes=SINGLE, gradient=OP, share=0.5)
def zero_state(checker: Checker, case: FwbwCase) -> None:
    """If the configuration uses an initial state and none is given, it is zero, and has a gradient.

    f(q, k, v, i, f) = f(q, k, v, i, f, 0, 0, 0)
    """
    call = FWBW.call_of(case, checker.dtype)
    stateful = call.with_options(config={**case.config(), "use_initial_state": True})
    random = replace(case, use_initial_state=True, inner=replace(case.inner, state="random")).arrays(checker.dtype)
    zeros = {name: replace(random[name], values=0 * random[name].values) for name in FWBW.state_arguments}
    given = checker.vjp(stateful.with_arrays(**zeros))
    same_results(FWBW, checker, case, call, checker.vjp(stateful), given)
