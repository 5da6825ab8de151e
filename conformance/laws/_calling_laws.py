"""Laws of every operation about the calls that programs make: of arrays that were written to, of frozen arguments, of
one array for several arguments, with a second backward pass, and of arrays inside larger ones."""

from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.base.call import Call
from conformance.base.dtypes import Array
from conformance.base.result_form import expect_shapes
from conformance.frameworks.implementation import Results
from conformance.laws import SHORT, SINGLE, SMALL, law
from conformance.laws._answers import (
    expected_gradient,
    expected_value,
    lacking,
    laid_out,
    of_rows,
    transformed,
)
from conformance.laws._relations import (
    alike,
    alike_in_another_way,
    close,
    results_of,
    rounding_of,
    same_results,
)
from conformance.laws.checker import Checker
from conformance.operations import Operation

SURROUNDED = ("surrounded", "rows apart")
"""The layouts of arrays with NaN around them."""


def register(operation: Operation) -> None:
    """Register these laws for one operation."""
    rows: dict[str, Any] = {"cases": of_rows(operation), "dtypes": SINGLE, "share": 0.1}
    own: dict[str, Any] = {**rows, "gradient": operation.name}

    # Its second row is a packing, which small runs try as well.
    @law(operation, "behaviour", **{**rows, "share": 0.25}, skip=partial(lacking, "layouts"))
    def overwritten_arrays(checker: Checker, case: Any) -> None:
        """A call of arrays that were written to after an earlier call, cu_seqlens among them, has the value and the
        gradient of what they hold now: nothing that was computed from them is kept by their identity.

        f(x); x ← x′; f(x) = f(x′), df(x) = df(x′)
        """
        call = operation.call_of(case, checker.dtype)
        own = results_of(checker, call)
        # A call without a gradient may take another path.
        outputs, _ = _overwritten(checker, replace(call, cotangents={}))
        same_results(operation, checker, case, call, (outputs, None), own)
        if own[1] is not None:
            same_results(operation, checker, case, call, _overwritten(checker, call), own)

    @law(
        operation,
        "behaviour",
        cases=operation.all_cases,
        strata=SHORT,
        dtypes=SINGLE,
        share=0.25,
        skip=partial(lacking, "layouts"),
    )
    def surroundings(checker: Checker, case: Any) -> None:
        """Memory before an array, after it or between its rows has no effect on a result or a gradient.

        {op}(x) = {op}(copy of x) where x is inside a larger array of NaN
        """
        call = laid_out(operation.call_of(case, checker.dtype), "contiguous")
        own = results_of(checker, call)
        for layout in SURROUNDED:
            alike_in_another_way(operation, checker, case, laid_out(call, layout), own)

    @law(operation, "behaviour", **own, skip=partial(lacking, "two backward passes"))
    def second_backward_pass(checker: Checker, case: Any) -> None:
        """A second backward pass through the graph of one call has the gradient for its own cotangents, and leaves that
        of the first pass as it is.

        y = f(x): df(x)ᵀd₁ and df(x)ᵀd₂ from one forward pass
        """
        call = operation.call_of(case, checker.dtype)
        other = {name: _reversed(name, d) for name, d in call.cotangents.items()}
        passes = (call, replace(call, cotangents=other))
        both = {name: _stacked(d, other[name]) for name, d in call.cotangents.items()}
        outputs, gradients = transformed("two backward passes", checker, replace(call, cotangents=both))
        expected = {name: np.stack([call.arrays[name].values] * 2) for name in call.primals}
        expect_shapes(operation.name, gradients, expected, "the gradient of ")
        for number, each in enumerate(passes):
            of_pass = {name: replace(x, values=x.values[number]) for name, x in gradients.items()}
            form = f"backward pass {number}" if number else ""
            same_results(operation, checker, case, each, (outputs, of_pass), results_of(checker, each), form)

    if len(operation.primals) > 1:
        register_of_several(operation, own)
    if operation.packs:
        register_of_packed(operation)


