"""One array of a target, compared with its correct values, and the ways in which it can be wrong."""

import math
from dataclasses import dataclass, replace

import numpy as np

from conformance.base.dtypes import ROUNDOFF, Array
from conformance.base.exceptions import raised_by_target
from conformance.tolerance.budget import Precision, Verdict, allowed, judge, ratios

ENDINGS = ("exit", "abort", "timeout")
"""Natures of a break that ends the process; its case is tried as few times as possible."""


@dataclass(frozen=True, order=True)
class BreakKind:
    """A kind of break: where a law breaks, and how. Shrinking preserves it; each kind has its own counterexample.

    Attributes:
        where: the array, ``gradient of k``; or the name of the exception, or of the function.
        nature: ``number`` (outside its tolerance), ``nan``, ``infinity``, ``shape``, ``dtype``, ``missing``,
            ``result`` (not of the form of the function's result), ``exception``, ``exit``, ``abort``, ``timeout``,
            ``memory`` (an input written to, results that share memory) or ``text`` (of an error, or whatever else a law
            says in words).
    """

    where: str
    nature: str

    def __str__(self) -> str:
        said = {"number": "", "nan": "NaN in ", "infinity": "infinity in ", "exception": "raised "}
        if self.nature in said:
            return f"{said[self.nature]}{self.where}"
        return f"{self.nature} of {self.where}" if self.where else self.nature


class ProcessEndedError(Exception):
    """A call ended the process in which it was made.

    Args:
        kind: how it ended.
    """

    def __init__(self, kind: BreakKind):
        self.kind = kind
        super().__init__("does not return" if kind.nature == "timeout" else f"ends the process ({kind.where})")


@dataclass(frozen=True, kw_only=True)
class ArrayOutcome:
    """One array of a call, compared with its correct values.

    Attributes:
        where: the array, ``gradient of k``.
        nature: how it breaks the law, as in `BreakKind`; None if it does not.
        worst: the largest error over its tolerance.
        error: the largest error, relative to the largest expected value in the array.
        wrong: share of elements outside their tolerance.
        distance: the largest error itself.
    """

    where: str
    nature: str | None
    worst: float
    error: float
    wrong: float
    distance: float = math.inf

    @property
    def kind(self) -> BreakKind | None:
        return None if self.nature is None else BreakKind(self.where, self.nature)


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


UNSOUND = "the target changed NumPy or the suite in its process: a wrong array is no longer told from a right one"

_RIGHT = (1.0, -2.0, 3.0)
_WRONG = ((1.0, -2.0, 3.5), (1.0, 2.0, 3.0), (1.0, float("nan"), 3.0), (float("inf"), -2.0, 3.0))


def comparisons_are_sound() -> bool:
    """Whether a right array passes, and a wrong number, a NaN and an infinity do not."""
    precision, expected = Precision("float64", 1), np.array(_RIGHT)

    def passes(values: tuple[float, ...]) -> bool:
        got = Array(np.array(values), "float64")
        return compared("", got, expected, np.zeros(len(_RIGHT)), precision).outcome.nature is None

    try:
        return passes(_RIGHT) and not any(passes(values) for values in _WRONG)
    except raised_by_target():
        return False
