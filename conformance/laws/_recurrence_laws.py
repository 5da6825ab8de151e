"""Laws of every recurrence: a sequence may be cut, and does not depend on its future, its neighbours or its place."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance import oracle
from conformance.base.call import Call
from conformance.cases import CLIPPING, OPTION, Limits
from conformance.laws import FEW, SHORT, SINGLE, SMALL, UP_TO_BFLOAT16, law
from conformance.laws._answers import check_gradient, expected_gradient, expected_value, has_gradient
from conformance.laws._relations import (
    Arrays,
    alike,
    alike_when,
    along_steps,
    at_steps,
    changed,
    changed_call,
    changed_results,
    close,
    expect_zero,
    nothing_of,
    results_of,
    rounding_of,
)
from conformance.laws.checker import Checker, LawError
from conformance.operations import Operation
from conformance.operations._one_step import OneStep
from conformance.tolerance.budget import Expected

_LOSS_SCALE = 2.0**20
"""A power of two, so that cotangents stay exact in every dtype that has it."""


def register(operation: Operation) -> None:
    """Register these laws for one operation."""
    op, y, dense = operation.name, operation.output, operation.cases["dense"]

    def batches(limits: Limits) -> st.SearchStrategy:
        if limits.eager:
            return dense(limits).map(lambda case: replace(case, B=2 + case.B % 2))
        return dense(limits).filter(lambda case: case.B > 1)

    @law(
        op,
        "relation",
        cases=operation.cuts,
        usual=FEW if operation.usual else 0,
        dtypes=UP_TO_BFLOAT16,
        subject=("initial state", "final state"),
        share=0.75,
    )
    def split_and_carry(checker: Checker, case: Any) -> None:
        """Cutting a sequence and carrying the state gives the same results as the whole sequence, gradients included.

        {op}(x) = concat({op}(x[:t]), {op}(x[t:], state({op}(x[:t]))))
        """
        call = operation.call_of(case, checker.dtype)
        arrays, cotangents = call.arrays, call.cotangents
        cut = round(case.cut * case.S)
        stepped = operation.stepped_outputs
        of_early = nothing_of(cotangents) | {name: at_steps(cotangents[name], slice(None, cut)) for name in stepped}
        of_late = {**cotangents, **{name: at_steps(cotangents[name], slice(cut, None)) for name in stepped}}
        kept = {**operation.part(arrays, slice(None, cut)), **operation.kept(arrays)}
        early = replace(call, arrays=kept, cotangents=of_early)
        late = replace(call, arrays=operation.part(arrays, slice(cut, None)), cotangents=of_late)
        whole, of_whole = results_of(checker, call)
        first, _ = results_of(checker, early)
        second, after = results_of(checker, late.with_arrays(**operation.carried(first)))
        outputs = {name: along_steps(first[name], second[name]) for name in stepped}
        outputs |= {name: second[name] for name in operation.states}
        alike(checker, outputs, whole, expected_value(operation, checker, case), case.steps, times=3)
        if of_whole is not None and after is not None:
            of_states = {name: after[argument] for name, argument in operation.states.items()}
            _, before = checker.vjp(replace(early, cotangents={**of_early, **of_states}))
            joined = {name: along_steps(before[name], after[name]) for name in operation.sequences if name in arrays}
            joined |= operation.kept(before)
            expected = expected_gradient(operation, checker, case)
            more = operation.cut_slack(
                checker.precision(case.steps),
                arrays,
                {**first, **{f"gradient of {name}": x for name, x in of_states.items()}},
            )
            slack = {**expected.slack, **{name: expected.slack[name] + of_cut for name, of_cut in more.items()}}
            for name in operation.weights_of(arrays):
                joined[name] = replace(before[name], values=before[name].values + after[name].values)
                slack[name] = slack[name] + rounding_of(before[name], after[name])
            names, of = operation.differentiable(arrays), Expected(expected.values, slack)
            alike(checker, joined, of_whole, of, case.steps, of="gradient of ", only=names, times=3)

    @law(
        op,
        "relation",
        equation=f"{y}_t(x) = {y}_t(x′) where x_s = x′_s for s ≤ t;  ∂{y}_t/∂x_s = 0 for s > t",
        compiled_dtypes=None,
        cases=dense,
        share=0.5,
    )
    def causality(checker: Checker, case: Any) -> None:
        """No output depends on a later input, and no later input has a gradient from an earlier output."""
        call = operation.call_of(case, checker.dtype)
        cut = round(case.cut * case.S)
        other = replace(case, seed=case.seed + 1, scale=50.0, gates="extreme").arrays(checker.dtype)
        mixed = {
            name: along_steps(at_steps(x, slice(None, cut)), at_steps(other[name], slice(cut, None)))
            if operation.stepped(name)
            else x
            for name, x in call.arrays.items()
        }
        expected = expected_value(operation, checker, case)
        outputs, of_mixed = (checker.call(each)[y] for each in (call, replace(call, arrays=mixed)))
        early, own = (at_steps(x, slice(None, cut)) for x in (of_mixed, outputs))
        close(checker, y, early, own, expected.values[y][:, :cut], expected.slack[y][:, :cut], case.steps)
        if not has_gradient(operation, checker):
            return
        dy = call.cotangents[y].values.copy()
        dy[:, cut:] = 0
        of_early = {**nothing_of(call.cotangents), y: replace(call.cotangents[y], values=dy)}
        _, gradients = checker.vjp(replace(call, cotangents=of_early))
        for name in operation.sequences:
            if name not in call.arrays:
                continue
            expect_zero(name, gradients[name].values[:, cut:], "at a step after every cotangent")

    if "i" in operation.sequences and (operation.stated is None or operation.stated.recurrence.stabilised):
        _register_silent_start(operation)

    @law(op, "relation", compiled_dtypes=None, cases=dense, share=0.5)
    def permutation(checker: Checker, case: Any) -> None:
        """Sequences of a batch, and heads, are independent: permuting them permutes results and gradients; a shared
        head moves with the heads that share it.

        {op}(πx) = π {op}(x),  d{op}(πx) = π d{op}(x)
        """

        # Head n of N reads head n // (N/N′) of N′, so reversing all heads is reversing the heads of every N′.
        axes = [operation.axes(letter) for letter in "BN"]

        def permuted(name: str, x: np.ndarray) -> np.ndarray:
            return np.flip(x, tuple(of[name] for of in axes if name in of))

        alike_when(operation, checker, case, permuted)

    @law(op, "relation", cases=batches, dtypes=UP_TO_BFLOAT16, share=0.5)
    def batch_invariance(checker: Checker, case: Any) -> None:
        """A sequence's results and gradients do not depend on the other sequences of its batch.

        {op}([x, x′])[0] = {op}([x])[0],  d{op}([x, x′])[0] = d{op}([x])[0]
        """
        other = replace(case, seed=case.seed + 1, scale=50.0, gates="extreme")

        def beside(name: str, x: np.ndarray, companions: Arrays) -> np.ndarray:
            return x if name in operation.weights else np.concatenate([x[:1], companions[name].values[1:]])

        def alone(name: str, x: np.ndarray) -> np.ndarray:
            return x if name in operation.weights else x[:1]

        call, companions = operation.call_of(case, checker.dtype), other.arrays(checker.dtype)
        first = replace(call, cotangents=changed(call.cotangents, lambda name, x: _first_alone(x)))
        batch = replace(first, arrays=changed(call.arrays, lambda name, x: beside(name, x, companions)))
        single = changed_call(call, alone)
        values, precision = oracle.values(single.arrays), checker.precision(case.steps)
        expected = operation.value(values, call.options, precision)
        names = operation.differentiable(call.arrays)
        # A batch of one has a different shape, for which a framework that compiles would have to compile again.
        calls = [batch, single] if checker.implementation.eager else [batch]
        own = changed_results(results_of(checker, first), names, alone)
        for each in calls:
            got = changed_results(results_of(checker, each), names, alone)
            alike(checker, got[0], own[0], expected, case.steps)
            if got[1] is not None and own[1] is not None:
                of_gradient = operation.gradient(values, call.options, oracle.values(single.cotangents), precision)
                alike(checker, got[1], own[1], of_gradient, case.steps, of="gradient of ", only=names)


def register_steps(operation: Operation) -> None:
    """Register the law of one step of a recurrence."""
    step: OneStep = operation.one_step
    whole = step.sequence

    @law(
        operation,
        "definition",
        cases=operation.cases["steps"],
        strata=SMALL,
        compiled_dtypes=("float32", "bfloat16"),
        forward=True,
    )
    def sequence(checker: Checker, case: Any) -> None:
        """Step by step gives the same results as the whole sequence.

        {op} applied S times = one call with S steps
        """
        arrays, options = step.with_state(case, checker.dtype), step.options_of(case)
        state, outputs, last = operation.kept(step.at(arrays, 0) if case.S else {}), [], {}
        for t in range(case.S):
            last = checker.call(Call(operation=operation.name, arrays={**step.at(arrays, t), **state}, options=options))
            output = last[whole.output]
            outputs.append(replace(output, values=output.values[:, None]))
            # An output in 16 bits is not what the next step reads: a state has its own copy of it.
            state = operation.carried(last)
        if outputs:
            results = {whole.output: along_steps(*outputs), **{name: last[name] for name in whole.states}}
            checker.agree(results, expected_value(whole, checker, case), case.steps, times=1 if case.S < 2 else 2)


def register_clipping(operation: Operation) -> None:
    """Register the laws of an operation's gradient clipping: what it does, and that it does anything.

    The second one is kept by any order of clipping and adding.
    """
    assert operation.stated is not None
    dense, packed = operation.cases["dense"], operation.cases["packed"]
    default = {OPTION + name: values[0] for name, values in operation.stated.recurrence.options.items()}

    def clipped(limits: Limits) -> st.SearchStrategy:
        # Dense and packed cases if a new shape is cheap, else one program.
        if not limits.eager:
            return dense(limits, state=True, **{**default, CLIPPING: 0.5})
        bounds = st.sampled_from((0.1, -0.5, 2.0))
        either = st.one_of(dense(limits), packed(limits))
        return st.builds(lambda case, bound: replace(case, **{CLIPPING: bound}), either, bounds)

    @law(
        operation,
        "contract",
        cases=clipped,
        dtypes=UP_TO_BFLOAT16,
        compiled_dtypes=SINGLE,
        strata=SHORT,
        gradient=operation.name,
        share=0.75,
    )
    def clipping(checker: Checker, case: Any) -> None:
        """gradient_clipping=c clips the gradient that reaches the output of a step from the step after it, elementwise
        to ±|c|, before the output's own is added; those of other memories and of initial states are not clipped.

        dh_t = clip(from step t+1, ±|c|) + cotangent of h_t
        """
        check_gradient(operation, checker, case)

    plain = {CLIPPING: BOUND, "gates": "ordinary", "scale": 1.0, "cotangents": "dense", "cotangent_scale": 1.0}

    def several_steps(limits: Limits) -> st.SearchStrategy:
        return dense(limits, **plain).filter(lambda case: case.B > 0 and case.S > 1)

    @law(
        operation,
        "definition",
        cases=several_steps,
        strata=SMALL,
        dtypes=SINGLE,
        gradient=operation.name,
        subject=("clipping",),
        share=0.25,
        quick=True,
    )
    def clipping_acts(checker: Checker, case: Any) -> None:
        """A gradient_clipping below the gradient that reaches a state bounds it: the gradients of earlier steps are
        not those of a call without it.

        |c| < |dh_t| ⇒ d{op}(x, gradient_clipping=c) ≠ d{op}(x)
        """
        call = operation.call_of(case, checker.dtype)
        _, clipped = checker.vjp(call)
        options = {name: given for name, given in call.options.items() if name != "gradient_clipping"}
        _, free = checker.vjp(replace(call, options=options))
        if all(np.array_equal(clipped[name].values, free[name].values) for name in operation.sequences):
            raise LawError("", f"gradient_clipping={BOUND} changes no gradient: it is ignored")


BOUND = 1e-3


def _register_silent_start(operation: Operation) -> None:
    """Register the law about the steps before the first write, for an operation with an input gate."""
    ordinary: dict[str, Any] = {"gates": "ordinary"}

    @law(
        operation.name,
        "definition",
        equation="i_s = −∞ for s ≤ S/2 ⇒ dx = Σ_t ⟨dh_t, ∂h_t/∂x⟩ for dh of about 10⁶",
        # After a state of zeros, a low gate writes what is no normal number.
        cases=lambda limits: operation.cases["dense"](limits, **ordinary),
        dtypes=UP_TO_BFLOAT16,
        compiled_dtypes=SINGLE,
        strata=SHORT,
        gradient=operation.name,
        subject=("input gates of -inf",),
        share=0.25,
    )
    def silent_start(checker: Checker, case: Any) -> None:
        """Steps that write nothing before the first write, as padding on the left does, keep outputs and gradients
        right, also after a state of zeros and for cotangents as large as loss scaling makes them."""
        call = operation.call_of(case, checker.dtype)
        i, dh = call.arrays["i"], call.cotangents[operation.output]
        silent = i.values.copy()
        silent[:, : (case.S + 1) // 2] = -np.inf
        changed = {"i": replace(i, values=silent)}
        if case.seed % 2:
            states = {name: call.arrays[name] for name in operation.states.values() if name in call.arrays}
            changed |= {name: replace(x, values=np.zeros(x.shape)) for name, x in states.items()}
        scaled = {**nothing_of(call.cotangents), operation.output: replace(dh, values=_LOSS_SCALE * dh.values)}
        call = replace(call.with_arrays(**changed), cotangents=scaled)
        outputs, gradients = checker.vjp(call)
        values, precision = oracle.values(call.arrays), checker.precision(call.steps)
        expected = operation.value(values, call.options, precision)
        checker.agree(outputs, expected, call.steps, only=(operation.output,))
        expected = operation.gradient(values, call.options, oracle.values(call.cotangents), precision)
        checker.agree(gradients, expected, call.steps, of="gradient of ", only=call.primals)


def _first_alone(cotangent: np.ndarray) -> np.ndarray:
    return np.concatenate([cotangent[:1], 0 * cotangent[1:]])
