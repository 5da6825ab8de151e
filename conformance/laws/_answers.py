"""What the oracle answers to a call, and how a target is held to it: what the laws of all operations have in common."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance import oracle
from conformance.budget import Expected
from conformance.cases import PINS, Plan
from conformance.checker import Checker
from conformance.dtypes import FLOATING, Array
from conformance.implementation import Implementation, Results
from conformance.operations import Call, Operation, Strategy

BROADCAST = "broadcast"
"""A layout that changes values: it has a stride of 0, so that all rows are one."""


def expected_value(
    operation: Operation, checker: Checker, case: Any, call: Call | None = None, form: str = ""
) -> Expected:
    """The oracle's outputs for a case.

    Args:
        call: the call, where it is not the case's own.
        form: names what was made of the case's own call, if anything.
    """

    def make() -> Expected:
        own = operation.call_of(case, checker.dtype) if call is None else call
        return operation.value(oracle.values(own.arrays), own.options, checker.precision(own.steps))

    return checker.remember((operation.name, "value", form, operation.representative(case)), make)


def expected_gradient(
    operation: Operation, checker: Checker, case: Any, call: Call | None = None, form: str = ""
) -> Expected:
    """The oracle's gradients for a case; arguments as of `expected_value`."""

    def make() -> Expected:
        own = operation.call_of(case, checker.dtype) if call is None else call
        values, cotangents = oracle.values(own.arrays), oracle.values(own.cotangents)
        return operation.gradient(values, own.options, cotangents, checker.precision(own.steps))

    return checker.remember((operation.name, "gradient", form, operation.representative(case)), make)


def has_gradient(operation: Operation, checker: Checker) -> bool:
    return checker.implementation.no_gradient(operation.name) is None


def expect_value(
    operation: Operation, checker: Checker, case: Any, call: Call, outputs: Results, form: str = ""
) -> None:
    """Hold outputs to the oracle's."""
    expected = expected_value(operation, checker, case, call, form)
    checker.agree(outputs, expected, call.steps, only=tuple(call.cotangents))


def expect_gradient(
    operation: Operation, checker: Checker, case: Any, call: Call, gradients: Results, form: str = ""
) -> None:
    """Hold gradients to the oracle's."""
    expected = expected_gradient(operation, checker, case, call, form)
    checker.agree(gradients, expected, call.steps, of="gradient of ", only=call.primals)


def check_value(operation: Operation, checker: Checker, case: Any) -> None:
    """The law that outputs are those of the definition."""
    call = operation.call_of(case, checker.dtype)
    expect_value(operation, checker, case, call, checker.call(operation.name, call.arrays, call.options))


def check_gradient(operation: Operation, checker: Checker, case: Any) -> None:
    """The law that gradients, and the outputs that come with them, are those of the definition."""
    call = operation.call_of(case, checker.dtype)
    outputs, gradients = checker.vjp(operation.name, call.arrays, call.cotangents, call.options)
    checker.note_kinks(expected_gradient(operation, checker, case))
    expect_value(operation, checker, case, call, outputs)
    expect_gradient(operation, checker, case, call, gradients)


def broadcast(x: Array) -> Array:
    """The array with its first row in place of every row, laid out with a stride of 0."""
    if x.dtype not in FLOATING or not x.values.ndim or not x.values.shape[0]:
        return x
    return replace(x, values=np.repeat(x.values[:1], x.values.shape[0], axis=0), layout=BROADCAST)


def laid_out(call: Call, layout: str) -> Call:
    """The call with all that it is given, cotangents and packings too, in another memory layout."""
    return call.changed(broadcast if layout == BROADCAST else lambda x: replace(x, layout=layout))


def lacking(feature: str, implementation: Implementation) -> str | None:
    """Why a law that needs a feature of the framework does not apply."""
    return implementation.lacks(feature)


def transformed(kind: str, operation: Operation, checker: Checker, call: Call) -> tuple[Results, Results]:
    """Outputs and gradients of a call under a transformation of the framework (`Implementation.transformed`)."""
    options = checker.options(operation.name, call.options)
    function = partial(checker.implementation.transformed, kind)
    return checker.served(function, operation.name, call.arrays, options, call.cotangents)


def of_rows(operation: Operation) -> Strategy:
    """The operation's rows one after the other, a pin each; of a target that compiles per shape, the first alone."""

    def strategy(plan: Plan) -> st.SearchStrategy:
        rows = operation.rows if plan.eager else operation.rows[:1]
        number = PINS[plan.stratum].index(plan.pin) if plan.pin else 0
        return st.just(rows[number]) if number < len(rows) else st.nothing()

    return strategy
