"""The law that no NaN is lost, of every operation.

A NaN that is lost is a number that looks right. Programs that skip a step of training if a gradient is NaN, as
PyTorch's `GradScaler` does, rely on it. On GPUs `fmax` and `fmin`, and what is compiled to them, return the other
number.
"""

from typing import Any

import numpy as np

from conformance import oracle
from conformance.base.call import Call
from conformance.base.dtypes import FLOATING
from conformance.laws import SHORT, SINGLE, law
from conformance.laws._answers import has_gradient
from conformance.laws._relations import changed_call, results_of
from conformance.laws.checker import Checker
from conformance.operations import Operation


def register(operation: Operation) -> None:
    """Register the law for one operation."""

    @law(
        operation,
        "behaviour",
        cases=operation.all_cases,
        strata=SHORT,
        dtypes=("float32", "float16"),
        compiled_dtypes=SINGLE,
        share=0.25,
    )
    def nan(checker: Checker, case: Any) -> None:
        """No NaN is lost: what depends on an element of an argument or of a cotangent is NaN where that element is.

        x[j] = NaN and {op}(x)[i] depends on x[j] ⇒ {op}(x)[i] = NaN
        """
        call, rng = operation.call_of(case, checker.dtype), np.random.default_rng(case.seed)
        with_gradient = has_gradient(operation, checker)
        own = _exact(operation, checker, call, with_gradient)
        for name, x in {**call.arrays, **(call.cotangents if with_gradient else {})}.items():
            places = np.flatnonzero(np.isfinite(x.values)) if x.dtype in FLOATING else ()
            if len(places):
                _spoil(operation, checker, call, own, name, int(rng.choice(places)))


Answers = tuple[oracle.Values, oracle.Values]


def _spoil(operation: Operation, checker: Checker, call: Call, own: Answers, name: str, at: int) -> None:
    """Expect NaN of all that depends on one element of an array when it is NaN."""
    given = {**call.arrays, **call.cotangents}[name].values
    x, place = given.flat[at], [int(index) for index in np.unravel_index(at, given.shape)]
    note = f", with NaN in {name if name in call.arrays else f'the cotangent of {name}'} at {place}"
    others = [
        _exact(operation, checker, _with_element(call, name, at, value), bool(own[1])) for value in (x + 1, x - 1)
    ]
    with np.errstate(invalid="ignore"):
        spoilt = results_of(checker, _with_element(call, name, at, np.nan))
    for number, (results, of) in enumerate(zip(spoilt, ("", "gradient of "), strict=True)):
        for result, got in (results or {}).items():
            if result in own[number]:
                depends = _differs(own[number][result], *(other[number][result] for other in others))
                expected = np.where(depends, np.nan, got.values)
                checker.close(f"{of}{result}", got, expected, np.zeros(expected.shape), call.steps, note=note)


def _with_element(call: Call, of: str, at: int, value: float) -> Call:
    """The call with one element of an array changed."""

    def changed(name: str, x: np.ndarray) -> np.ndarray:
        if name == of:
            x = x.copy()
            x.flat[at] = value
        return x

    return changed_call(call, changed)


def _exact(operation: Operation, checker: Checker, call: Call, with_gradient: bool) -> Answers:
    """The oracle's outputs for a call, and its gradients."""
    arrays, cotangents = oracle.values(call.arrays), oracle.values(call.cotangents)
    precision = checker.precision(call.steps)
    outputs = operation.value(arrays, call.options, precision).values
    return outputs, operation.gradient(arrays, call.options, cotangents, precision).values if with_gradient else {}


def _differs(own: np.ndarray, *others: np.ndarray) -> np.ndarray:
    """Where one of the others is another number, by more than a thousandth."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = [np.abs(other - own) > 1e-3 * np.maximum(np.abs(own), np.abs(other)) + 1e-20 for other in others]
    return np.logical_or.reduce(apart)
