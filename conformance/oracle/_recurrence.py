"""A stated recurrence: values from its step, gradients from the tape, tolerances from both rounded at random."""

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from conformance.base.dtypes import HALF, ROUNDOFF
from conformance.oracle._common import Values, without_warnings
from conformance.oracle._deviations import (
    Compute,
    Results,
    Version,
    Way,
    copied,
    differentiated,
    slack,
    taken_by,
    written,
)
from conformance.oracle._mlstm import rescaled
from conformance.specification import traced
from conformance.specification.changed import Specification
from conformance.specification.complements import complements_apart
from conformance.specification.recurrence import Recurrence
from conformance.specification.rounded import Rounding
from conformance.tolerance.budget import KAPPA, Expected, Precision
from conformance.tolerance.designs import AnyDesign

PRECISE = Precision("float64", 1)


@without_warnings
def value_of(stated: Recurrence, arrays: Values, options: Mapping[str, Any], precision: Precision) -> Expected:
    """Value of a call, dense or packed."""
    arrays, options = copied(arrays), _own(stated, options)

    def compute(specification: Specification, arrays: Mapping[str, Any]) -> dict[str, Any]:
        return stated.called(specification, arrays, options)

    exact, versions = _apart(stated, compute, arrays, precision)
    ways = [written(compute, version, arrays, stated.log_decays) for version in versions]

    def in_units(copies: Values) -> Values:
        scales = stated.log_scales.items()
        return {**copies, **{name: rescaled(copies[name], copies[m], exact[m]) for name, m in scales}}

    return Expected(exact, slack(exact, ways, precision, {}, in_units))


@without_warnings
def gradient_of(
    stated: Recurrence, arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision
) -> Expected:
    """Gradient of a call with respect to every array that it is given."""
    arrays, cotangents, options = copied(arrays), copied(cotangents), _own(stated, options)

    def compute(specification: Specification, arrays: Mapping[str, Any]) -> dict[str, Any]:
        return stated.called(specification, arrays, options)

    _, versions = _apart(stated, compute, arrays, precision)
    taped = [row for name, row in stated.gradient_options.items() if options.get(name) is not None]
    versions = [partial(version, *taped) for version in versions]
    ways = [differentiated(compute, version, arrays, cotangents, stated.log_decays) for version in versions]
    if not stated.written_out:
        with complements_apart() as complements:
            exact = by_tape(stated, stated.right[0](), arrays, options, cotangents)
        ways = [*ways, *map(_with_complements_apart, ways if complements else ())]
        of_shares = _rounding_of_shares(stated, arrays, options, cotangents, precision)
        tolerances = slack(exact, ways, precision, cotangents)
        return Expected(exact, {name: x + of_shares.get(name, 0.0) for name, x in tolerances.items()})

    def backward(specification: Specification, arrays: Mapping[str, Any]) -> dict[str, Any]:
        taken = taken_by(specification.function(stated.backward_name), options)
        return stated.differentiated(specification, arrays, taken, cotangents)

    found, versions = _apart(stated, backward, arrays, precision)
    exact = {name: np.asarray(x) for name, x in found.items() if name in arrays}
    versions = (*versions, *stated.right_backward)
    of_backward = [written(backward, version, arrays, stated.log_decays) for version in versions]
    return Expected(exact, slack(exact, [*of_backward, *ways], precision, cotangents))


def _with_complements_apart(way: Way) -> Way:
    def apart(rounding: Rounding) -> Results:
        with complements_apart():
            return way(rounding)

    return apart


def _apart(stated: Recurrence, compute: Compute, arrays: Values, precision: Precision) -> tuple[Values, list[Version]]:
    """What the first version computes, and the versions that differ from it in a bit; the others are no other way."""
    first, *others = (*stated.right, *(stated.foreign if isinstance(precision, AnyDesign) else ()))
    exact = compute(first(), arrays)

    def differs(version: Version) -> bool:
        found = compute(version(), arrays)
        return any(not np.array_equal(x, exact[name], equal_nan=True) for name, x in found.items())

    return exact, [first, *filter(differs, others)]


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


def _rounding_of_shares(
    stated: Recurrence, arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision
) -> Values:
    """What it adds to the gradient of weights that each packed sequence has its share in 16 bits.

    A loop over the sequences, differentiated by its framework, rounds every share and every sum of shares to the dtype
    of the weight.
    """
    weights = [name for name, given in stated.arguments.items() if given.weight and name in arrays]
    if precision.dtype not in HALF or precision.upcasts or not weights or "cu_seqlens" not in arrays:
        return {}
    shares: dict[str, list[np.ndarray]] = {name: [] for name in weights}
    shapes = {**{name: given.shape for name, given in stated.arguments.items()}, **stated.shapes}
    for b, (start, end) in enumerate(pairwise(arrays["cu_seqlens"].tolist())):

        def part(name: str, x: np.ndarray, b: int = b, steps: slice = slice(start, end)) -> np.ndarray:
            letters = shapes[name].split()
            return x[None, steps] if "S" in letters else x[b : b + 1] if "B" in letters else x

        own = {name: part(name, x) for name, x in arrays.items() if name != "cu_seqlens"}
        of = {name: part(name, d) for name, d in cotangents.items()}
        found = by_tape(stated, stated.right[0](), own, options, of)
        for name in weights:
            shares[name].append(found[name])
    rounding = {}
    for name, each in shares.items():
        parts = np.stack([np.zeros(arrays[name].shape), *each])
        sums = np.cumsum(parts, axis=0)
        size = np.sqrt(np.square(parts).sum(axis=0)) + np.sqrt(np.square(sums).sum(axis=0))
        rounding[name] = KAPPA * ROUNDOFF[precision.dtype] * size
    return rounding


def _own(stated: Recurrence, options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: option for name, option in options.items() if name in stated.options}
