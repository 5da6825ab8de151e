"""Looks for the known formula that a target computes instead of the definition, alone or with another fault."""

import itertools
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from conformance.diagnosis.cause import NOISE
from conformance.diagnosis.experiments import Experiments, Happens, with_steps
from conformance.diagnosis.ranges import Range
from conformance.features import described
from conformance.features.feature import names, only
from conformance.formulas import formulas_of, pairs_of, ranged
from conformance.formulas.formula import Formula
from conformance.formulas.judged import WRONG, Clock, Judged
from conformance.formulas.recognition import matches, recognised
from conformance.formulas.rows import DoesNotRunError, formulas_of_rows, in_value
from conformance.operations import Operation

SECONDS = 12.0
"""Time limit for trying formulas on one fault; pairs of formulas have the same limit again."""

PROBED_STEPS = (13, 40, 81)
"""Steps of further calls in which a target must follow a formula that depends on their number."""

PROBED_LENGTHS = (3, 0, 4)
"""The same for packed sequences."""


@dataclass(frozen=True)
class FormulaSearch:
    """Compares a target with formulas on a wrong case and on cases similar to it.

    Attributes:
        experiments: those in the dtype of the wrong case.
        served: names of the features of calls that the target serves.
        known: formulas that the target follows in other calls.
    """

    experiments: Experiments
    served: Set[str]
    known: Sequence[Formula]

    @property
    def operation(self) -> Operation:
        return self.experiments.judge.operation

    def single(self, judged: Judged, happens: Happens) -> Formula | None:
        """The formula that the target equals on this case and on similar ones, alone or with one that is known.

        Args:
            judged: a wrong case.
            happens: whether another case shows the same fault.
        """
        if judged.problem or not self.experiments.clock.left:
            return None
        alike, rich = self._alike(judged, happens)
        trials = alike if rich is None else [*alike, rich]
        found = self._ordered(judged)
        if _is_nan(judged):
            trials += self._with_features(judged, {name for formula in found for name in formula.nan_at})
        single = self._first(found, trials)
        if single is None:
            # With a second, smaller fault the target equals no formula to within a tolerance.
            single = self._first(found, trials, closely=False)
        return self._beside_a_known_one(found, trials) if single is None else single

    def several(self, judged: Judged, happens: Happens) -> Formula | None:
        """The two formulas that the target equals at once, or the one that it equals on simple calls."""
        if judged.problem or not self.experiments.clock.left:
            return None
        alike, rich = self._alike(judged, happens)
        exact = [each for each in self._ordered(judged) if not each.noisy and not each.alone and self._fits(each)]
        if rich is not None and (beside := self._beside_another(exact, alike, rich)) is not None:
            return beside
        return self._pair(exact, judged, alike if rich is None else [*alike, rich])

    def _alike(self, judged: Judged, happens: Happens) -> tuple[list[Judged], Judged | None]:
        """The case with similar ones, and a wrong call that shows all there is to see."""
        return [judged, *self.experiments.similar(judged, happens)], self._rich(judged)

    def of_ranges(self, judged: Judged, happens: Happens, ranges: Sequence[Range]) -> Formula | None:
        """The formula that the target equals, among those that concern the sizes or gates for which a fault shows."""
        if judged.problem:
            return None
        trials = [judged, *self.experiments.similar(judged, happens)]
        found = (ranged(self.operation, above=each.above, factor=each.factor, bound=each.bound) for each in ranges)
        return self._first(itertools.chain.from_iterable(found), trials)

    def of_rows(self, judged: Judged, happens: Happens) -> Formula | None:
        """The row that the target equals on this case and on similar ones: the specification with a line changed."""
        if judged.problem:
            return None
        alike, rich = self._alike(judged, happens)
        trials = alike if rich is None else [*alike, rich]
        # A value that is only rounded is no changed line whose gradient may be another.
        apart = judged.value == WRONG and any(array.error >= NOISE for array in judged.wrong_arrays)
        for formula in self._timed(formulas_of_rows(self.operation)):
            with suppress(DoesNotRunError):
                if recognised([formula], trials) is not None:
                    return formula
                if apart and recognised([formula], trials, outputs_alone=True) is not None:
                    return in_value(formula)
        return None

    def _pair(self, exact: Sequence[Formula], judged: Judged, trials: Sequence[Judged]) -> Formula | None:
        """Two formulas at once that the target equals on all trials."""
        pairs = partial(pairs_of, self.operation)
        if judged.value != WRONG:
            return self._first(pairs(itertools.combinations(exact, 2)), trials)
        # The gradient may have a fault of its own, so that outputs are compared first, with one or two wrong values.
        of_gradient = [formula for formula in exact if not formula.changes_value]
        of_value = [formula for formula in exact if formula.changes_value]
        for formula in self._timed(itertools.chain(of_value, pairs(itertools.combinations(of_value, 2)))):
            if recognised([formula], trials, outputs_alone=True) is not None:
                whole = itertools.chain([formula], pairs((formula, each) for each in of_gradient))
                if (equal := recognised(whole, trials)) is not None:
                    return equal
        return None

    def _beside_a_known_one(self, found: Sequence[Formula], trials: Sequence[Judged]) -> Formula | None:
        """The formula that the target equals on all trials together with one that it follows in other calls.

        What only rounds is left out: next to another formula almost any rounding would do.
        """
        exact = [known for known in self.known if not known.noisy]
        wanted = (each for each in found if exact and (each.nan_at or not each.noisy))
        for formula in self._timed(wanted):
            others = ((formula, known) for known in exact if known is not formula)
            both = list(pairs_of(self.operation, others))
            if recognised(both, trials, closely=not formula.noisy) and self._fits(formula):
                return formula
        return None

    def _beside_another(self, exact: Sequence[Formula], alike: Sequence[Judged], rich: Judged) -> Formula | None:
        """The only formula that the target equals on simple calls, if the rich call shows another fault, too.

        It must equal the target on the rich call, too, together with another formula or without the features that
        another fault needs.
        """
        fitting = [each for each in self._timed(exact) if recognised([each], alike) is not None]
        both = (pairs_of(self.operation, ((each, other) for other in exact if other is not each)) for each in fitting)
        pair = self._first(itertools.chain.from_iterable(both), [*alike, rich])
        if pair is not None:
            return pair
        left = [formula for formula in fitting if self._holds_without_another(formula, alike[0].case, rich.case)]
        return left[0] if len(left) == 1 else None

    def _holds_without_another(self, formula: Formula, simple: Any, rich: Any) -> bool:
        """Whether the target equals a formula on a rich call without the features by which a simple one departs."""
        spoilt = set()
        for feature in self.experiments.features:
            if not self.experiments.clock.left:
                return False
            if feature.present(rich) and not feature.present(simple):
                other = feature.added(simple)
                if feature.present(other) and matches(formula, self.experiments.judge(other)) is False:
                    spoilt.add(feature.name)
        features = self.experiments.features
        rest = self.experiments.judge(only(rich, names(rich, features) - spoilt, features))
        return bool(spoilt) and rest.wrong and matches(formula, rest) is True

    def _rich(self, judged: Judged) -> Judged | None:
        """A call that shows all there is to see: of several formulas that agree on the smallest one, one remains."""
        make = described(self.operation).rich or described(self.operation).plain
        served = names(judged.case, self.experiments.features) | self.served
        rich = self.experiments.judge(only(make(1), served, self.experiments.features))
        return rich if rich.wrong and not rich.problem else None

    def _with_features(self, judged: Judged, wanted: Set[str]) -> list[Judged]:
        """Calls as plain as can be, each with one of some features."""
        plain = described(self.operation).plain(0)
        plain = with_steps(plain, judged.case.steps)
        cases = [feature.added(plain) for feature in self.experiments.features if feature.name in wanted]
        return [self.experiments.judge(case) for case in cases]

    def _ordered(self, judged: Judged) -> list[Formula]:
        """The formulas to try, the likely ones first; for NaN alone, those that say where it is."""
        chunk_size = getattr(judged.case, "chunk_size", None)
        found = formulas_of(self.operation, chunk_size)
        if _is_nan(judged):
            return [formula for formula in found if formula.nan_at]
        of_aspect = [formula for formula in found if formula.changes_value == (judged.value == WRONG)]
        return [*of_aspect, *(formula for formula in found if formula not in of_aspect)]

    def _first(self, formulas: Iterable[Formula], trials: Sequence[Judged], *, closely: bool = True) -> Formula | None:
        for formula in self._timed(formulas):
            if recognised([formula], trials, closely=closely) and self._fits(formula):
                return formula
        return None

    def _fits(self, formula: Formula) -> bool:
        """Whether a target follows a formula about lengths in calls of other lengths, or refuses those.

        There it differs from others like it.
        """
        cases = []
        if "chunk" in formula.change:
            plain = described(self.operation).plain(0)
            states = (each.added(plain) for each in self.experiments.features if each.name == "final state")
            plain = next(states, plain)
            cases += [with_steps(plain, S) for S in PROBED_STEPS]
        make = described(self.operation).rich
        packed = any(feature.name == "packed" for feature in self.experiments.features)
        if make is not None and packed and {"packed_apart", "empty_apart"} & set(formula.change):
            cases.append(replace(make(1), lengths=PROBED_LENGTHS, B=len(PROBED_LENGTHS), S=0))
        for judged in map(self.experiments.judge, cases):
            if judged.wrong and matches(formula, judged, closely=False) is not True:
                return False
            right = judged.served and not judged.wrong
            if right and matches(formula, judged, outputs_alone=True) is False:
                return False
        return True

    def _timed(self, formulas: Iterable[Formula]) -> Iterable[Formula]:
        own = Clock(SECONDS)
        for formula in formulas:
            if not self.experiments.clock.left or not own.left:
                return
            yield formula


def _is_nan(judged: Judged) -> bool:
    """Whether everything that is wrong is NaN."""
    return all(array.nature == "nan" for array in judged.wrong_arrays)
