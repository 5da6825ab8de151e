"""The matrix of a diagnosis: a plain call, and calls with one feature each, in every dtype, each judged once.

The envelope, and the failing calls, whose causes are looked for next, are read off it.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from conformance.diagnosis.experiments import with_steps
from conformance.features import described, features_for
from conformance.features.feature import Feature, avoiding, names
from conformance.features.sizes import LIMITS, SIZES
from conformance.formulas.judged import Clock, Judge, Judged
from conformance.operations import Operation

RANK = ("float32", "float64", "bfloat16", "float16")
"""Dtypes in the order in which a fault is examined: float32 first, because most kernels are written for it."""

SEEDS = (0, 1)

SHORT_STEPS = 8
"""Steps of a call with a feature that does not depend on their number; few steps take an eighth of the time."""

PLAIN = "plain call"
"""The name for calls without any feature, in a list of features."""

Found = Callable[[Judged], Any]


@dataclass
class Matrix:
    """Plain calls, and calls with one feature, with the verdicts on them.

    Attributes:
        refused: the names of features that the target refuses. A plain call has none of them.
        contract: whether features of gatespec's own decisions are tried, too.
        clock: when its time is over, no other feature is tried.
        hurried: whether there is little time, so that fewer calls are made and all of them have few steps.
        cells: by feature (``plain call`` first) and dtype, every call that was judged.
        untried: the features that were left out because time was over.
    """

    operation: Operation
    refused: Set[str]
    contract: bool
    clock: Clock
    hurried: bool
    cells: dict[str, dict[str, list[Judged]]] = field(default_factory=dict)
    untried: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._features = features_for(self.operation, contract=self.contract)

    @property
    def served(self) -> frozenset[str]:
        """The features of calls that were served."""
        return frozenset(
            name
            for name, trials in self.cells.items()
            if any(judged.served for of_dtype in trials.values() for judged in of_dtype)
        )

    def failing(self, dtype: str) -> list[Judged]:
        """The wrong calls of a dtype, those with the fewest features first."""
        tried = [judged for trials in self.cells.values() for judged in trials.get(dtype, ())]
        return list({judged.case: judged for judged in tried if judged.wrong}.values())

    def first_call(self, judge: Judge) -> Judged:
        """The verdict on one short plain call."""
        plain = self._plain(SEEDS[0])
        return self._tried(judge, PLAIN, _shortened(plain) or plain)

    def fill(self, judges: Mapping[str, Judge], found: Found = lambda judged: None) -> None:
        """Try all features while there is time.

        Args:
            judges: one for each dtype.
            found: called with each verdict on a call with a feature.
        """
        first, *others = sorted(judges, key=RANK.index)
        seeds = SEEDS[:1] if self.hurried else SEEDS
        for dtype, seed in [*((first, seed) for seed in seeds), *((dtype, SEEDS[0]) for dtype in others)]:
            self._fill(judges[dtype], self._plain(seed), found)

    def _fill(self, judge: Judge, plain: Any, found: Found) -> None:
        short, together, together_have = _shortened(plain), None, frozenset[str]()
        if not self.hurried:
            short = self._as_right_as(judge, plain, short) if self.clock.left else short
            together, together_have = self._together(judge, plain)
        for feature in self._features:
            case = together if feature.name in together_have else self._with(judge, feature, plain, short)
            if case is None:
                continue
            if self.clock.left:
                found(self._tried(judge, feature.name, case))
            elif feature.name not in self.cells and feature.name not in self.untried:
                self.untried.append(feature.name)

    def _as_right_as(self, judge: Judge, plain: Any, short: Any | None) -> Any | None:
        """The case with few steps, to save time; None if its verdict differs from that of the plain case."""
        judged = self._tried(judge, PLAIN, plain)
        if short is None:
            return None
        gained = (each.name for each in self._features if each.present(short) and not each.present(plain))
        other = self._tried(judge, next(gained, PLAIN), short)
        return short if (other.value, other.gradient) == (judged.value, judged.gradient) else None

    def _together(self, judge: Judge, plain: Any) -> tuple[Any | None, frozenset[str]]:
        """A call with all features of sizes at once, and their names; none if its verdict differs from a plain call's.

        Each new shape takes time: XLA compiles for it, an interpreter runs through it.
        """
        sizes = [each for each in self._features if each.of_sizes and not each.large]
        added = [each for each in sizes if not each.present(plain)]
        case = plain
        for feature in added:
            case = case if feature.present(case) else feature.added(case)
        found = names(case, self._features) - names(plain, self._features)
        if len(found) < 2 or found != {each.name for each in added} or not self.clock.left:
            return None, frozenset()
        alone, together = judge(plain), judge(case)
        if not together.served or (together.value, together.gradient) != (alone.value, alone.gradient):
            return None, frozenset()
        return case, found

    def _plain(self, seed: int) -> Any:
        return self._without_refused(described(self.operation).plain(seed))

    def _without_refused(self, case: Any) -> Any:
        return avoiding(case, self.refused, (*LIMITS, *self._features, *SIZES))

    def _tried(self, judge: Judge, name: str, case: Any) -> Judged:
        """The verdict on a case, under the name of a feature."""
        judged = judge(case)
        self.cells.setdefault(name, {}).setdefault(judge.dtype, []).append(judged)
        return judged

    def _with(self, judge: Judge, feature: Feature, plain: Any, short: Any | None) -> Any | None:
        """A plain case with one added feature, with few steps unless it depends on their number or they are refused.

        It has no refused feature, unless the added one brings it. None if the feature cannot be added, or every case
        has it.
        """
        if feature.present(plain):
            return None
        if short is not None and not feature.present(short):
            other = self._added(feature, short)
            # Few steps may be among the sizes that the target refuses.
            may_refuse = self.refused and self.clock.left
            if feature.present(other) and other.steps <= short.steps and not (may_refuse and not judge(other).served):
                return other
        other = self._added(feature, plain)
        return other if feature.present(other) else None

    def _added(self, feature: Feature, case: Any) -> Any:
        added = feature.added(case)
        served = self._without_refused(added)
        return served if feature.present(served) else added


def _shortened(plain: Any) -> Any | None:
    """The case with `SHORT_STEPS` steps; None if it does not have more."""
    short = with_steps(plain, SHORT_STEPS)
    return short if short.steps < plain.steps else None
