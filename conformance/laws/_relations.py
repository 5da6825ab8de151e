"""Comparison of two calls of a target, either of which may be right or wrong.

The expected values are the target's own other result, and both results may be off by their tolerance. The oracle gives
that tolerance for the true function. If the target computes another function, the rounding of the two calls also
affects the part by which the result is wrong, which the oracle does not know. That part rounds like any other number of
its size, so its largest value in an array, times the perturbation of an operand, is added to the tolerance. A right
target has no such part, and for it these laws are as strict as those that compare with the oracle.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from conformance.base.call import Call
from conformance.base.dtypes import ROUNDOFF, Array
from conformance.frameworks.implementation import Results
from conformance.laws._answers import expected_gradient, expected_value
from conformance.laws.checker import Checker, LawError
from conformance.operations import Operation, in_expected_units
from conformance.tolerance.budget import Expected, Precision, allowed
from conformance.tolerance.compared import dtype_of
from conformance.tolerance.staged import Staged, stages

Arrays = dict[str, Array]
Pair = tuple[Results, Results | None]
"""Outputs, and gradients if the target has any."""
Change = Callable[[str, np.ndarray], np.ndarray]


def alike(
    checker: Checker,
    got: Results,
    own: Results,
    expected: Expected,
    steps: int,
    *,
    of: str = "",
    only: tuple[str, ...] | None = None,
    times: float = 2.0,
) -> None:
    """Compare the results of one call of the target with those of another; states are compared as ``C·exp(m − m*)``.

    Args:
        own: the results of the other call.
        expected: the oracle's answer for both.
        of: a prefix for the names of the arrays, ``gradient of ``.
        only: the names to compare; None for all that the oracle expects and either call returns.
        times: the number of tolerances between the two results.
    """
    given = [name for name in expected.values if name in got or name in own]
    for name in given if only is None else only:
        for results in (got, own):
            if name not in results:
                raise LawError(f"{of}{name}", "missing", nature="missing")
        if of:
            first, second = got[name], own[name]
        else:
            first, second = (in_expected_units(name, results, expected.values) for results in (got, own))
        close(checker, f"{of}{name}", first, second, expected.values[name], expected.slack[name], steps, times)


def close(
    checker: Checker,
    where: str,
    got: Array,
    own: Array,
    expected: np.ndarray,
    slack: np.ndarray | Staged,
    steps: int,
    times: float = 2.0,
) -> None:
    """`alike` for one array."""
    if own.shape != expected.shape:
        raise LawError(where, f"shape {list(own.shape)}, expected {list(expected.shape)}", nature="shape")
    slack = slack + of_what_is_wrong(own, expected, slack, checker.precision(steps))
    checker.close(where, got, own.values.astype(np.float64), slack, steps, times)


def of_what_is_wrong(own: Array, expected: np.ndarray, slack: np.ndarray | Staged, precision: Precision) -> float:
    """The rounding of the wrong part of a result: 0 for a result within its tolerance."""
    if not expected.size:
        return 0.0
    largest = 0.0
    for stage in stages(slack):
        with np.errstate(invalid="ignore", over="ignore"):
            excess = np.abs(own.values - expected) - allowed(expected, stage, precision, dtype_of(own, precision))
        largest = float(np.where(np.isfinite(excess), excess, 0.0).max(initial=0.0))
        if not largest:
            break
    return precision.operand * largest


def results_of(checker: Checker, call: Call) -> Pair:
    """Outputs, and gradients if the target has any."""
    if checker.implementation.no_gradient(call.operation) is None:
        return checker.vjp(call)
    return checker.call(call), None


def alike_in_another_way(
    operation: Operation,
    checker: Checker,
    case: Any,
    call: Call,
    own: Pair,
    form: str = "",
) -> None:
    """Make a call, with and without a gradient, and compare it with the results of one that must give the same."""
    same_results(operation, checker, case, call, (checker.call(call), None), own, form)
    if own[1] is not None:
        same_results(operation, checker, case, call, checker.vjp(call), own, form)


def same_results(
    operation: Operation,
    checker: Checker,
    case: Any,
    call: Call,
    got: Pair,
    own: Pair,
    form: str = "",
) -> None:
    """Compare outputs and gradients of a call that is made in another way with those of the original call.

    Args:
        form: as in `expected_value`.
    """
    expected = expected_value(operation, checker, case, call, form)
    alike(checker, got[0], own[0], expected, call.steps, only=tuple(call.cotangents))
    if got[1] is not None and own[1] is not None:
        of_gradient = expected_gradient(operation, checker, case, call, form)
        alike(checker, got[1], own[1], of_gradient, call.steps, of="gradient of ", only=call.primals)


def alike_when(operation: Operation, checker: Checker, case: Any, change: Change) -> None:
    """Check that a change of arguments and cotangents changes the target's results in the corresponding way."""
    call = operation.call_of(case, checker.dtype)
    own, got = results_of(checker, call), results_of(checker, changed_call(call, change))
    names = operation.differentiable(call.arrays)
    alike_after(change, operation, checker, case, got, changed_results(own, names, change), names)


