"""One step of a recurrence. The record of whole sequences describes it; its cases are sequences of one step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from conformance.base.call import Call
from conformance.base.dtypes import Array
from conformance.operations._operation import Operation
from conformance.operations._record import BACKEND, Argument, Option, Options, Output
from conformance.oracle import Values
from conformance.tolerance.budget import Expected, Precision


@dataclass(frozen=True)
class OneStep:
    """A step of an operation, whose arrays lack the step axis.

    Attributes:
        sequence: the record of whole sequences.
        options: those of a step besides the kernel backend.
        with_state: the arrays of a case in a dtype, with an initial state where the case has none.
        names: what a step calls the states that it takes, by the argument of whole sequences; only where that differs.
    """

    sequence: Operation
    options: tuple[Option, ...]
    with_state: Callable[[Any, str], dict[str, Array]]
    names: Mapping[str, str] = field(default_factory=dict)

    def record(self, **fields: Any) -> Operation:
        """The record of a step, given the fields that do not follow from that of whole sequences."""
        whole, state = self.sequence, self.sequence.state
        return Operation(
            **{
                "name": f"{whole.name}_step",
                "about": f"{whole.name}_step",
                "helpers": () if state is None else (state.type.__name__,),
                "stated": whole.stated,
                "one_step": self,
                "arguments": self.arguments,
                "outputs": self.outputs,
                "returns": whole.returns,
                "options": (*self.options, BACKEND),
                "state": None if state is None else replace(state, name="state", passed="position"),
                "make_call": self.make_call,
                "value": self.value,
                "gradient": self.gradient,
                "immaterial": whole.immaterial,
                "never_0": whole.never_0,
                "strata": ("small",),
                **fields,
            }
        )

    def options_of(self, case: Any) -> Options:
        """The options of each step of a case."""
        taken = {option.name for option in self.options}
        return {name: given for name, given in case.options().items() if name in taken}

    def make_call(self, operation: str, case: Any, dtype: str) -> Call:
        """The first step of a case."""
        return Call(
            operation=operation,
            arrays=self.at(self.with_state(case, dtype), 0),
            options=self.options_of(case),
            cotangents=self.at(case.cotangent_arrays(dtype), 0),
        )

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """Those of a step, which needs a state and is never packed."""
        given = (argument for argument in self.sequence.arguments if argument.role != "index")
        return tuple(
            _stepless(
                argument,
                name=self.names.get(argument.name, argument.name),
                passed="position" if argument.passed == "keyword" else argument.passed,
                optional=False,
            )
            for argument in given
        )

    @property
    def outputs(self) -> tuple[Output, ...]:
        return tuple(map(_stepless, self.sequence.outputs))

    def at(self, arrays: Mapping[str, Array], t: int) -> dict[str, Array]:
        """The arrays, or cotangents, of step ``t`` of a sequence."""
        stepped = self.sequence.stepped
        at_t = {name: replace(x, values=x.values[:, t]) if stepped(name) else x for name, x in arrays.items()}
        return {self.names.get(name, name): x for name, x in at_t.items()}

    def value(self, arrays: Values, options: Options, precision: Precision) -> Expected:
        """The oracle's outputs."""
        return self._without_steps(self.sequence.value(self._as_sequence(arrays, self._whole), options, precision))

    def gradient(self, arrays: Values, options: Options, cotangents: Values, precision: Precision) -> Expected:
        """The oracle's gradients."""
        given = self._as_sequence(arrays, self._whole), options, self._as_sequence(cotangents, {}), precision
        return self._without_steps(self.sequence.gradient(*given), self.names)

    @property
    def _whole(self) -> Mapping[str, str]:
        """What whole sequences call the states that a step takes."""
        return {own: name for name, own in self.names.items()}

    def _as_sequence(self, values: Values, names: Mapping[str, str]) -> Values:
        named = {names.get(name, name): x for name, x in values.items()}
        return {name: x[:, None] if self.sequence.stepped(name) else x for name, x in named.items()}

    def _without_steps(self, expected: Expected, names: Mapping[str, str] | None = None) -> Expected:
        values, slack = (
            {(names or {}).get(name, name): x[:, 0] if self.sequence.stepped(name) else x for name, x in of.items()}
            for of in (expected.values, expected.slack)
        )
        return replace(expected, values=values, slack=slack)


def _stepless(array: Any, **changes: Any) -> Any:
    return replace(array, shape=array.shape.replace("S ", ""), **changes)
