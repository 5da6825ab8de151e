"""A stated recurrence: values from its step, gradients from the tape, tolerances from both rounded at random."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.oracle._common import Values, without_warnings
from conformance.oracle._deviations import copied, differentiated, options_of, slack, written
from conformance.specification import traced
from conformance.specification.changed import Specification
from conformance.specification.recurrence import Recurrence
from conformance.tolerance.budget import Expected, Precision

PRECISE = Precision("float64", 1)


@without_warnings
def value_of(stated: Recurrence, arrays: Values, options: Mapping[str, Any], precision: Precision) -> Expected:
    """Value of a call, dense or packed."""
    arrays, options = copied(arrays), _own(stated, options)

    def compute(specification: Specification, arrays: Mapping[str, Any]) -> dict[str, Any]:
        return stated.called(specification, arrays, options)

    exact = compute(stated.right[0](), arrays)
    ways = [written(compute, version, arrays, stated.log_decays) for version in stated.right]
    return Expected(exact, slack(exact, ways, precision, {}))


@without_warnings
def gradient_of(
    stated: Recurrence, arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision
) -> Expected:
    """Gradient of a call with respect to every array that it is given."""
    arrays, cotangents, options = copied(arrays), copied(cotangents), _own(stated, options)

    def compute(specification: Specification, arrays: Mapping[str, Any]) -> dict[str, Any]:
        return stated.called(specification, arrays, options)

    ways = [differentiated(compute, version, arrays, cotangents, stated.log_decays) for version in stated.right]
    if not stated.written_out:
        exact = by_tape(stated, stated.right[0](), arrays, options, cotangents)
        return Expected(exact, slack(exact, ways, precision, cotangents))

    def backward(specification: Specification, arrays: Mapping[str, Any]) -> dict[str, Any]:
        function = specification.function(stated.backward_name)
        given = {**arrays, **{f"d{name}": x for name, x in cotangents.items()}}
        return dict(function(**given, **options_of(function, options)))

    of_backward = [written(backward, version, arrays, stated.log_decays) for version in stated.right]
    exact = {name: np.asarray(x) for name, x in backward(stated.right[0](), arrays).items() if name in arrays}
    return Expected(exact, slack(exact, [*of_backward, *ways], precision, cotangents))


def by_tape(
    stated: Recurrence,
    version: Specification,
    arrays: Mapping[str, np.ndarray],
    options: Mapping[str, Any],
    cotangents: Mapping[str, np.ndarray],
) -> Values:
    """The gradient of what one version computes."""
    given = {name: traced.made(x.copy()) if x.dtype.kind == "f" else x for name, x in arrays.items()}
    with traced.tracing(version.modules):
        results = stated.called(version, given, _own(stated, options))
    return traced.gradients(results, cotangents, given)


def _own(stated: Recurrence, options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: option for name, option in options.items() if name in stated.options}
