"""One array of a target, compared with its correct values."""

import math
from dataclasses import dataclass, replace

import numpy as np

from conformance.budget import Precision, Verdict, allowed, judge, ratios
from conformance.dtypes import ROUNDOFF, Array
from conformance.outcome import ArrayOutcome


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The comparison of an array.

    Attributes:
        outcome: how the array is wrong, if it is, and by how much.
        verdict: the first element that is wrong in this way.
        tolerance: the error that each element may have; None unless some element has a larger one.
    """

    outcome: ArrayOutcome
    verdict: Verdict
    tolerance: np.ndarray | None = None


def compared(
    where: str, got: Array, expected: np.ndarray, slack: np.ndarray, precision: Precision, times: float = 1.0
) -> Compared:
    """Compare an array with its correct values; the arguments are those of `budget.judge`.

    A NaN or an infinity where a number is expected comes before numbers that are merely wrong.
    """
    verdict = judge(got, expected, slack, precision, times)
    if got.shape != expected.shape:
        outcome = ArrayOutcome(where=where, nature="shape", worst=math.inf, error=math.inf, wrong=1.0)
        return Compared(outcome=outcome, verdict=verdict)
    values = got.values.astype(np.float64)
    distance, error = _errors(values, expected)
    outcome = ArrayOutcome(where=where, nature=None, worst=verdict.worst, error=error, wrong=0.0, distance=distance)
    if verdict.worst <= 1:
        return Compared(outcome=outcome, verdict=verdict)
    dtype = dtype_of(got, precision)
    tolerance = allowed(expected, slack, precision, dtype, times)
    wrong = ratios(values, expected, tolerance, dtype) > 1
    nature = "number"
    for name, of_it in (("nan", np.isnan(values)), ("infinity", np.isinf(values) & np.isfinite(expected))):
        places = np.argwhere(wrong & of_it)
        if places.size:
            at = tuple(int(n) for n in places[0])
            value = float(got.values[at])
            verdict, nature = Verdict(math.inf, at, value, float(expected[at]), float(tolerance[at])), name
            break
    share = float(np.count_nonzero(wrong)) / wrong.size
    outcome = replace(outcome, nature=nature, worst=verdict.worst, wrong=share)
    return Compared(outcome=outcome, verdict=verdict, tolerance=tolerance)


def dtype_of(got: Array, precision: Precision) -> str:
    """The dtype to which an answer counts as rounded."""
    return "float64" if precision.upcasts or got.dtype not in ROUNDOFF else got.dtype


def _errors(got: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """The largest error of an array, and that error relative to the largest expected value."""
    finite = np.isfinite(expected)
    with np.errstate(invalid="ignore"):
        distances = np.abs(got[finite] - expected[finite])
    if np.isnan(distances).any() or not np.array_equal(got[~finite], expected[~finite], equal_nan=True):
        return math.inf, math.inf
    largest = float(np.abs(expected[finite]).max(initial=0.0))
    distance = float(distances.max(initial=0.0))
    return distance, distance / largest if largest else (math.inf if distance else 0.0)