def register_of_several(operation: Operation, own: dict[str, Any]) -> None:
    """Register the laws of operations with more than one floating-point argument."""

    @law(operation, "behaviour", **own, skip=partial(lacking, "frozen arguments"))
    def frozen_arguments(checker: Checker, case: Any) -> None:
        """The gradient of an argument does not depend on which other arguments need one.

        ∂⟨{op}(x), d⟩/∂x_a is the same with x_b frozen, for all arguments a ≠ b
        """
        call = operation.call_of(case, checker.dtype)
        own = results_of(checker, call)
        assert own[1] is not None
        values, gradients = expected_value(operation, checker, case), expected_gradient(operation, checker, case)
        for names in _subsets(call.primals, checker.implementation.eager):
            vjp = partial(checker.implementation.vjp_of, names)
            outputs, of_names = checker.served(vjp, checker.on_backend(call))
            alike(checker, outputs, own[0], values, call.steps, only=tuple(call.cotangents))
            alike(checker, of_names, own[1], gradients, call.steps, of="gradient of ", only=names)

    @law(operation, "behaviour", **own, skip=partial(lacking, "one array for several"))
    def one_array_for_several(checker: Checker, case: Any) -> None:
        """If one array is several of the arguments, the value is that for equal arrays, and its gradient is the sum of
        theirs.

        y = {op}(x, x) ⇒ dx = ∂y/∂x_1 + ∂y/∂x_2
        """
        call = operation.call_of(case, checker.dtype)
        uses = _uses(operation, call)
        equal = call.with_arrays(**{name: x for names, x in uses.items() for name in names})
        apart = equal.with_arrays(**{name: replace(x) for name, x in equal.arrays.items()})
        own = results_of(checker, apart)
        assert own[1] is not None
        outputs, gradients = transformed("one array for several", checker, equal)
        values = expected_value(operation, checker, case, apart, "equal arrays")
        alike(checker, outputs, own[0], values, call.steps, only=tuple(call.cotangents))
        of = expected_gradient(operation, checker, case, apart, "equal arrays")
        in_common = {name for names in uses for name in names}
        for names in (*uses, *((name,) for name in call.primals if name not in in_common)):
            used = [name for name in names if name in own[1]]
            if not used:
                continue
            parts = [own[1][name] for name in used]
            total = replace(parts[0], values=np.asarray(sum(part.values for part in parts)))
            expected, slack = (np.asarray(sum(by[name] for name in used)) for by in (of.values, of.slack))
            where, got = f"gradient of {' and '.join(names)}", gradients[names[0]]
            close(checker, where, got, total, expected, slack + rounding_of(*parts), call.steps, times=3)


def register_of_packed(operation: Operation) -> None:
    """Register the law of a packing's dtype."""

    def packed(limits: Any) -> Any:
        return operation.cases["packed"](limits).filter(lambda case: bool(case.lengths))

    @law(operation, "relation", cases=packed, strata=SMALL, dtypes=SINGLE, share=0.1)
    def cu_seqlens_of_int64(checker: Checker, case: Any) -> None:
        """cu_seqlens of int64, the default of PyTorch and NumPy, mean what those of int32 do.

        {op}(x, int64(cu_seqlens)) = {op}(x, int32(cu_seqlens)),  its gradient likewise
        """
        call = operation.call_of(case, checker.dtype)
        narrow = call.arrays["cu_seqlens"]
        wide = replace(narrow, values=narrow.values.astype(np.int64), dtype="int64")
        alike_in_another_way(operation, checker, case, call.with_arrays(cu_seqlens=wide), results_of(checker, call))


def _overwritten(checker: Checker, call: Call) -> tuple[Results, Results]:
    """Results of a call whose arrays held other values, and a packing of the same steps in other lengths, before."""
    call = checker.on_backend(call)
    overwritten = partial(checker.implementation.overwritten, call.changed(_reversed))
    return checker.served(overwritten, call)


def _reversed(name: str, x: Array) -> Array:
    """The array with its first axis in reverse order; a packing of the sequences in reverse order."""
    if not x.values.ndim:
        return x
    backwards = x.values[::-1].copy()
    return replace(x, values=x.values[-1] - backwards if name == "cu_seqlens" else backwards)


def _stacked(*parts: Array) -> Array:
    return replace(parts[0], values=np.stack([part.values for part in parts]))


def _uses(operation: Operation, call: Call) -> dict[tuple[str, ...], Array]:
    """The arguments of the same shape and dtype, each group with the array that is given for all of them.

    States are given zeros: one array of zeros is a usual initial state.
    """
    groups: dict[Any, list[str]] = defaultdict(list)
    for name in call.primals:
        x = call.arrays[name]
        groups[x.shape, x.dtype, name in operation.state_arguments].append(name)
    uses = {}
    for names in groups.values():
        if len(names) > 1:
            x = call.arrays[names[0]]
            is_state = names[0] in operation.state_arguments
            uses[tuple(names)] = replace(x, values=np.zeros(x.shape)) if is_state else x
    return uses


def _subsets(names: tuple[str, ...], eager: bool) -> list[tuple[str, ...]]:
    """Each argument alone, and all but each one; if each subset has to be compiled, only all but the first one."""
    if not eager:
        return [names[1:]]
    alone = [(name,) for name in names]
    return list(dict.fromkeys([*alone, *(tuple(other for other in names if other != name) for name in names)]))
