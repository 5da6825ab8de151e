"""What the laws of every recurrence must know of one: which arrays have steps, which carry state, which are shared."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.budget import Expected
from conformance.checker import Checker, LawError
from conformance.dtypes import ROUNDOFF, Array
from conformance.implementation import Results
from conformance.oracle import Values

Arrays = dict[str, Array]
Change = Callable[[str, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Recurrence:
    """An operation over whole sequences, dense ``(B, S, N, ·)`` or packed ``(T, N, ·)``.

    Attributes:
        op: the public function.
        sequences: the arguments that have a step axis.
        output: the output that has one; its cotangent goes by the same name.
        states: each final state, and the argument by which a later call continues from it.
        weights: the arguments that all sequences share.
        value, gradient: the oracle's answer to a case.
        oracle_value: the oracle's answer to dense arrays.
        oracle_gradient: likewise, to dense or packed ones.
        cut: what the gradient of a cut sequence may be off by beside the uncut one's budget.
    """

    op: str
    sequences: tuple[str, ...]
    output: str
    states: Mapping[str, str]
    weights: tuple[str, ...]
    value: Callable[[Checker, Any], Expected]
    gradient: Callable[[Checker, Any], Expected]
    oracle_value: Callable[..., Expected]
    oracle_gradient: Callable[..., Expected]
    cut: Callable[[Expected, Arrays], Values]

    def differentiable(self, case: Any) -> tuple[str, ...]:
        """The arguments of a case that have a gradient."""
        states = tuple(self.states.values()) if case.arrays("float64").keys() & set(self.states.values()) else ()
        return (*self.sequences, *self.weights, *states)

    def has_gradient(self, checker: Checker) -> bool:
        return checker.implementation.no_gradient(self.op) is None

    def carried(self, outputs: Results) -> Arrays:
        """The final state as the arguments of a call that continues."""
        return {argument: outputs[name] for name, argument in self.states.items()}

    def part(self, arrays: Arrays, steps: slice) -> Arrays:
        """Dense arrays at ``steps``; weights as they are, states left out."""
        return {
            name: at_steps(x, steps) if name in (*self.sequences, self.output) else x
            for name, x in arrays.items()
            if name not in self.states.values()
        }

    def kept(self, arrays: Arrays) -> Arrays:
        """The initial state among the arrays."""
        return {name: x for name, x in arrays.items() if name in self.states.values()}

    def stepped(self, name: str) -> bool:
        return name == self.output or name in self.sequences

    def agree_when(self, checker: Checker, case: Any, change: Change) -> None:
        """Of changed arguments and cotangents, results and gradients are the oracle's of the case, changed alike."""
        arrays, options = changed(case.arrays(checker.dtype), change), case.options()
        expected = expected_of(self.value(checker, case), change)
        if not self.has_gradient(checker):
            checker.agree(checker.call(self.op, arrays, options), expected, case.steps)
            return
        cotangents = changed(case.cotangent_arrays(checker.dtype), change)
        outputs, gradients = checker.vjp(self.op, arrays, cotangents, options)
        checker.agree(outputs, expected, case.steps)
        of_gradient = expected_of(self.gradient(checker, case), change)
        checker.agree(gradients, of_gradient, case.steps, of="gradient of ", only=self.differentiable(case))


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
