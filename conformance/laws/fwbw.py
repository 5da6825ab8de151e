"""The fwbw interface: `fwbw_forward`, `fwbw_backward` and `mlstm_fwbw_custom_grad`."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance import cases
from conformance.cases import FwbwCase, MLSTMCase, Plan
from conformance.checker import Checker, LawError
from conformance.dtypes import Array, array
from conformance.laws import law
from conformance.laws._answers import expected_gradient, expected_value
from conformance.laws._refusals import BadCall, misshapes, recast, reshaped
from conformance.laws._refusals import register as register_refusals
from conformance.laws._relations import same_results
from conformance.laws.mlstm import GRADIENT, VALUE
from conformance.operations.fwbw import FWBW, by_hand

OP = "mlstm_fwbw_custom_grad"


def _agree(checker: Checker, case: FwbwCase, outputs: dict[str, Array], gradients: dict[str, Array] | None) -> None:
    call = FWBW.call_of(case, checker.dtype)
    checker.agree(outputs, expected_value(FWBW, checker, case), case.steps, only=tuple(call.cotangents))
    if gradients is not None:
        expected = expected_gradient(FWBW, checker, case)
        checker.note_kinks(expected)
        checker.agree(gradients, expected, case.steps, of="gradient of ", only=call.primals)


@law(
    FWBW,
    "The value is the mLSTM's for any chunk size and any choice of residuals; with stabilize_correctly=False its "
    "floor is 1.",
    VALUE.replace(" + eps", ""),
    name="value",
    kind="definition",
    cases=cases.fwbw,
    compiled_dtypes=("float32",),
    forward=True,
)
def value(checker: Checker, case: FwbwCase) -> None:
    _agree(checker, case, checker.call(OP, case.arrays(checker.dtype), {"config": case.config()}), None)


@law(
    FWBW,
    "The custom gradient is exact, initial states and final-state cotangents included.",
    GRADIENT,
    name="gradient",
    kind="definition",
    cases=cases.fwbw,
    compiled_dtypes=("float64", "float32", "bfloat16"),
    gradient=OP,
    quick=True,
)
def gradient(checker: Checker, case: FwbwCase) -> None:
    arrays, cotangents = case.arrays(checker.dtype), case.cotangent_arrays(checker.dtype)
    outputs, gradients = checker.vjp(OP, arrays, cotangents, {"config": case.config()})
    _agree(checker, case, outputs, gradients)
    checker.expect_dtypes(outputs, {name: gradients[name] for name in arrays}, arrays, FWBW.in_dtype)


@law(
    "fwbw",
    "fwbw_forward and fwbw_backward, called directly, give the value and the exact gradient; without an initial state"
    " the last "
    "three gradients are None.",
    "fwbw_backward(ctx, dh, dc_last, dn_last, dm_last) = d fwbw_forward",
    name="by_hand",
    kind="definition",
    cases=cases.fwbw,
    strata=("small", "chunk"),
    dtypes=("float64", "float32", "bfloat16"),
    compiled_dtypes=("float32",),
    needs=("fwbw_forward", "fwbw_backward"),
)
def forward_and_backward(checker: Checker, case: FwbwCase) -> None:
    functions, config = checker.implementation.functions, case.config()
    names = tuple(case.cotangent_arrays(checker.dtype))

    def run(given: dict[str, Any]) -> dict[str, Any]:
        arrays = {name: x for name, x in given.items() if not name.startswith("cotangent of ")}
        cotangents = {name: given[f"cotangent of {name}"] for name in names}
        outputs, gradients = by_hand(functions, arrays, {"config": config}, cotangents)
        return {**outputs, **{f"gradient of {name}": x for name, x in gradients.items()}}

    arrays = case.arrays(checker.dtype)
    given = {**arrays, **{f"cotangent of {name}": x for name, x in case.cotangent_arrays(checker.dtype).items()}}
    results = checker.implementation.run(("fwbw by hand", repr(config)), run, given)
    gradients = {n.removeprefix("gradient of "): x for n, x in results.items() if n.startswith("gradient of ")}
    if set(gradients) != set(arrays):
        raise LawError("gradients", f"are given for {sorted(gradients)}, expected {sorted(arrays)}")
    _agree(checker, case, results, gradients)


def _keeps(plan: Plan) -> st.SearchStrategy:
    if plan.eager:
        return cases.fwbw(plan)
    return cases.fwbw(plan, keep=("keep_G", "keep_gates", "keep_M", "keep_c"))


@law(
    FWBW,
    "The choice of residuals changes no value and no gradient.",
    "f(keep_G, keep_gates, keep_M, keep_c) = f()",
    name="keep",
    kind="relation",
    cases=_keeps,
    gradient=OP,
    share=0.75,
)
def keep(checker: Checker, case: FwbwCase) -> None:
    call = FWBW.call_of(case, checker.dtype)
    everything, nothing = (
        checker.vjp(OP, call.arrays, call.cotangents, {"config": replace(case, keep=kept).config()})
        for kept in (("keep_G", "keep_gates", "keep_M", "keep_c"), ())
    )
    same_results(FWBW, checker, case, call, everything, nothing)


def _few(plan: Plan) -> st.SearchStrategy:
    # A memory that ends empty is at a tie, where either side passes; with few elements, ties would be too many.
    drawn = cases.fwbw(plan, use_initial_state=False).filter(lambda case: case.inner.gates not in ("closed", "mixed"))
    if not plan.eager:
        return drawn
    return drawn.map(lambda case: replace(case, inner=replace(case.inner, B=3 * case.inner.B)))


@law(
    FWBW,
    "If the configuration uses an initial state and none is given, it is zero, and has a gradient.",
    "f(q, k, v, i, f) = f(q, k, v, i, f, 0, 0, 0)",
    name="zero_state",
    kind="relation",
    compiled_dtypes=None,
    cases=_few,
    strata=("small",),
    dtypes=("float32",),
    gradient=OP,
    share=0.5,
)
def zero_state(checker: Checker, case: FwbwCase) -> None:
    call = FWBW.call_of(case, checker.dtype)
    options = {"config": {**case.config(), "use_initial_state": True}}
    random = replace(case, use_initial_state=True, inner=replace(case.inner, state="random")).arrays(checker.dtype)
    zeros = {name: replace(random[name], values=0 * random[name].values) for name in FWBW.state_arguments}
    given = checker.vjp(OP, {**call.arrays, **zeros}, call.cotangents, options)
    same_results(FWBW, checker, case, call, checker.vjp(OP, call.arrays, call.cotangents, options), given)


def _base(**config: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    arrays = FwbwCase(MLSTMCase(2, 3, 1, 4, 5, state="random"), use_initial_state=True).arrays("float32")
    if not config.get("use_initial_state"):
        arrays = {name: x for name, x in arrays.items() if name not in FWBW.state_arguments}
    return arrays, {"config": config}


def _bad(label: str, config: dict[str, Any] | None = None, **changes: Any) -> BadCall:
    def make() -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, options = _base(**(config or {}))
        for name, change in changes.items():
            arrays[name] = change(arrays[name]) if callable(change) else change
        return arrays, options

    return BadCall(OP, label, make, lambda: _base(**(config or {}))[0], misshapes(changes))


def _bad_calls() -> list[BadCall]:
    states = {"use_initial_state": True}
    given = {
        "C0": array(np.zeros((2, 4, 5)), "float32"),
        "n0": array(np.zeros((2, 4)), "float32"),
        "m0": array(np.zeros(2), "float32"),
    }
    return [
        _bad("`q` of rank 2", q=reshaped(2, 4)),
        _bad("`k` of another K", k=reshaped(2, 3, 8)),
        _bad("`v` of another T", v=reshaped(2, 4, 5)),
        _bad("`i` with a last axis of 2", i=reshaped(2, 3, 2)),
        _bad("`f` of another B", f=reshaped(1, 3)),
        _bad("`q` of integers", q=recast("int32")),
        _bad("`k` in float64", k=recast("float64")),
        _bad("a state that the configuration does not use", None, **given),
        _bad("a state without `n`", states, n0=None),
        _bad("`C` of another V", states, C0=reshaped(2, 4, 4)),
        _bad("`m` with a last axis of 1", states, m0=reshaped(2, 1)),
        _bad("a state in float16", states, n0=recast("float16")),
        _bad("a chunk size of 0", {"chunk_size": 0}),
        _bad("a chunk size of 1.5", {"chunk_size": 1.5}),
        _bad("a number for a switch", {"keep_G": 1}),
        _bad("an unknown field", {"keep_g": True}),
    ]


register_refusals(OP, _bad_calls, op="fwbw")
