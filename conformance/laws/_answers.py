"""The oracle's answer to a call, and a target's comparison with it, as needed by the laws of all operations."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance import oracle
from conformance.base.call import Call
from conformance.base.dtypes import FLOATING, Array
from conformance.cases import PINS, Limits
from conformance.frameworks.implementation import Implementation, Results
from conformance.laws.checker import Checker
from conformance.operations import Operation, Strategy
from conformance.tolerance.budget import Expected

BROADCAST = "broadcast"
"""A layout that changes values: it has a stride of 0, so that all rows are the same."""


def expected_value(
    operation: Operation, checker: Checker, case: Any, call: Call | None = None, form: str = ""
) -> Expected:
    """The oracle's outputs for a case.

    Args:
        call: the call, if it is not the case's own.
        form: the name of the form in which the case's own call is made, if it is another one.
    """
    return _answer("value", operation, checker, case, call, form)


def expected_gradient(
    operation: Operation, checker: Checker, case: Any, call: Call | None = None, form: str = ""
) -> Expected:
    """The oracle's gradients for a case; arguments are those of `expected_value`."""
    return _answer("gradient", operation, checker, case, call, form)


def _answer(kind: str, operation: Operation, checker: Checker, case: Any, call: Call | None, form: str) -> Expected:
    def make() -> Expected:
        own = operation.call_of(case, checker.dtype) if call is None else call
        values, precision = oracle.values(own.arrays), checker.precision(own.steps)
        if kind == "value":
            return operation.value(values, own.options, precision)
        return operation.gradient(values, own.options, oracle.values(own.cotangents), precision)

    return checker.remember((operation.name, kind, form, operation.representative(case)), make)


def has_gradient(operation: Operation, checker: Checker) -> bool:
    return checker.implementation.no_gradient(operation.name) is None


def expect_value(
    operation: Operation, checker: Checker, case: Any, call: Call, outputs: Results, form: str = ""
) -> None:
    """Compare outputs with the oracle's."""
    expected = expected_value(operation, checker, case, call, form)
    checker.agree(outputs, expected, call.steps, only=tuple(call.cotangents))


def expect_gradient(
    operation: Operation, checker: Checker, case: Any, call: Call, gradients: Results, form: str = ""
) -> None:
    """Compare gradients with the oracle's."""
    expected = expected_gradient(operation, checker, case, call, form)
    checker.agree(gradients, expected, call.steps, of="gradient of ", only=call.primals)


def check_value(operation: Operation, checker: Checker, case: Any) -> None:
    """The law that outputs are those of the definition."""
    call = operation.call_of(case, checker.dtype)
    expect_value(operation, checker, case, call, checker.call(call))


def check_gradient(operation: Operation, checker: Checker, case: Any) -> tuple[Results, Results]:
    """The law that gradients, and the outputs that come with them, are those of the definition; returns both."""
    call = operation.call_of(case, checker.dtype)
    outputs, gradients = checker.vjp(call)
    checker.note_kinks(expected_gradient(operation, checker, case))
    expect_value(operation, checker, case, call, outputs)
    expect_gradient(operation, checker, case, call, gradients)
    return outputs, gradients


def check_results(operation: Operation, checker: Checker, case: Any) -> None:
    """The law that outputs are those of the definition, and gradients too where the target has them."""
    (check_gradient if has_gradient(operation, checker) else check_value)(operation, checker, case)


def check_gradient_alone(operation: Operation, checker: Checker, case: Any) -> None:
    """The law that gradients are those of the definition, whatever the outputs are."""
    _, gradients = checker.vjp(operation.call_of(case, checker.dtype))
    checker.agree(gradients, expected_gradient(operation, checker, case), case.steps, of="gradient of ")


def broadcast(x: Array) -> Array:
    """The array with every row replaced by the first one, laid out with a stride of 0."""
    if x.dtype not in FLOATING or not x.values.ndim or not x.values.shape[0]:
        return x
    return replace(x, values=np.repeat(x.values[:1], x.values.shape[0], axis=0), layout=BROADCAST)


def laid_out(call: Call, layout: str) -> Call:
    """The call with all its arrays, including cotangents and packings, in another memory layout."""
    return call.changed(lambda name, x: broadcast(x) if layout == BROADCAST else replace(x, layout=layout))


def lacking(feature: str, implementation: Implementation) -> str | None:
    """The reason why a law that needs a feature of the framework does not apply."""
    return implementation.lacks(feature)


def transformed(kind: str, checker: Checker, call: Call) -> tuple[Results, Results]:
    """Outputs and gradients of a call under a transformation of the framework (`Implementation.transformed`)."""
    return checker.served(partial(checker.implementation.transformed, kind), checker.on_backend(call))


def of_rows(operation: Operation) -> Strategy:
    """The operation's rows one after the other, one per pin; only the first for a target that compiles per shape."""

    def strategy(limits: Limits) -> st.SearchStrategy:
        rows = operation.rows if limits.eager else operation.rows[:1]
        number = PINS[limits.stratum].index(limits.pin) if limits.pin else 0
        return st.just(rows[number]) if number < len(rows) else st.nothing()

    return strategy
