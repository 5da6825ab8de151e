"""Simple patterns of wrong arrays in words, such as ``is 2 × what it should be``."""

from collections.abc import Sequence

import numpy as np

from conformance.formulas.judged import Judged
from conformance.formulas.recognition import Answer, answer_of

FACTORS = (
    (2.0, "2 ×"),
    (0.5, "½ ×"),
    (-1.0, "minus"),
    (4.0, "4 ×"),
    (0.25, "¼ ×"),
)

FEWEST = 3
"""Least number of different values in an array that equals another one by more than coincidence."""


def patterns(trials: Sequence[Judged]) -> dict[str, str]:
    """The patterns of the wrong arrays of a call; most arrays show none.

    Args:
        trials: the call, and other calls with the same fault. What an array of one of them contradicts is left out.
    """
    if not trials:
        return {}
    first, *others = trials
    found = {name: said for name, said in _of_call(first).items() if said}
    for other in others if found else ():
        shown = _of_call(other)
        found = {name: said for name, said in found.items() if shown.get(name, said) == said}
    return found


def _of_call(judged: Judged) -> dict[str, str | None]:
    """The pattern of each wrong array, or None."""
    if judged.expected is None or judged.problem:
        return {}
    found: dict[str, str | None] = {}
    for array in judged.wrong_arrays:
        found[array.where] = "is missing" if array.nature == "missing" else None
        if array.nature not in ("missing", "shape") and array.where in judged.got:
            answer = answer_of(array.where, judged, dict(judged.expected.values))
            found[array.where] = _pattern(answer, judged)
    return found


def _pattern(answer: Answer, judged: Judged) -> str | None:
    got, true, tolerance = answer.got, answer.true, answer.tolerance
    if not got.size or not np.isfinite(true).all():
        return None
    if np.isnan(got).all():
        return "is NaN throughout"
    if not np.isfinite(got).all():
        return None

    def equals(other: np.ndarray, times: float = 1.0) -> bool:
        """Whether the array equals another: within the tolerance, and much closer to it than to the correct values."""
        if other.shape != got.shape or (np.abs(got - other) > times * tolerance + 1e-300).any():
            return False
        return float(np.linalg.norm(got - other)) < 0.1 * float(np.linalg.norm(got - true))

    if not np.any(got) and np.any(np.abs(true) > tolerance):
        return "is 0 throughout"
    several = np.unique(got).size >= FEWEST
    if several or (true != np.rint(true)).any():
        for factor, said in (*FACTORS, *_factors_of_size(judged)):
            if equals(factor * true, max(1.0, abs(factor))):
                return f"is {said} what it should be"
    if not several:
        return None
    if true.ndim > 1 and true.shape[-1] == true.shape[-2] and equals(true.swapaxes(-1, -2)):
        return "is transposed in its last two axes"
    assert judged.expected is not None
    equal = [name for name, other in judged.expected.values.items() if name != answer.name and equals(other)]
    return f"is the {equal[0]}" if len(equal) == 1 else None


def _factors_of_size(judged: Judged) -> list[tuple[float, str]]:
    assert judged.call is not None
    arrays = judged.call.arrays
    K = arrays["q"].shape[-1] if "q" in arrays else arrays["weight"].shape[-1] if "weight" in arrays else 1
    letter = "K" if "q" in arrays else "H"
    if K in (1, 2, 4):
        return []
    return [
        (K**0.5, f"√{letter} ×"),
        (K**-0.5, f"1/√{letter} ×"),
        (float(K), f"{letter} ×"),
        (1 / K, f"1/{letter} ×"),
    ]
