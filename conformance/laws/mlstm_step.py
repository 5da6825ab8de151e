"""One step of the mLSTM: `mlstm_step`."""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance import cases, oracle
from conformance.budget import Expected
from conformance.cases import MLSTMCase
from conformance.checker import Checker
from conformance.dtypes import Array
from conformance.laws import law
from conformance.laws._mlstm import CARRY, MLSTM, expected_value
from conformance.laws._recurrence import along_steps
from conformance.laws._refusals import BadCall, check_refusal, recast, reshaped, with_arrays, with_options

OP = "mlstm_step"


def at_step(arrays: dict[str, Array], t: int) -> dict[str, Array]:
    return {name: replace(arrays[name], values=arrays[name].values[:, t]) for name in "qkvif"}


def zero_state(case: MLSTMCase, dtype: str) -> dict[str, Array]:
    """The initial state of a step: the case's, or the zeros that one left out stands for."""
    state = replace(case, state="random").arrays(dtype)
    zeros = {name: replace(state[name], values=0 * state[name].values) for name in ("C0", "n0", "m0")}
    return {**zeros, **{name: x for name, x in case.arrays(dtype).items() if name in zeros}}


@law(
    OP,
    "Step by step gives what the whole sequence gives.",
    "mlstm_step applied S times = mlstm",
    name="sequence",
    kind="definition",
    cases=lambda plan: cases.mlstm(plan, layout="contiguous"),
    strata=("small",),
    compiled_dtypes=("float32", "bfloat16"),
    forward=True,
)
def sequence(checker: Checker, case: MLSTMCase) -> None:
    arrays = case.arrays(checker.dtype)
    state, h, last = zero_state(case, checker.dtype), [], {}
    options = {"eps": case.eps} if case.eps else {}
    for t in range(case.S):
        last = checker.call(OP, {**at_step(arrays, t), **state}, options)
        h.append(replace(last["h"], values=last["h"].values[:, None]))
        state = MLSTM.carried(last)
    if h:
        checker.agree(
            {"h": along_steps(*h), **{name: last[name] for name in CARRY}},
            expected_value(checker, case),
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
    cases=_one_step,
    strata=("small",),
    gradient=OP,
    quick=True,
)
def gradient(checker: Checker, case: MLSTMCase) -> None:
    arrays = {**case.arrays(checker.dtype), **zero_state(case, checker.dtype)}
    cotangents = case.cotangent_arrays(checker.dtype)
    step = {**at_step(arrays, 0), **{name: arrays[name] for name in ("C0", "n0", "m0")}}
    dstep = {**cotangents, "h": replace(cotangents["h"], values=cotangents["h"].values[:, 0])}
    options = {"eps": case.eps} if case.eps else {}
    outputs, gradients = checker.vjp(OP, step, dstep, options)
    values, precision = oracle.values(arrays), checker.precision(1)
    expected = oracle.mlstm_gradient(values, case.options(), oracle.values(cotangents), precision)
    checker.note_kinks(expected)
    checker.agree(outputs, _squeezed(expected_value(checker, case), ("h",)), 1)
    checker.agree(gradients, _squeezed(expected, tuple("qkvif")), 1, of="gradient of ")
    checker.expect_dtypes(outputs, gradients, step, ("h",))


def _squeezed(expected: Expected, names: tuple[str, ...]) -> Expected:
    def squeeze(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: x[:, 0] if name in names else x for name, x in arrays.items()}

    return Expected(squeeze(expected.values), squeeze(expected.slack))


def _base() -> dict[str, Any]:
    arrays = MLSTMCase(2, 1, 2, 4, 5, state="random").arrays("float32")
    return {**arrays, **at_step(arrays, 0)}


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
        ("no state", {"initial_state": None}),
        ("a kernel backend that there is not", {"kernel_backend": "no such backend"}),
        ("a number for a kernel backend", {"kernel_backend": 3}),
        ("a pair for a state", {"initial_state": (1, 2)}),
    ]
    return [
        *(with_arrays(_base, OP, label, **changes) for label, changes in arrays),
        *(with_options(_base, OP, label, **changes) for label, changes in options),
    ]


law(
    OP,
    "A bad call raises the reference's error, in type and text.",
    "error(target) = error(reference)",
    name="bad_calls",
    kind="behaviour",
    rows=_bad_calls,
    dtypes=("float32",),
)(check_refusal)
