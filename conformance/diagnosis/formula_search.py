"""Looks for the formula that a target computes instead of the definition: the specification with a row changed."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

from conformance.diagnosis.cause import NOISE
from conformance.diagnosis.experiments import Experiments, Happens, natures_of
from conformance.diagnosis.ranges import Range
from conformance.features import described
from conformance.features.feature import names, only
from conformance.formulas.formula import Formula, formulas_of, in_value
from conformance.formulas.judged import WRONG, Clock, Judged
from conformance.formulas.recognition import matches, recognised
from conformance.rows import families
from conformance.rows.row import Row

SECONDS = 12.0
"""Time limit for trying formulas on one fault."""


@dataclass(frozen=True)
class FormulaSearch:
    """Compares a target with formulas on a wrong case and on cases similar to it.

    Attributes:
        experiments: those in the dtype of the wrong case.
        served: names of the features of calls that the target serves.
    """

    experiments: Experiments
    served: Set[str]

    def formula(self, judged: Judged, happens: Happens) -> Formula | None:
        """The formula that the target equals on this case, on similar ones, and on a rich call.

        Where the rich call shows another fault too, the only one that it equals on the simple calls.

        Args:
            judged: a wrong case.
            happens: whether another case shows the same fault.
        """
        if judged.problem:
            return None
        alike, rich = self._alike(judged, happens), self._rich(judged)
        found = [*formulas_of(self.experiments.judge.operation)]
        # Where the value is right, rows of the gradient come first.
        found.sort(key=lambda formula: formula.changes_value == (judged.value != WRONG))
        simple, near = [], []
        for formula in self._timed(found):
            if exact := recognised(formula, alike):
                if rich is None or matches(formula, rich) is not False:
                    return formula
                simple.append(formula)
            if exact or (not formula.rounds and recognised(formula, alike, closely=False)):
                near.append(formula)
        # With a second, smaller fault the target equals no formula to within a tolerance.
        for formula in near:
            if rich is None or matches(formula, rich, closely=False) is not False:
                return formula
        if rich is not None:
            # The value of the rich call is not that of any formula that changes a gradient.
            value_too = rich.value == WRONG != judged.value
            left = [
                formula
                for formula in simple
                if (value_too and not formula.changes_value)
                or self._holds_without_another(formula, judged.case, rich.case)
            ]
            if len(left) == 1:
                return left[0]
        return self._in_value_alone(found, judged, alike if rich is None else [*alike, rich])

    def of_ranges(self, judged: Judged, wrong: Judged, happens: Happens, ranges: Sequence[Range]) -> Formula | None:
        """The formula that the target equals, among those that concern the sizes or gates for which a fault shows.

        Args:
            judged: a small wrong case.
            wrong: the one in which the fault was found.
        """
        operation = self.experiments.judge.operation
        rows = tuple(row for each in ranges for row in _of_range(each) if row.op == operation.about)
        if judged.problem or not rows:
            return None
        trials = [*self._alike(judged, happens), wrong]
        return next((each for each in self._timed(formulas_of(operation, rows)) if recognised(each, trials)), None)

    def _alike(self, judged: Judged, happens: Happens) -> list[Judged]:
        """The case, and one with other values that shows the same fault in the same way, NaN or a number."""
        judge = self.experiments.judge

        def the_same(case: Any) -> bool:
            return happens(case) and natures_of(judge(case)) == natures_of(judged)

        return [judged, *self.experiments.similar(judged, the_same)]

    def _in_value_alone(self, found: Sequence[Formula], judged: Judged, trials: Sequence[Judged]) -> Formula | None:
        """The formula that the target equals but for its gradient."""
        # A value that is only rounded is no changed line whose gradient may be another.
        if judged.value == WRONG and any(array.error >= NOISE for array in judged.wrong_arrays):
            for formula in self._timed(each for each in found if each.changes_value):
                if recognised(formula, trials, outputs_alone=True):
                    # Whether the backward pass of what rounds rounds too is not asked anyway.
                    return formula if formula.rounds else in_value(formula)
        return None

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
        operation = self.experiments.judge.operation
        make = described(operation).rich or described(operation).plain
        served = names(judged.case, self.experiments.features) | self.served
        rich = self.experiments.judge(only(make(1), served, self.experiments.features))
        return rich if rich.wrong and not rich.problem else None

    def _timed(self, formulas: Iterable[Formula]) -> Iterable[Formula]:
        own = Clock(SECONDS)
        for formula in formulas:
            if not self.experiments.clock.left or not own.left:
                return
            yield formula


def _of_range(found: Range) -> Iterable[Row]:
    """The rows with the numbers that a range measured."""
    if found.factor is not None:
        yield from families.dropped(found.factor, found.above or 0)
    if found.bound is not None and found.bound < 0:
        yield from families.clamped(-found.bound)
