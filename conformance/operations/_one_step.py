"""One step of a recurrence. The record of whole sequences describes it; its cases are sequences of one step."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from conformance.base.dtypes import Array
from conformance.operations._operation import Operation
from conformance.operations._record import Argument, Options, Output
from conformance.oracle import Values
from conformance.tolerance.budget import Expected, Precision


@dataclass(frozen=True)
class OneStep:
    """A step of an operation, whose arrays lack the step axis.

    Attributes:
        sequence: the record of whole sequences.
    """

    sequence: Operation

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """Those of a step, which needs a state and is never packed."""
        given = (argument for argument in self.sequence.arguments if argument.role != "index")
        return tuple(_stepless(argument, optional=False) for argument in given)

    @property
    def outputs(self) -> tuple[Output, ...]:
        return tuple(map(_stepless, self.sequence.outputs))

    def at(self, arrays: Mapping[str, Array], t: int) -> dict[str, Array]:
        """The arrays, or cotangents, of step ``t`` of a sequence."""
        stepped = self.sequence.stepped
        return {name: replace(x, values=x.values[:, t]) if stepped(name) else x for name, x in arrays.items()}

    def value(self, arrays: Values, options: Options, precision: Precision) -> Expected:
        """The oracle's outputs."""
        return self._without_steps(self.sequence.value(self._as_sequence(arrays), options, precision))

    def gradient(self, arrays: Values, options: Options, cotangents: Values, precision: Precision) -> Expected:
        """The oracle's gradients."""
        given = self._as_sequence(arrays), options, self._as_sequence(cotangents), precision
        return self._without_steps(self.sequence.gradient(*given))

    def _as_sequence(self, values: Values) -> Values:
        return {name: x[:, None] if self.sequence.stepped(name) else x for name, x in values.items()}

    def _without_steps(self, expected: Expected) -> Expected:
        values, slack = (
            {name: x[:, 0] if self.sequence.stepped(name) else x for name, x in of.items()}
            for of in (expected.values, expected.slack)
        )
        return replace(expected, values=values, slack=slack)


def _stepless(array: Any, **changes: Any) -> Any:
    return replace(array, shape=array.shape.replace("S ", ""), **changes)