def alike_after(
    change: Change,
    operation: Operation,
    checker: Checker,
    case: Any,
    got: Pair,
    own: Pair,
    names: tuple[str, ...],
) -> None:
    """Compare the results of two calls that should both be those of a case, changed in the same way.

    Args:
        names: the arguments whose gradients are compared.
    """
    expected = expected_of(expected_value(operation, checker, case), change)
    alike(checker, got[0], own[0], expected, case.steps)
    if got[1] is not None and own[1] is not None:
        of_gradient = expected_of(expected_gradient(operation, checker, case), change)
        alike(checker, got[1], own[1], of_gradient, case.steps, of="gradient of ", only=names)


def changed_results(results: Pair, names: tuple[str, ...], change: Change) -> Pair:
    """The outputs, and the gradients of some arguments, that are all changed in the same way."""
    outputs, gradients = results
    kept = None if gradients is None else changed({name: gradients[name] for name in names}, change)
    return changed(outputs, change), kept


def at_steps(x: Array, steps: slice) -> Array:
    return replace(x, values=x.values[:, steps])


def along_steps(*parts: Array) -> Array:
    return replace(parts[0], values=np.concatenate([part.values for part in parts], axis=1))


def changed(arrays: Mapping[str, Array], change: Change) -> Arrays:
    return {name: replace(x, values=change(name, x.values)) for name, x in arrays.items()}


def changed_call(call: Call, change: Change) -> Call:
    return call.changed(lambda name, x: replace(x, values=change(name, x.values)))


def expected_of(expected: Expected, change: Change) -> Expected:
    """The oracle's answer for results that were all changed in the same way."""
    return Expected(
        {name: change(name, x) for name, x in expected.values.items()},
        {name: _changed_slack(partial(change, name), x) for name, x in expected.slack.items()},
    )


def _changed_slack(change: Callable[[np.ndarray], np.ndarray], x: Any) -> Any:
    return x.map(change) if isinstance(x, Staged) else change(x)


def rounding_of(*parts: Array) -> np.ndarray:
    """The rounding of parts that are each rounded to their dtype before they are added, and that may cancel."""
    return np.asarray(sum(ROUNDOFF[part.dtype] * np.abs(part.values) for part in parts))


def nothing_of(cotangents: Mapping[str, Array]) -> Arrays:
    return changed(cotangents, lambda name, x: 0 * x)


def expect_zero(name: str, gradient: np.ndarray, where: str) -> None:
    """Check that a gradient is exactly 0, which rounding cannot change."""
    if gradient.size and not np.abs(gradient).max() == 0:
        raise LawError(f"gradient of {name}", f"is {np.abs(gradient).max():.3g} {where}")
