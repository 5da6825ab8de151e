"""The sizes, and the gates, for which a fault shows: "S > 64 and S % 16 ≠ 0", "log σ(f) below −20", by bisection."""

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.base.dtypes import Array
from conformance.cases import as_drawn
from conformance.diagnosis.experiments import OTHER_SEEDS, Experiments, Happens, reseeded
from conformance.features.calls import with_lengths, with_sequences
from conformance.features.feature import Feature
from conformance.formulas.judged import WRONG, Judged

FACTORS = (2, 4, 8, 16, 32, 64, 128)
"""Numbers of which a size may have to be a multiple."""

GATES = {
    "f": ("large forget gates", "forget gates of -1e30"),
    "i": ("large input gates", "m above 64"),
    "m0": ("large input gates", "m above 64"),
    "forget_input": ("large gates",),
    "reset_input": ("large gates",),
}
"""By array, the features of calls that have large finite values in it."""

LEAST_GATE, LARGEST_GATE = 5.0, 1e6
"""Magnitudes of gates between which a bound is looked for."""

CLOSE = 1.02
"""The ratio of a gate at which a fault shows and one at which it does not, at which the bisection ends."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """Values of a size or of a gate for which a fault shows.

    Attributes:
        clause: the condition, as in ``S > 64 and S % 16 ≠ 0``.
        covers: the features of which it says more.
        above, factor: the size above which, and the factor of whose multiples, no fault shows; None without one.
        bound: the gate beyond which it shows, with its sign; None for a size.
    """

    clause: str
    covers: tuple[str, ...]
    above: int | None = None
    factor: int | None = None
    bound: float | None = None


def ranges_of(
    experiments: Experiments, small: Judged, features: Sequence[Feature], aspect: str, happens: Happens
) -> tuple[Range, ...]:
    """The ranges of the sizes and gates that some features are about.

    Args:
        small: a small case that shows the fault.
        features: the features that the fault needs.
        happens: whether another case shows it.
    """
    needed = {feature.name for feature in features}
    case = as_drawn(small.case) if happens(as_drawn(small.case)) else small.case
    found = []
    # Of longer sequences more gates are drawn: whether one of them is large enough says nothing about the length.
    by_gates = any(feature.of_values for feature in features)
    for size in () if by_gates else _sizes(case, experiments.features):
        about = [each for each in experiments.features if each.name in needed and size.letter in each.letters]
        covered = tuple(each.name for each in about if size.alone or len(each.letters) == 1)
        if covered:
            found.append(_of_size(experiments, case, size, happens, covered))
    stated = experiments.judge.operation.stated
    # In a recurrence without an input gate, another array may have such a name.
    for name, about in GATES.items() if stated is None or stated.recurrence.stabilised else ():
        covered = tuple(each for each in about if each in needed)
        if covered and small.call is not None and name in small.call.arrays:
            found += _of_gate(experiments, case, name, aspect, covered)
    return tuple(each for each in found if each is not None)


@dataclass(frozen=True)
class _Size:
    """A size of a case.

    Attributes:
        letter, at: its name and its value.
        resized: returns the case of another size.
        alone: whether what features say of it and another size can be said of it alone.
    """

    letter: str
    at: int
    resized: Callable[[int], Any]
    alone: bool = True


def _sizes(case: Any, features: Sequence[Feature]) -> list[_Size]:
    """The sizes of a case that features are about."""
    inner = getattr(case, "inner", case)

    def size(letter: str, change: Callable[[Any, int], Any], at: int | None = None, alone: bool = True) -> _Size:
        def resized(n: int) -> Any:
            own = change(inner, n)
            return replace(case, inner=own) if inner is not case else own

        return _Size(letter, getattr(inner, letter) if at is None else at, resized, alone)

    def with_field(letter: str) -> Callable[[Any, int], Any]:
        return lambda case, n: replace(case, **{letter: n})

    alike = getattr(inner, "K", None) == getattr(inner, "V", None)
    found = [size("S", lambda case, n: with_lengths(case, lambda _: n), case.steps)] if hasattr(inner, "S") else []
    if hasattr(inner, "B"):
        found.append(size("B", with_sequences, inner.sequences))
    letters = dict.fromkeys(letter for feature in features for letter in feature.letters if len(letter) == 1)
    found += [
        size(letter, with_field(letter), alone=alike or letter not in "KV")
        for letter in letters
        if letter not in "BS" and hasattr(inner, letter)
    ]
    if getattr(inner, "chunk_size", None) is not None:
        found.append(size("chunk_size", with_field("chunk_size")))
    return found


def _of_size(
    experiments: Experiments, case: Any, size: _Size, happens: Happens, covered: tuple[str, ...]
) -> Range | None:
    letter, at, resized = size.letter, size.at, size.resized
    known: dict[int, bool] = {}

    def shows(size: int) -> bool:
        if size not in known:
            known[size] = experiments.clock.left and happens(resized(size))
        return known[size]

    def always(wrong: int, right: int) -> bool:
        """Whether other values show it at one size, and do not at another: then it does not depend on values."""
        pairs = [(reseeded(resized(wrong), seed), reseeded(resized(right), seed)) for seed in OTHER_SEEDS[:2]]
        return all(experiments.clock.left and happens(one) and not happens(other) for one, other in pairs)

    if at < 1 or not shows(at):
        return None
    if not any(shows(size) for size in (at + 1, at + 2, at + 3, max(at - 1, 1), 2 * at + 1) if size != at):
        alone = Range(clause=f"{letter} = {at}", covers=covered)
        return alone if always(at, at + 1) else None
    factor = next((each for each in FACTORS if _only_beside_multiples(each, at, shows)), None)
    sizes = [size for size in range(1, at + 1) if factor is None or size % factor]
    # Below the first size that shows it, none does.
    first = bisect.bisect_left(sizes, True, key=shows)
    above = None
    if first:
        above = sizes[first] - 1
        above -= above % factor if factor and above - above % factor >= sizes[first - 1] else 0
    if factor is None and (above is None or (letter in "BN" and above == 1)):
        return None
    if not always(at, sizes[first - 1] if first else (at // (factor or 1) + 1) * (factor or 1)):
        return None
    clauses = [f"{letter} > {above}"] * (above is not None) + [f"{letter} % {factor} ≠ 0"] * (factor is not None)
    return Range(clause=" and ".join(clauses), covers=covered, above=above, factor=factor)


def _only_beside_multiples(factor: int, at: int, shows: Callable[[int], bool]) -> bool:
    """Whether multiples of a number are right, and sizes next to them are wrong."""
    multiple = (at // factor + 1) * factor
    return at % factor != 0 and not any(map(shows, (multiple, multiple + factor))) and shows(multiple + 1)


def _of_gate(experiments: Experiments, case: Any, name: str, aspect: str, covered: tuple[str, ...]) -> list[Range]:
    """The bounds of a gate, on either side, beyond which a fault shows."""
    values = experiments.judge.call_of(case).arrays[name].values.astype(np.float64)
    finite = values[np.isfinite(values)]
    found = []
    for sign in (-1.0, 1.0):
        largest = float((sign * finite).max(initial=0.0))

        def shows(most: float, sign: float = sign) -> bool:
            def bounded(x: Array) -> Array:
                limits = (-most, math.inf) if sign < 0 else (-math.inf, most)
                kept = np.where(np.isinf(x.values), x.values, np.clip(x.values, *limits))
                return Array(kept.astype(x.values.dtype), x.dtype)

            other = experiments.judge.with_array(case, name, f"{sign * most!r}", bounded)
            return other.status(aspect) == WRONG

        low, high = LEAST_GATE, min(largest, LARGEST_GATE)
        if high <= CLOSE * low or not shows(high) or shows(low):
            continue
        while high > CLOSE * low and experiments.clock.left:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if shows(middle) else (middle, high)
        bound = sign * _rounded(low, high)
        beyond = "below" if sign < 0 else "above"
        said = "log σ(f)" if name == "f" and sign < 0 else name
        clause = f"{said} is {beyond} {bound:g}".replace("-", "−")
        found.append(Range(clause=clause, covers=covered, bound=bound))
    return found


def _rounded(low: float, high: float) -> float:
    """The roundest number between two."""
    for digits in range(1, 5):
        unit = 10.0 ** (math.floor(math.log10(high)) + 1 - digits)
        for step in (5 * unit, 2 * unit, unit):
            number = math.floor(high / step) * step
            if number >= low:
                return number
    return high
