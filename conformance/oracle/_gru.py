"""The GRU, with tolerances from the specification in which every operation is rounded at random."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

import reference
from conformance.oracle._common import Values, without_warnings
from conformance.oracle._deviations import Compute, copied, options_of, slack, written
from conformance.rows import correct
from conformance.specification.changed import Specification, changed
from conformance.tolerance.budget import Expected, Precision

EXACT = Specification(reference, {})
SPELLINGS = (changed, *(partial(changed, row) for row in correct.ROWS if row.op == "gru"))


@without_warnings
def gru(arrays: Values, options: Mapping[str, Any], precision: Precision) -> Expected:
    """Value of `gru`, dense or packed."""
    options = options_of(reference.gru, options)

    def compute(specification: Specification, arrays: Mapping[str, Any]) -> dict[str, Any]:
        return dict(zip(("y", "state"), specification.function("gru")(**arrays, **options), strict=True))

    return _expected(compute, copied(arrays), precision, {})


@without_warnings
def gru_gradient(arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    """Gradient of `gru`. The results include ``input_state`` whether or not one was given."""
    arrays, cotangents = {"input_state": np.zeros(cotangents["state"].shape), **copied(arrays)}, copied(cotangents)
    more = options_of(reference.gru_backward, options) | {f"d{name}": d for name, d in cotangents.items()}

    def compute(specification: Specification, arrays: Mapping[str, Any]) -> dict[str, Any]:
        return specification.function("gru_backward")(**arrays, **more)

    return _expected(compute, arrays, precision, cotangents)


def _expected(compute: Compute, arrays: Values, precision: Precision, cotangents: Values) -> Expected:
    exact = compute(EXACT, arrays)
    ways = [written(compute, version, arrays) for version in SPELLINGS]
    return Expected(exact, slack(exact, ways, precision, cotangents))
