"""What the laws that all operations share must know of each: how a case is drawn, called and answered."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.budget import Expected, Precision
from conformance.cases import PINS, Plan
from conformance.checker import Checker
from conformance.dtypes import FLOATING, Array
from conformance.implementation import Results
from conformance.laws import Strategy
from conformance.oracle import Values
from conformance.oracle import values as values_of

BROADCAST = "broadcast"
"""A layout that changes values: it has a stride of 0, so that all rows are one."""


@dataclass(frozen=True)
class Call:
    """One call of an operation, and cotangents for its outputs.

    Attributes:
        steps: its longest sequence.
    """

    arrays: dict[str, Array]
    cotangents: dict[str, Array]
    options: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 1

    @property
    def primals(self) -> tuple[str, ...]:
        """The arrays that have a gradient."""
        return tuple(name for name, x in self.arrays.items() if x.dtype in FLOATING)

    def changed(self, change: Callable[[Array], Array]) -> "Call":
        """The call with every array, and every cotangent, changed."""
        arrays, cotangents = ({name: change(x) for name, x in of.items()} for of in (self.arrays, self.cotangents))
        return replace(self, arrays=arrays, cotangents=cotangents)


@dataclass(frozen=True)
class Subject:
    """An operation, as the laws that all operations share see it.

    Attributes:
        op: under whose name the laws stand.
        operation: the public function that is called.
        cases: what is drawn.
        call: makes a call of a case, in a dtype.
        value, gradient: the oracle's answer to the arrays of a call.
        rows: a few small cases, the first of them dense, for laws that are dear.
        stepless: a case without a step but with a state, which must not come back as it went in.
        in_dtype: the outputs that come in the dtype of the values; all others are states.
        extremes: cases with extreme gates, None where there are no gates.
        strata: which sizes all laws see.
    """

    op: str
    operation: str
    cases: Strategy
    call: Callable[[Any, str], Call]
    value: Callable[[Values, Mapping[str, Any], Precision], Expected]
    gradient: Callable[[Values, Mapping[str, Any], Values, Precision], Expected]
    rows: tuple[Any, ...]
    in_dtype: tuple[str, ...]
    extremes: Strategy | None = None
    strata: tuple[str, ...] = ("small", "chunk", "long")
    stepless: tuple[Any, ...] = ()

    def differentiable(self, checker: Checker) -> bool:
        return checker.implementation.no_gradient(self.operation) is None

    def expect_value(self, checker: Checker, case: Any, call: Call, outputs: Results, form: str = "") -> None:
        """Hold outputs to the oracle's; ``form`` names what was made of the case's own arrays, if anything."""

        def make() -> Expected:
            return self.value(values_of(call.arrays), call.options, checker.precision(call.steps))

        expected = checker.remember((self.op, "general value", form, case), make)
        checker.agree(outputs, expected, call.steps, only=tuple(call.cotangents))

    def expect_gradient(self, checker: Checker, case: Any, call: Call, gradients: Results, form: str = "") -> None:
        def make() -> Expected:
            values, cotangents = values_of(call.arrays), values_of(call.cotangents)
            return self.gradient(values, call.options, cotangents, checker.precision(call.steps))

        expected = checker.remember((self.op, "general gradient", form, case), make)
        checker.agree(gradients, expected, call.steps, of="gradient of ", only=call.primals)

    def check(self, checker: Checker, case: Any, call: Call, form: str = "") -> None:
        """Call the target, with and without a gradient, and hold it to the oracle."""
        self.expect_value(checker, case, call, checker.call(self.operation, call.arrays, call.options), form)
        if self.differentiable(checker):
            outputs, gradients = checker.vjp(self.operation, call.arrays, call.cotangents, call.options)
            self.expect_value(checker, case, call, outputs, form)
            self.expect_gradient(checker, case, call, gradients, form)


def broadcast(x: Array) -> Array:
    """The array with its first row in place of every row, laid out with a stride of 0."""
    if x.dtype not in FLOATING or not x.values.ndim or not x.values.shape[0]:
        return x
    return replace(x, values=np.repeat(x.values[:1], x.values.shape[0], axis=0), layout=BROADCAST)


def laid_out(call: Call, layout: str) -> Call:
    """The call with all that it is given, cotangents and packings too, in another memory layout."""
    return call.changed(broadcast if layout == BROADCAST else lambda x: replace(x, layout=layout))


def of_rows(subject: Subject) -> Strategy:
    """The subject's rows one after the other, a pin each; of a target that compiles per shape, the first alone."""

    def strategy(plan: Plan) -> st.SearchStrategy:
        rows = subject.rows if plan.eager else subject.rows[:1]
        number = PINS[plan.stratum].index(plan.pin) if plan.pin else 0
        return st.just(rows[number]) if number < len(rows) else st.nothing()

    return strategy
