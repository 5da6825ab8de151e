"""Helpers shared by the laws of recurrences: operations over sequences, dense or packed, that carry state."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.base.call import Call
from conformance.base.dtypes import ROUNDOFF, Array
from conformance.laws._answers import expected_gradient, expected_value
from conformance.laws._relations import alike, results_of
from conformance.laws.checker import Checker, LawError
from conformance.operations import Operation
from conformance.tolerance.budget import Expected

Arrays = dict[str, Array]
Change = Callable[[str, np.ndarray], np.ndarray]


def alike_when(operation: Operation, checker: Checker, case: Any, change: Change) -> None:
    """Check that a change of arguments and cotangents changes the target's results in the corresponding way."""
    call = operation.call_of(case, checker.dtype)
    outputs, gradients = results_of(checker, call)
    outputs_of_changed, gradients_of_changed = results_of(checker, changed_call(call, change))
    expected = expected_of(expected_value(operation, checker, case), change)
    alike(checker, outputs_of_changed, changed(outputs, change), expected, case.steps)
    if gradients is not None and gradients_of_changed is not None:
        of_gradient = expected_of(expected_gradient(operation, checker, case), change)
        names = operation.differentiable(call.arrays)
        own = changed({name: gradients[name] for name in names}, change)
        alike(checker, gradients_of_changed, own, of_gradient, case.steps, of="gradient of ", only=names)


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
        {name: change(name, x) for name, x in expected.slack.items()},
    )


def rounding_of(*parts: Array) -> np.ndarray:
    """The rounding of parts that are each rounded to their dtype before they are added, and that may cancel."""
    return np.asarray(sum(ROUNDOFF[part.dtype] * np.abs(part.values) for part in parts))


def nothing_of(cotangents: Mapping[str, Array]) -> Arrays:
    return changed(cotangents, lambda name, x: 0 * x)


def expect_zero(name: str, gradient: np.ndarray, where: str) -> None:
    """Check that a gradient is exactly 0, which rounding cannot change."""
    if gradient.size and not np.abs(gradient).max() == 0:
        raise LawError(f"gradient of {name}", f"is {np.abs(gradient).max():.3g} {where}")
