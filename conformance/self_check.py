"""A check that comparisons still tell right arrays from wrong ones, because a target shares the process with them."""

import numpy as np

from conformance.budget import Precision
from conformance.compared import compared
from conformance.dtypes import Array
from conformance.exceptions import raised_by_target

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
