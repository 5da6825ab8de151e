"""The law that no NaN is lost, of every operation.

A NaN that is lost is a number that looks right. Programs that skip a step of training if a gradient is NaN, as
PyTorch's `GradScaler` does, rely on it. On GPUs `fmax` and `fmin`, and what is compiled to them, return the other
number.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from conformance import oracle
from conformance.base.call import Call
from conformance.base.dtypes import FLOATING
from conformance.laws import SHORT, SINGLE, law
from conformance.laws._answers import has_gradient
from conformance.laws._relations import results_of
from conformance.laws.checker import Checker
from conformance.operations import Operation


def register(operation: Operation) -> None:
    """Register the law for one operation."""

    @law(
        operation,
        "behaviour",
        cases=operation.all_cases,
        strata=SHORT,
        usual=1 if operation.usual else 0,
        dtypes=("float32", "float16"),
        compiled_dtypes=SINGLE,
        share=0.25,
    )
    def nan(checker: Checker, case: Any) -> None:
        """No NaN is lost: what depends on an element of an argument or of a cotangent is NaN where that element is.

        x[j] = NaN and {op}(x)[i] depends on x[j] ⇒ {op}(x)[i] = NaN
        """
        call, rng = operation.call_of(case, checker.dtype), np.random.default_rng(case.seed)
        own = _exact(operation, checker, call)
        for field in ("arrays", "cotangents") if has_gradient(operation, checker) else ("arrays",):
            for name, x in getattr(call, field).items():
                places = np.flatnonzero(np.isfinite(x.values)) if x.dtype in FLOATING else ()
                if len(places):
                    _spoil(operation, checker, call, own, field, name, int(rng.choice(places)))


Answers = tuple[oracle.Values, oracle.Values]


def _spoil(operation: Operation, checker: Checker, call: Call, own: Answers, field: str, name: str, at: int) -> None:
    """Expect NaN of all that depends on one element when it is NaN.

    Args:
        own: the oracle's answers to the call.
        field: of the call, ``arrays`` or ``cotangents``.
        name, at: the array in it, and the element's place in the flat array.
    """
    x = getattr(call, field)[name]

    def with_element(value: float) -> Call:
        values = x.values.copy()
        values.flat[at] = value
        return replace(call, **{field: {**getattr(call, field), name: replace(x, values=values)}})

    element = float(x.values.flat[at])
    step = max(1.0, abs(element))
    others = [_exact(operation, checker, with_element(value)) for value in (element + step, element - step)]
    with np.errstate(invalid="ignore"):
        spoilt = results_of(checker, with_element(np.nan))
    place = [int(index) for index in np.unravel_index(at, x.values.shape)]
    note = f", with NaN in {'' if field == 'arrays' else 'the cotangent of '}{name} at {place}"
    for number, (results, of) in enumerate(zip(spoilt, ("", "gradient of "), strict=True)):
        for result, got in (results or {}).items():
            if result in own[number]:
                depends = _differs(own[number][result], *(other[number][result] for other in others))
                expected = np.where(depends, np.nan, got.values)
                checker.close(f"{of}{result}", got, expected, np.zeros(expected.shape), call.steps, note=note)


def _exact(operation: Operation, checker: Checker, call: Call) -> Answers:
    """The oracle's outputs for a call, and its gradients if the target has any."""
    arrays, cotangents = oracle.values(call.arrays), oracle.values(call.cotangents)
    precision = checker.precision(call.steps)
    outputs = operation.value(arrays, call.options, precision).values
    if not has_gradient(operation, checker):
        return outputs, {}
    return outputs, operation.gradient(arrays, call.options, cotangents, precision).values


def _differs(own: np.ndarray, *others: np.ndarray) -> np.ndarray:
    """Where one of the others is another number, by more than a thousandth."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = [np.abs(other - own) > 1e-3 * np.maximum(np.abs(own), np.abs(other)) + 1e-20 for other in others]
    return np.logical_or.reduce(apart)
