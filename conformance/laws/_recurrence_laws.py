"""Laws of every recurrence: a sequence may be cut, and does not depend on its future, its neighbours or its place."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance import oracle
from conformance.cases import Limits
from conformance.laws import UP_TO_BFLOAT16, Strategy, law
from conformance.laws._answers import expected_gradient, expected_value, has_gradient
from conformance.laws._recurrence import (
    Arrays,
    alike_when,
    along_steps,
    at_steps,
    changed,
    changed_call,
    expect_zero,
    nothing_of,
    rounding_of,
)
from conformance.laws._relations import alike, close, results_of
from conformance.laws.checker import Checker
from conformance.operations import Operation
from conformance.tolerance.budget import Expected


def cut_anywhere(whole: st.SearchStrategy) -> st.SearchStrategy:
    """Cases that are cut at any share of their steps, the ends included."""
    shares = st.one_of(st.sampled_from((0.5, 0.0, 1.0)), st.floats(0, 1, width=16))
    return st.builds(lambda case, cut: replace(case, cut=cut), whole, shares)


def register(operation: Operation, cuts: Strategy) -> None:
    """Register these laws for one operation.

    Args:
        cuts: cases that are cut at a share ``cut`` of their steps.
    """
    op, y, dense = operation.name, operation.output, operation.cases["dense"]

    def batches(limits: Limits) -> st.SearchStrategy:
        if limits.eager:
            return dense(limits).map(lambda case: replace(case, B=2 + case.B % 2))
        return dense(limits).filter(lambda case: case.B > 1)

    @law(op, "relation", cases=cuts, dtypes=UP_TO_BFLOAT16, subject=("initial state", "final state"), share=0.75)
    def split_and_carry(checker: Checker, case: Any) -> None:
        """Cutting a sequence and carrying the state gives the same results as the whole sequence, gradients included.

        {op}(x) = concat({op}(x[:t]), {op}(x[t:], state({op}(x[:t]))))
        """
        call = operation.call_of(case, checker.dtype)
        arrays, cotangents = call.arrays, call.cotangents
        cut = round(case.cut * case.S)
        of_early = {**nothing_of(cotangents), y: at_steps(cotangents[y], slice(None, cut))}
        of_late = {**cotangents, y: at_steps(cotangents[y], slice(cut, None))}
        kept = {**operation.part(arrays, slice(None, cut)), **operation.kept(arrays)}
        early = replace(call, arrays=kept, cotangents=of_early)
        late = replace(call, arrays=operation.part(arrays, slice(cut, None)), cotangents=of_late)
        whole, of_whole = results_of(checker, call)
        first, _ = results_of(checker, early)
        second, after = results_of(checker, late.with_arrays(**operation.carried(first)))
        outputs = {y: along_steps(first[y], second[y]), **{name: second[name] for name in operation.states}}
        alike(checker, outputs, whole, expected_value(operation, checker, case), case.steps, times=3)
        if of_whole is not None and after is not None:
            of_states = {name: after[argument] for name, argument in operation.states.items()}
            _, before = checker.vjp(replace(early, cotangents={**of_early, **of_states}))
            joined = {name: along_steps(before[name], after[name]) for name in operation.sequences}
            joined |= operation.kept(before)
            expected = expected_gradient(operation, checker, case)
            slack = {**expected.slack, **operation.cut_slack(expected, arrays)}
            for name in operation.weights:
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
            expect_zero(name, gradients[name].values[:, cut:], "at a step after every cotangent")

    @law(op, "relation", compiled_dtypes=None, cases=dense, share=0.5)
    def permutation(checker: Checker, case: Any) -> None:
        """Sequences of a batch, and heads, are independent: permuting them permutes results and gradients; a shared
        head moves with the heads that share it.

        {op}(πx) = π {op}(x),  d{op}(πx) = π d{op}(x)
        """

        # Head n of N reads head n // (N/N′) of N′, so reversing all heads is reversing the heads of every N′.
        def permuted(name: str, x: np.ndarray) -> np.ndarray:
            if name in operation.weights:
                return x[::-1]
            return x[::-1, :, ::-1] if operation.stepped(name) else x[::-1, ::-1]

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
        outputs, gradients = results_of(checker, first)
        for each in calls:
            others, of_others = results_of(checker, each)
            alike(checker, changed(others, alone), changed(outputs, alone), expected, case.steps)
            if gradients is not None and of_others is not None:
                of_gradient = operation.gradient(values, call.options, oracle.values(single.cotangents), precision)
                own, got = ({name: of[name] for name in names} for of in (gradients, of_others))
                got, own = changed(got, alone), changed(own, alone)
                alike(checker, got, own, of_gradient, case.steps, of="gradient of ", only=names)


def _first_alone(cotangent: np.ndarray) -> np.ndarray:
    return np.concatenate([cotangent[:1], 0 * cotangent[1:]])
