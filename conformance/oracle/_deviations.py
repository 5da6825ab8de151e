"""The tolerance of every element, from computations in which every operation was rounded at random."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from conformance.oracle._common import Values, without_warnings
from conformance.specification import traced
from conformance.specification.changed import Specification, using
from conformance.specification.rounded import Copies, Rounding
from conformance.tolerance.budget import OMEGA, Precision
from conformance.tolerance.staged import Staged

COPIES = {32: 6.5, 16: 10.0}
"""Numbers of copies, and how many times the root of the mean square of their deviations an element may be off by.

The fewer there are, the less is known of the spread: of 16 it is estimated at less than half of what it is for one
element in 20,000, of 32 at less than 0.56 of it. With 6 and 9 times, `make calibration` refused one gradient by 2 %, in
float64, of an mLSTM of 1,031 steps whose gates are alike: sums of equal terms do not round at random.
"""
MOST_NUMBERS = 1 << 20
"""With more numbers than this in all copies of an array, there are 16."""
PERTURBATION = 2.0**-36
"""A roundoff in the copies of a float64 computation, which are themselves computed in float64.

Their deviations are proportional to it, and are scaled to a roundoff of float64.
"""

Version = Callable[[], Specification]
Compute = Callable[[Specification, Mapping[str, Any]], dict[str, Any]]
Results = Mapping[str, np.ndarray | Copies]
InParts = Callable[[Callable[[Any, Any], Results], Callable[[Any], Results], Mapping, Mapping], Results]
Way = Callable[[Rounding], Results]
"""Computes the same values in one of the ways that are right, each operation rounded."""


def written(compute: Compute, version: Version, arrays: Values, summands: Sequence[str] = ()) -> Way:
    """As a version of the specification computes them.

    Args:
        summands: the arrays whose elements right computations add up before they use them.
    """

    def way(rounding: Rounding) -> Results:
        specification = version()
        given = {name: rounding.summand(x) if name in summands else x for name, x in arrays.items()}
        with using(specification.modules, rounding.numpy):
            return compute(specification, given)

    return way


def differentiated(
    compute: Compute,
    version: Version,
    arrays: Values,
    cotangents: Values,
    summands: Sequence[str] = (),
    in_parts: InParts = lambda gradient, value, arrays, cotangents: gradient(arrays, cotangents),
) -> Way:
    """The gradient of what a version of the specification computes, by the tape; other arguments are as in `written`.

    Args:
        in_parts: ``(gradient, value, arrays, cotangents) → gradient``, which puts the gradient of a large call together
            from those of parts.
    """

    def way(rounding: Rounding) -> Results:
        specification = version()

        def gradient(arrays: Mapping[str, Any], cotangents: Mapping[str, Any]) -> Results:
            given: dict[str, Any] = {}
            for name, x in arrays.items():
                made = rounding.summand if name in summands else rounding.copies_of
                given[name] = traced.made(made(x)) if x.dtype.kind == "f" else x
            with traced.tracing(specification.modules, rounding.numpy):
                results = compute(specification, given)
            return traced.gradients(results, {name: rounding.copies_of(x) for name, x in cotangents.items()}, given)

        def value(arrays: Mapping[str, Any]) -> Results:
            with using(specification.modules, rounding.numpy):
                return compute(specification, arrays)

        return in_parts(gradient, value, arrays, cotangents)

    return way


def slack(
    exact: Values,
    ways: Sequence[Way],
    precision: Precision,
    cotangents: Values,
    in_units: Callable[[Values], Values] = lambda copies: copies,
) -> dict[str, Any]:
    """The error that each element may have before its last rounding, as far as it is needed (`Staged`).

    It is a few times (`COPIES`) the root of the mean square of the deviations of the copies of one way, or their
    largest; of several ways, the largest. What must be exactly 0 has none.

    Args:
        exact: the correct values.
        ways: the ways to compute them that are right, the usual one first.
        precision: of the computation that is judged.
        cotangents: of a gradient. What is flushed to 0 is multiplied by them, so that an element with an error may be
            off by the least normal number in units of the largest of them.
        in_units: changes the units of the copies, ``(copies, *shape)``, to those of the correct values.
    """
    finite = (np.where(np.isfinite(x), np.abs(x), 0.0) for x in cotangents.values())
    least = precision.least * max([1.0, *(float(x.max(initial=0.0)) for x in finite)])

    @cache
    def of_way(number: int) -> Values:
        return _deviations(exact, ways[number], precision, number, in_units)

    def stages(name: str) -> Iterator[np.ndarray]:
        found = np.zeros(exact[name].shape)
        yield found
        for number in range(len(ways)):
            found = np.maximum(found, of_way(number)[name])
            yield np.where(found > 0, found + least, found)

    return {name: Staged(partial(stages, name)) for name in exact}


@without_warnings
def _deviations(
    exact: Values, way: Way, precision: Precision, seed: int, in_units: Callable[[Values], Values]
) -> Values:
    """The error of each element in one way."""
    unit = max(precision.roundoff, PERTURBATION)
    operand = (precision.cancellation - precision.drift) / OMEGA
    count = max(COPIES) if max(COPIES) * max(x.size for x in exact.values()) <= MOST_NUMBERS else min(COPIES)
    # Deviations that are proportional to a roundoff are scaled; a number that is flushed is not.
    smallest = precision.smallest if unit == precision.roundoff else 0.0
    results = way(Rounding(count, unit, operand if operand > precision.roundoff else 0.0, smallest, seed))
    copies = in_units({name: x.data if isinstance(x, Copies) else x[None] for name, x in results.items()})
    found = {}
    for name, x in exact.items():
        change = np.abs(copies[name] - x)
        change = np.where(np.isfinite(change), change, 0.0)
        largest = change.max(axis=0, initial=0.0)
        # In units of the largest, because squares could leave the range of float64.
        rms = np.sqrt(np.square(change / np.where(largest > 0, largest, 1.0)).mean(axis=0))
        found[name] = np.maximum(COPIES[count] * rms, 1.0) * largest * (precision.roundoff / unit)
    return found


def taken_by(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a call that a function has a parameter for."""
    taken = inspect.signature(function).parameters
    every = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values())
    return {name: option for name, option in options.items() if every or name in taken}


def copied(arrays: Values) -> Values:
    """Copies of a call's arrays, which a target may change before a tolerance is computed."""
    return {name: x.copy() for name, x in arrays.items()}
