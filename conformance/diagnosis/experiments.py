"""Experiments with one case that shows a fault: smaller cases, other values, and calls without one of its features."""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from conformance.cases import as_drawn
from conformance.features.feature import Feature, names, needed
from conformance.formulas.judged import Clock, Judge, Judged

EXCEPTION = frozenset({"exception"})

SHORT = (1, 2, 3, 5, 7, 13)
"""Numbers of steps with which a shorter example of a fault is looked for."""

SEEDS = range(1, 6)
"""Seeds that are added to that of a case until a fault shows on other values, too."""

OTHER_SEEDS = (1, 2, 3)
"""Seeds that are added to that of a case to find out whether a feature of it is a coincidence."""

LONG = 64
"""Steps of a call with more elements, for the same purpose."""

Happens = Callable[[Any], bool]
"""Whether a case shows the fault."""


@dataclass(frozen=True)
class Experiments:
    """Experiments on one operation in one dtype.

    Attributes:
        features: the features of the operation.
        clock: when its time is over, nothing new is tried.
        thorough: whether coincidences are looked for, which takes longer.
    """

    features: Sequence[Feature]
    judge: Judge
    clock: Clock
    thorough: bool = True

    def status(self, case: Any, aspect: str) -> str | None:
        """The verdict on a case."""
        return self.judge(case).status(aspect)

    def smaller(self, judged: Judged, happens: Happens) -> Judged:
        """The case without the features that the fault does not need, and with fewer steps if it still shows."""
        case = self.shorter(judged.case, happens)
        for feature in self.features:
            if not self.clock.left:
                break
            if feature.present(case) and feature.present(judged.case):
                other = feature.without(case)
                if not feature.present(other) and other.size <= 4 * case.size + 400 and happens(other):
                    case = other
        return self.judge(self.shorter(case, happens))

    def shorter(self, case: Any, happens: Happens) -> Any:
        """The case with the fewest steps of `SHORT` with which the fault still shows."""
        for S in SHORT:
            shorter = with_steps(case, S)
            if S < case.steps and self.clock.left and happens(shorter):
                return shorter
        return case

    def similar(self, judged: Judged, happens: Happens) -> list[Judged]:
        """The case with other random values that show the same fault, if there are any."""
        for seed in SEEDS:
            other = reseeded(as_drawn(judged.case), seed)
            if self.clock.left and happens(other):
                return [self.judge(other)]
        return []

    def drawn(self, small: Judged, happens: Happens) -> list[Judged]:
        """The case with drawn elements, if it shows the fault then, and with other ones."""
        drawn = as_drawn(small.case)
        first = self.judge(drawn) if drawn != small.case and self.clock.left and happens(drawn) else small
        return [first, *(self.similar(first, happens) if self.clock.left else ())]

    def needed(self, wrong: Any, small: Judged, happens: Happens, may_happen: Happens) -> tuple[Feature, ...]:
        """The features that are each necessary, with simple elements, which hide some faults, and with drawn ones.

        Args:
            wrong: the case in which the fault was found: it needs no feature that this case lacks.
            small: a smaller one.
            may_happen: the same as ``happens``, and true of a case whose verdict says nothing.
        """

        def shows(case: Any) -> bool:
            return not self.clock.left or may_happen(case)

        case = small.case
        found = needed(case, shows, [feature for feature in self.features if feature.present(wrong)])
        drawn = as_drawn(case)
        if found and drawn != case and self.clock.left and may_happen(drawn):
            found = needed(drawn, shows, found)
        if not self.thorough:
            return found
        either = {name for each in (wrong, case) for name in names(each, self.features)}
        # If none were left, the fault would be said to show on every call, though some without a feature are right.
        return tuple(each for each in found if not self._is_coincidence(each, small, either, happens)) or found

    def _is_coincidence(self, feature: Feature, small: Judged, either: Set[str], happens: Happens) -> bool:
        """Whether the fault shows without a feature after all, in a call with other elements or with more of them.

        Args:
            either: names of the only features that such a call may have.
        """
        drawn = as_drawn(small.case)
        others = [reseeded(drawn, seed) for seed in OTHER_SEEDS]
        if drawn.steps < LONG:
            others += [reseeded(with_steps(drawn, LONG), seed) for seed in OTHER_SEEDS[:2]]
        for other in map(feature.without, others):
            if not self.clock.left:
                return False
            if names(other, self.features) <= either - {feature.name} and happens(other):
                if natures_of(self.judge(other)) & natures_of(small):
                    return True
        return False


def natures_of(judged: Judged) -> frozenset[str]:
    """The ways in which arrays of a call are wrong."""
    return frozenset(array.nature for array in judged.wrong_arrays if array.nature is not None) or EXCEPTION


def reseeded(case: Any, seed: int) -> Any:
    """The case with other random values."""
    if hasattr(case, "inner"):
        return replace(case, inner=replace(case.inner, seed=case.inner.seed + seed))
    return replace(case, seed=case.seed + seed)


def with_steps(case: Any, S: int) -> Any:
    """The case with this number of steps; if it is packed, with at most so many in each sequence."""
    if hasattr(case, "inner"):
        return replace(case, inner=with_steps(case.inner, S))
    lengths = getattr(case, "lengths", None)
    return replace(case, S=S) if lengths is None else replace(case, lengths=tuple(min(S, each) for each in lengths))
