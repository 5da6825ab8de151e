"""One step of the mLSTM: `mlstm_step`."""

from dataclasses import replace
from typing import Any

from conformance import cases
from conformance.cases import MLSTMCase
from conformance.checker import Checker
from conformance.laws import _large_gates, law
from conformance.laws._answers import expected_gradient, expected_value
from conformance.laws._recurrence import along_steps
from conformance.laws._refusals import BadCall, recast, reshaped, with_arrays, with_options
from conformance.laws._refusals import register as register_refusals
from conformance.operations.mlstm import MLSTM
from conformance.operations.mlstm_step import MLSTM_STEP, at_step, with_state

OP = "mlstm_step"


@law(
    OP,
    "Step by step gives the same results as the whole sequence.",
    "mlstm_step applied S times = mlstm",
    name="sequence",
    kind="definition",
    cases=lambda plan: cases.mlstm(plan, layout="contiguous"),
    strata=("small",),
    compiled_dtypes=("float32", "bfloat16"),
    forward=True,
)
def sequence(checker: Checker, case: MLSTMCase) -> None:
    arrays, options = with_state(case, checker.dtype), {"eps": case.eps} if case.eps else {}
    state, h, last = MLSTM_STEP.kept(arrays), [], {}
    for t in range(case.S):
        last = checker.call(OP, {**at_step(arrays, t), **state}, options)
        h.append(replace(last["h"], values=last["h"].values[:, None]))
        state = MLSTM_STEP.carried(last)
    if h:
        checker.agree(
            {"h": along_steps(*h), **{name: last[name] for name in MLSTM.states}},
            expected_value(MLSTM, checker, case),
            case.steps,
            times=1 if case.S < 2 else 2,
        )


def _one_step(plan: cases.Plan) -> Any:
    # A memory that ends empty is at a tie, where either side passes: `sequence` and `finite` meet it.
    steps = cases.mlstm(plan, S=1, layout="contiguous").filter(
        lambda case: case.gates not in ("closed", "mixed") and (case.gates, case.state) != ("resets", "empty")
    )
    return steps.map(lambda case: replace(case, B=3 * case.B)) if plan.eager else steps


@law(
    OP,
    "The gradient of a step is exact for every argument, the state included.",
    "dx = Σ_out ⟨d_out, ∂out/∂x⟩ with S = 1",
    name="gradient",
    kind="definition",
    cases=lambda plan: _one_step(plan).map(lambda case: replace(case, eps=0.0)),
    strata=("small",),
    gradient=OP,
    quick=True,
)
def gradient(checker: Checker, case: MLSTMCase) -> None:
    call = MLSTM_STEP.call_of(case, checker.dtype)
    outputs, gradients = checker.vjp(OP, call.arrays, call.cotangents, call.options)
    expected = expected_gradient(MLSTM_STEP, checker, case)
    checker.note_kinks(expected)
    checker.agree(outputs, expected_value(MLSTM_STEP, checker, case), call.steps)
    checker.agree(gradients, expected, call.steps, of="gradient of ")
    checker.expect_dtypes(outputs, gradients, call.arrays, MLSTM_STEP.in_dtype)


law(
    OP,
    "In the normaliser, eps is added to numbers in units of exp(m), and m counts as a constant there.",
    "h = Cᵀq̂ / (max(|n·q̂|, exp(−min(m, 64))) + eps), whose gradient treats eps as if m did not depend on any input",
    name="eps_gradient",
    kind="contract",
    cases=lambda plan: (
        _one_step(plan).map(lambda case: replace(case, eps=1e-3))
        if plan.eager
        else _one_step(plan).filter(lambda case: bool(case.eps))
    ),
    dtypes=("float64", "float32", "bfloat16"),
    compiled_dtypes=("float32",),
    gradient=OP,
    share=0.5,
)(gradient)


_large_gates.register_shift(
    MLSTM_STEP, lambda plan: _one_step(plan).map(lambda case: replace(case, **_large_gates.PLAIN))
)


def _base() -> dict[str, Any]:
    return at_step(MLSTMCase(2, 1, 2, 4, 5, state="random").arrays("float32"), 0)


def _bad_calls() -> list[BadCall]:
    arrays = [
        ("`q` with a step axis", {"q": reshaped(2, 1, 2, 4)}),
        ("`k` of another K", {"k": reshaped(2, 2, 8)}),
        ("`v` of another B", {"v": reshaped(3, 2, 5)}),
        ("`i` of rank 3", {"i": reshaped(2, 2, 1)}),
        ("`f` of another N", {"f": reshaped(2, 3)}),
        ("`q` of integers", {"q": recast("int32")}),
        ("`v` in float64", {"v": recast("float64")}),
        ("a state without `m`", {"m0": None}),
        ("`C` of another K", {"C0": reshaped(2, 2, 5, 5)}),
        ("`n` in bfloat16", {"n0": recast("bfloat16")}),
    ]
    options = [
        ("a negative eps", {"eps": -1.0}),
        ("no state", {"state": None}),
        ("an unknown kernel backend", {"kernel_backend": "no such backend"}),
        ("a number for a kernel backend", {"kernel_backend": 3}),
        ("a pair for a state", {"state": (1, 2)}),
    ]
    return [
        *(with_arrays(_base, OP, label, **changes) for label, changes in arrays),
        *(with_options(_base, OP, label, **changes) for label, changes in options),
    ]


register_refusals(OP, _bad_calls)
