"""One array of an answer against what is expected and allowed, element by element."""

import math

import numpy as np

from conformance.budget import Verdict
from conformance.dtypes import Array


def compare(got: Array, expected: np.ndarray, allowed: np.ndarray, roundoff: float) -> Verdict:
    """What `budget.judge` says, of an allowance that lies in a file; ``roundoff`` is the unit of `Verdict.ulp`."""
    if got.shape != expected.shape:
        return Verdict(math.inf, reason=f"shape {list(got.shape)}, expected {list(expected.shape)}")
    if not expected.size:
        return Verdict(0.0)
    values, finite = got.values.astype(np.float64), np.isfinite(expected)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ratio = np.abs(values - expected) / allowed
        ratio = np.where(np.isnan(values), math.inf, ratio)
        ratio = np.where(finite, ratio, np.where(values == expected, 0.0, math.inf))
    worst = float(ratio.max())
    if worst <= 1:
        return Verdict(worst)
    index = tuple(int(at) for at in np.argwhere(ratio > 1)[0])
    value, wanted = float(values[index]), float(expected[index])
    unit = roundoff * abs(wanted)
    ulp = abs(value - wanted) / unit if math.isfinite(wanted) and unit else None
    return Verdict(worst, index, value, wanted, float(allowed[index]), ulp)
