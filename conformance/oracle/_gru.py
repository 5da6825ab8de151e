"""The GRU, with tolerances from the specification in which every operation is rounded at random."""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

import reference
from conformance.oracle._common import Values, without_warnings
from conformance.oracle._deviations import copied, options_of, slack, written
from conformance.rows import correct
from conformance.tolerance.budget import Expected, Precision

SPELLINGS = ((), *((row,) for row in correct.ROWS if row.op == "gru"))


@without_warnings
def gru(arrays: Values, options: Mapping[str, Any], precision: Precision) -> Expected:
    """Value of `gru`, dense or packed."""
    given = {**copied(arrays), **options_of(reference.gru, options)}

    def compute(specification: ModuleType) -> dict[str, Any]:
        return dict(zip(("y", "state"), specification.gru(**given), strict=True))

    return _expected(compute, precision, {})


@without_warnings
def gru_gradient(arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    """Gradient of `gru`. The results include ``input_state`` whether or not one was given."""
    given = {"input_state": np.zeros(cotangents["state"].shape), **copied(arrays)}
    given |= options_of(reference.gru_backward, options) | {f"d{name}": d for name, d in copied(cotangents).items()}

    def compute(specification: ModuleType) -> dict[str, Any]:
        return specification.gru_backward(**given)

    return _expected(compute, precision, cotangents)


def _expected(compute: Callable[[ModuleType], dict[str, Any]], precision: Precision, cotangents: Values) -> Expected:
    exact = compute(reference)
    return Expected(exact, slack(exact, [written(compute, *rows) for rows in SPELLINGS], precision, cotangents))
