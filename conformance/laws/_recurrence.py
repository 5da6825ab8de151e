"""What the laws of recurrences have in common: operations over sequences, dense or packed, that carry state."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.budget import Expected
from conformance.checker import Checker, LawError
from conformance.dtypes import ROUNDOFF, Array
from conformance.laws._answers import expected_gradient, expected_value, has_gradient
from conformance.operations import Operation

Arrays = dict[str, Array]
Change = Callable[[str, np.ndarray], np.ndarray]


def agree_when(operation: Operation, checker: Checker, case: Any, change: Change) -> None:
    """Of changed arguments and cotangents, results and gradients are the oracle's of the case, changed alike."""
    arrays, options = changed(case.arrays(checker.dtype), change), case.options()
    expected = expected_of(expected_value(operation, checker, case), change)
    if not has_gradient(operation, checker):
        checker.agree(checker.call(operation.name, arrays, options), expected, case.steps)
        return
    cotangents = changed(case.cotangent_arrays(checker.dtype), change)
    outputs, gradients = checker.vjp(operation.name, arrays, cotangents, options)
    checker.agree(outputs, expected, case.steps)
    of_gradient = expected_of(expected_gradient(operation, checker, case), change)
    names = operation.differentiable(arrays)
    checker.agree(gradients, of_gradient, case.steps, of="gradient of ", only=names)


def at_steps(x: Array, steps: slice) -> Array:
    return replace(x, values=x.values[:, steps])


def along_steps(*parts: Array) -> Array:
    return replace(parts[0], values=np.concatenate([part.values for part in parts], axis=1))


def changed(arrays: Mapping[str, Array], change: Change) -> Arrays:
    return {name: replace(x, values=change(name, x.values)) for name, x in arrays.items()}


def expected_of(expected: Expected, change: Change) -> Expected:
    """What the oracle says of results that were all changed alike."""
    return Expected(
        {name: change(name, x) for name, x in expected.values.items()},
        {name: change(name, x) for name, x in expected.slack.items()},
    )


def rounding_of(*parts: Array) -> np.ndarray:
    """Each part was rounded to its dtype before they are added, and they may cancel."""
    return np.asarray(sum(ROUNDOFF[part.dtype] * np.abs(part.values) for part in parts))


def nothing_of(cotangents: Mapping[str, Array]) -> Arrays:
    return changed(cotangents, lambda name, x: 0 * x)


def expect_zero(name: str, gradient: np.ndarray, where: str) -> None:
    """A gradient that is exactly 0, whatever is rounded."""
    if gradient.size and not np.abs(gradient).max() == 0:
        raise LawError(f"gradient of {name}", f"is {np.abs(gradient).max():.3g} {where}")
