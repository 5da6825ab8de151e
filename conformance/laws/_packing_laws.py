"""Laws of every recurrence about packed sequences: their order, and their gradients, separate and together."""

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from conformance import oracle
from conformance.frameworks.implementation import Implementation
from conformance.laws import FEW, SHORT, SINGLE, SMALL, UP_TO_BFLOAT16, Strategy, law
from conformance.laws._answers import check_gradient, expected_gradient, expected_value
from conformance.laws._relations import (
    alike,
    alike_after,
    alike_in_another_way,
    alike_when,
    changed,
    changed_call,
    changed_results,
    close,
    expect_zero,
    expected_of,
    results_of,
    rounding_of,
)
from conformance.laws.checker import Checker
from conformance.operations import Operation


def _sequences(operation: Operation) -> Strategy:
    """Packed cases of one sequence or more."""
    return lambda limits: operation.cases["packed"](limits).filter(lambda case: bool(case.lengths))


def _several(operation: Operation) -> Strategy:
    """Packed cases of two sequences with steps or more."""
    return lambda limits: operation.cases["packed"](limits).filter(lambda case: np.count_nonzero(case.lengths) > 1)


def register(operation: Operation) -> None:
    """Register the laws of packed sequences for one operation."""
    op, packed = operation.name, _sequences(operation)
    without_options = operation.cases.get("packed gradient", operation.cases["packed"])

    @law(
        op,
        "definition",
        cases=without_options,
        usual=FEW if operation.usual else 0,
        dtypes=UP_TO_BFLOAT16,
        gradient=op,
        share=0.75,
        quick=True,
    )
    def packed_gradient(checker: Checker, case: Any) -> None:
        """The gradient of a packed call is that of a loop over its sequences.

        d {op}(x, cu_seqlens)[b] = d {op}(x[cu_b:cu_{b+1}])
        """
        check_gradient(operation, checker, case)

    @law(op, "relation", cases=packed, share=0.5)
    def packing_order(checker: Checker, case: Any) -> None:
        """Packing the sequences in another order gives the same results and gradients, in that order.

        {op}(concat x_π(b)) = concat {op}(x_π(b)),  its gradient likewise
        """
        order = np.random.default_rng(case.seed).permutation(len(case.lengths))
        bounds = [0, *np.cumsum(case.lengths).tolist()]
        tokens = np.concatenate([np.arange(bounds[b], bounds[b + 1]) for b in order])

        def reordered(name: str, x: np.ndarray) -> np.ndarray:
            if name in operation.weights:
                return x
            if name == "cu_seqlens":
                return np.cumsum([0, *(case.lengths[b] for b in order)]).astype(x.dtype)
            return x[tokens] if operation.stepped(name) else x[order]

        alike_when(operation, checker, case, reordered)

    @law(
        op,
        "relation",
        compiled_dtypes=None,
        cases=packed,
        share=0.25,
        skip=lambda implementation: None if implementation.eager else "every length would need its own compilation",
    )
    def packed_as_loop(checker: Checker, case: Any) -> None:
        """A packed call gives each sequence the same results as a call of that sequence alone.

        {op}(x, cu)[b] = {op}(x[cu_b:cu_{b+1}]),  its gradient likewise
        """
        call = operation.call_of(case, checker.dtype)
        outputs, gradients = results_of(checker, call)
        expected = expected_value(operation, checker, case)
        arrays = {name: x for name, x in call.arrays.items() if name != "cu_seqlens"}
        # The length of the longest of several sequences has no meaning for a call of one sequence.
        dense = replace(call, arrays=arrays, options=replace(case, room=None).options())
        of_each = []
        for b in range(len(case.lengths)):
            own = partial(_own, operation, case.lengths, b)
            alone, of_alone = results_of(checker, changed_call(dense, own))
            alike(checker, changed(outputs, own), alone, expected_of(expected, own), case.steps)
            of_each.append(of_alone)
        if gradients is None:
            return
        expected = expected_gradient(operation, checker, case)
        names = tuple(name for name in operation.differentiable(arrays) if name not in operation.weights)
        for b, of_alone in enumerate(of_each):
            own = partial(_own, operation, case.lengths, b)
            got, of_own = changed({name: gradients[name] for name in names}, own), expected_of(expected, own)
            alike(checker, got, of_alone, of_own, case.steps, of="gradient of ", only=names)
        for name in operation.weights_of(arrays):
            parts = [part[name] for part in of_each]
            total = replace(parts[0], values=np.asarray(sum(part.values for part in parts)))
            slack = expected.slack[name] + rounding_of(*parts)
            where = f"gradient of {name}"
            close(checker, where, gradients[name], total, expected.values[name], slack, case.steps, times=3)

    @law(op, "relation", cases=packed, gradient=op, share=0.25)
    def packing_sum(checker: Checker, case: Any) -> None:
        """The gradient of a packed call is the sum of the gradients of its sequences, and that of a sequence is exactly
        0 at the tokens and states of all others.

        d{op} = Σ_b d{op}_b,  d{op}_b/dx_c = 0 for c ≠ b
        """
        call, bounds = operation.call_of(case, checker.dtype), [0, *np.cumsum(case.lengths).tolist()]
        parts = []
        for b in range(len(case.lengths)):
            tokens = slice(bounds[b], bounds[b + 1])

            def own(name: str, x: np.ndarray, b: int = b, tokens: slice = tokens) -> np.ndarray:
                if name in operation.weights:
                    return x
                only = np.zeros(x.shape)
                at = tokens if operation.stepped(name) else b
                only[at] = x[at]
                return only

            _, gradients = checker.vjp(replace(call, cotangents=changed(call.cotangents, own)))
            for name in operation.differentiable(call.arrays):
                rest = gradients[name].values - own(name, gradients[name].values)
                expect_zero(name, rest, f"outside sequence {b}, which alone has cotangents")
            parts.append(gradients)
        _, whole = checker.vjp(call)
        expected = expected_gradient(operation, checker, case)
        for name in operation.differentiable(call.arrays):
            total = replace(parts[0][name], values=np.asarray(sum(part[name].values for part in parts)))
            slack = expected.slack[name] + rounding_of(*(part[name] for part in parts))
            where, times = f"gradient of {name}", 3 if name in operation.weights else 2
            close(checker, where, total, whole[name], expected.values[name], slack, case.steps, times)

    @law(
        op,
        "relation",
        cases=packed,
        strata=SMALL,
        gradient=op,
        share=0.25,
        skip=lambda implementation: (
            "a NumPy target's own backward takes one packing" if implementation.framework == "numpy" else None
        ),
    )
    def packings(checker: Checker, case: Any) -> None:
        """The gradient of a sum over two packings of the same tokens is the sum of their gradients: the two calls do
        not affect each other.

        d({op}(x, cu) + {op}(x, cu′)) = d{op}(x, cu) + d{op}(x, cu′)
        """
        # A max_seqlen that is right for one packing may be too short for the other.
        call = operation.call_of(replace(case, room=None), checker.dtype)
        packing = call.arrays["cu_seqlens"]
        one = packing.values
        other = np.sort([0, *np.random.default_rng(case.seed).integers(0, one[-1] + 1, len(one) - 2), one[-1]])
        other = other.astype(one.dtype)
        both, *each = (
            call.with_arrays(cu_seqlens=replace(packing, values=cu)) for cu in (np.stack([one, other]), one, other)
        )
        _, gradients = checker.served(_of_both(checker.implementation, op).vjp, checker.on_backend(both))
        apart = [checker.vjp(alone)[1] for alone in each]
        steps = int(max(np.diff(one).max(), np.diff(other).max()))
        of, precision = oracle.values(call.cotangents), checker.precision(steps)
        parts = [operation.gradient(oracle.values(alone.arrays), call.options, of, precision) for alone in each]
        for name in operation.differentiable(call.arrays):
            total, slack = (sum(getattr(part, field)[name] for part in parts) for field in ("values", "slack"))
            # Each part is rounded to its dtype before the parts are added, and they may cancel.
            slack = np.asarray(slack + rounding_of(*(part[name] for part in apart)))
            own = replace(gradients[name], values=np.asarray(sum(part[name].values for part in apart)))
            close(checker, f"gradient of {name}", gradients[name], own, np.asarray(total), slack, steps)

    @law(op, "contract", cases=_several(operation), compiled_dtypes=SINGLE, share=0.25)
    def spoilt_sequence(checker: Checker, case: Any) -> None:
        """A NaN in one packed sequence, its states or its cotangents changes no result and no gradient of the others.

        a NaN in x_b ⇒ {op}(x)_c and its gradient are as without it, for c ≠ b
        """
        call = operation.call_of(case, checker.dtype)
        own = results_of(checker, call)
        rng, bounds = np.random.default_rng(case.seed), [0, *np.cumsum(case.lengths).tolist()]
        b = int(rng.choice(np.flatnonzero(case.lengths)))
        shared = (*operation.weights, "cu_seqlens")
        names = [name for name in (*call.arrays, *(call.cotangents if own[1] else ())) if name not in shared]
        spoilt, token = str(rng.choice(names)), int(rng.integers(bounds[b], bounds[b + 1]))

        def with_nan(name: str, x: np.ndarray) -> np.ndarray:
            x = x.copy()
            if name == spoilt:
                x[token if operation.stepped(name) else b] = np.nan
            return x

        def others(name: str, x: np.ndarray) -> np.ndarray:
            if name in operation.weights:
                return x
            return np.delete(x, slice(*bounds[b : b + 2]) if operation.stepped(name) else b, axis=0)

        with np.errstate(invalid="ignore"):
            spoilt_results = results_of(checker, changed_call(call, with_nan))
        names = tuple(name for name in operation.differentiable(call.arrays) if name not in operation.weights)
        got, own = (changed_results(results, names, others) for results in (spoilt_results, own))
        alike_after(others, operation, checker, case, got, own, names)

    if not operation.takes("max_seqlen"):
        return

    @law(op, "contract", cases=_sequences(operation), strata=SHORT, compiled_dtypes=(), share=0.25)
    def max_seqlen(checker: Checker, case: Any) -> None:
        """A max_seqlen that is long enough changes nothing.

        {op}(x, cu, max_seqlen=L) = {op}(x, cu) for L ≥ the longest sequence
        """
        call = operation.call_of(replace(case, room=None), checker.dtype)
        own = results_of(checker, call)
        for room in (0, 3):
            stated = call.with_options(max_seqlen=case.steps + room)
            alike_in_another_way(operation, checker, case, stated, own)


def _own(operation: Operation, lengths: tuple[int, ...], b: int, name: str, x: np.ndarray) -> np.ndarray:
    """The arrays of one sequence of a packed call, in the form of a dense call of that sequence."""
    if name in operation.weights:
        return x
    start = sum(lengths[:b])
    return x[None, start : start + lengths[b]] if operation.stepped(name) else x[b : b + 1]


def _added(x: Any, y: Any) -> Any:
    return tuple(map(_added, x, y)) if isinstance(x, tuple | list) else x + y


@lru_cache(maxsize=4)
def _of_both(implementation: Implementation, op: str) -> Implementation:
    """The target, with ``op`` replaced by the sum of two calls, one for each row of ``cu_seqlens``."""
    function = implementation.functions[op]

    def summed(*arrays: Any, cu_seqlens: Any, **keywords: Any) -> Any:
        first, second = (function(*arrays, cu_seqlens=cu_seqlens[row], **keywords) for row in (0, 1))
        return _added(first, second)

    return implementation.with_functions({op: summed})
