"""One step of the mLSTM: `mlstm_step`."""

from dataclasses import replace

from hypothesis import strategies as st

from conformance import cases
from conformance.cases import MLSTMCase
from conformance.laws import SINGLE, SMALL, UP_TO_BFLOAT16, _mlstm_large_gates, law
from conformance.laws._answers import check_gradient
from conformance.laws._relations import check_steps
from conformance.laws.checker import Checker
from conformance.operations.mlstm_step import MLSTM_STEP, ONE_STEP, with_state

OP = "mlstm_step"


@law(
    OP,
    "definition",
    cases=lambda limits: cases.mlstm(limits, layout="contiguous"),
    strata=SMALL,
    compiled_dtypes=("float32", "bfloat16"),
    forward=True,
)
def sequence(checker: Checker, case: MLSTMCase) -> None:
    """Step by step gives the same results as the whole sequence.

    mlstm_step applied S times = mlstm
    """
    options = {"eps": case.eps} if case.eps else {}
    check_steps(ONE_STEP, MLSTM_STEP, checker, case, with_state(case, checker.dtype), options)


def _one_step(limits: cases.Limits) -> st.SearchStrategy:
    # A memory that ends empty is at a tie, where either side passes: `sequence` and `finite` meet it.
    steps = cases.mlstm(limits, S=1, layout="contiguous").filter(
        lambda case: case.gates not in ("closed", "mixed") and (case.gates, case.state) != ("resets", "empty")
    )
    return steps.map(lambda case: replace(case, B=3 * case.B)) if limits.eager else steps


@law(
    OP,
    "definition",
    cases=lambda limits: _one_step(limits).map(lambda case: replace(case, eps=0.0)),
    strata=SMALL,
    gradient=OP,
    quick=True,
)
def gradient(checker: Checker, case: MLSTMCase) -> None:
    """The gradient of a step is exact for every argument, the state included.

    dx = Σ_out ⟨d_out, ∂out/∂x⟩ with S = 1
    """
    outputs, gradients = check_gradient(MLSTM_STEP, checker, case)
    checker.expect_dtypes(outputs, gradients, MLSTM_STEP.call_of(case, checker.dtype).arrays, MLSTM_STEP.in_dtype)


def _with_eps(limits: cases.Limits) -> st.SearchStrategy:
    if limits.eager:
        return _one_step(limits).map(lambda case: replace(case, eps=1e-3))
    return _one_step(limits).filter(lambda case: bool(case.eps))


@law(OP, "contract", cases=_with_eps, dtypes=UP_TO_BFLOAT16, compiled_dtypes=SINGLE, gradient=OP, share=0.5)
def eps_gradient(checker: Checker, case: MLSTMCase) -> None:
    """In the normaliser, eps is added to numbers in units of exp(m), and m counts as a constant there.

    h = Cᵀq̂ / (max(|n·q̂|, exp(−min(m, 64))) + eps), whose gradient treats eps as if m did not depend on any input
    """
    gradient(checker, case)


def _plain(limits: cases.Limits) -> st.SearchStrategy:
    return _one_step(limits).map(lambda case: replace(case, **_mlstm_large_gates.PLAIN))


_mlstm_large_gates.register_shift(MLSTM_STEP, _plain)
_mlstm_large_gates.register_steps(MLSTM_STEP, _plain)
