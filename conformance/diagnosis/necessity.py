"""Finds out by experiment which features of a call a fault needs."""

from collections.abc import Callable, Sequence, Set
from typing import Any

from conformance.cases import as_drawn
from conformance.diagnosis.formula_search import reseeded, with_steps
from conformance.features.feature import Feature, names, needed
from conformance.formulas.judged import Clock, Judge, Judged

EXCEPTION = frozenset({"exception"})

OTHER_SEEDS = (1, 2, 3)
"""Seeds that are added to that of a case to find out whether a feature of it is a coincidence."""

LONG = 64
"""Steps of a call with more elements, for the same purpose."""


class Necessity:
    """Experiments with a case that shows a fault, without one of its features at a time.

    Args:
        features: the features of the operation.
        judge: judges cases in the dtype of the fault.
        clock: when its time is over, nothing new is tried.
        thorough: whether coincidences are looked for, which takes longer.
    """

    def __init__(self, features: Sequence[Feature], judge: Judge, clock: Clock, *, thorough: bool):
        self._features = features
        self._judge = judge
        self._clock = clock
        self._thorough = thorough

    def features(
        self, wrong: Any, small: Judged, happens: Callable[[Any], bool], may_happen: Callable[[Any], bool]
    ) -> tuple[Feature, ...]:
        """The features that are each necessary, with simple elements, which hide some faults, and with drawn ones.

        Args:
            wrong: the case in which the fault was found: it needs no feature that this case lacks.
            small: a smaller one.
            happens: whether another case shows the fault.
            may_happen: the same, and true of a case whose verdict says nothing.
        """
        case = small.case
        found = needed(case, may_happen, [feature for feature in self._features if feature.present(wrong)])
        drawn = as_drawn(case)
        if found and drawn != case and self._clock.left and may_happen(drawn):
            found = needed(drawn, may_happen, found)
        if not self._thorough:
            return found
        either = {name for each in (wrong, case) for name in names(each, self._features)}
        # If none were left, the fault would be said to show on every call, though some without a feature are right.
        return tuple(each for each in found if not self._is_coincidence(each, small, either, happens)) or found

    def _is_coincidence(
        self, feature: Feature, small: Judged, either: Set[str], happens: Callable[[Any], bool]
    ) -> bool:
        """Whether the fault shows without a feature after all, in a call with other elements or with more of them.

        Args:
            either: names of the only features that such a call may have.
        """
        drawn = as_drawn(small.case)
        others = [reseeded(drawn, seed) for seed in OTHER_SEEDS]
        if drawn.steps < LONG:
            others += [reseeded(with_steps(drawn, LONG), seed) for seed in OTHER_SEEDS[:2]]
        for other in map(feature.without, others):
            if not self._clock.left:
                return False
            if names(other, self._features) <= either - {feature.name} and happens(other):
                if natures_of(self._judge(other)) & natures_of(small):
                    return True
        return False


def natures_of(judged: Judged) -> frozenset[str]:
    """The ways in which arrays of a call are wrong."""
    return frozenset(array.nature for array in judged.wrong_arrays if array.nature is not None) or EXCEPTION
