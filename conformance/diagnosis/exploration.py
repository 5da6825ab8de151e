"""Experiments on one operation: a plain call, then calls with one feature each, and the faults that they show."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from conformance.diagnosis.faults import RANK, Faults
from conformance.diagnosis.formula_search import with_steps
from conformance.features import described
from conformance.features.admission import excluded
from conformance.features.feature import Feature, names
from conformance.formulas.judged import NOT_PROMISED, Clock, Judged

SEEDS = (0, 1)

SHORT_STEPS = 8
"""Steps of a call with a feature that does not depend on their number; few steps take an eighth of the time."""

PLAIN = "plain call"
"""The name for calls without any feature, in a list of features."""


class Exploration:
    """Tries plain calls, and calls with one feature.

    Attributes:
        table: by feature (``plain call`` first) and dtype, every call that was judged.
        untried: the features that were left out because time was over.

    Args:
        faults: those found so far; what these calls show is added.
        clock: when its time is over, no other feature is tried.
    """

    def __init__(self, faults: Faults, clock: Clock):
        self.table: dict[str, dict[str, list[Judged]]] = {}
        self.untried: list[str] = []
        self._faults = faults
        self._clock = clock
        self._operation = faults.operation
        self._features = faults.admission.features(faults.operation)
        self._dtypes = sorted(faults.judges, key=RANK.index)
        self._outside = {
            dtype: set(excluded(self._features, faults.admission, faults.operation, dtype)) for dtype in self._dtypes
        }

    def first_call(self) -> None:
        """Look for the fault of one short plain call."""
        dtype = self._dtypes[0]
        plain = self._plain(SEEDS[0])
        self._explain(self._tried(dtype, PLAIN, _shortened(plain) or plain))

    def explore(self) -> None:
        """Try all features while there is time, then look for the faults of the calls that are wrong."""
        self.try_all()
        # A plain call first, then the calls with one feature: what a simpler call shows explains the others.
        first = (trials.get(self._dtypes[0], ()) for trials in self.table.values())
        for judged in {judged.case: judged for trials in first for judged in trials}.values():
            if not self._faults.hurried:
                self._explain(judged)
        self._faults.absorb()

    def try_all(self) -> None:
        """Try all features while there is time; in a quick run, look for the fault of each wrong call at once."""
        first, *others = self._dtypes
        hurried = self._faults.hurried
        seeds = SEEDS[:1] if hurried else SEEDS
        for dtype, seed in [*((first, seed) for seed in seeds), *((dtype, SEEDS[0]) for dtype in others)]:
            plain = self._plain(seed)
            short = _shortened(plain)
            if not hurried and self._clock.left:
                short = _short(plain, self._tried(dtype, PLAIN, plain), self._features, partial(self._tried, dtype))
            together, together_have = (None, frozenset()) if hurried else self._together(dtype, plain)
            for feature in self._features:
                case = together if feature.name in together_have else _with(feature, plain, short)
                if case is None:
                    continue
                if self._clock.left or feature.name in self._outside[dtype]:
                    judged = self._tried(dtype, feature.name, case)
                    if hurried:
                        self._explain(judged)
                elif feature.name not in self.table and feature.name not in self.untried:
                    self.untried.append(feature.name)

    def _together(self, dtype: str, plain: Any) -> tuple[Any | None, frozenset[str]]:
        """A call with all features of sizes at once, and their names; none if its verdict differs from a plain call's.

        Each new shape takes time: XLA compiles for it, an interpreter runs through it.
        """
        added = [each for each in self._features if each.of_sizes and not each.present(plain)]
        added = [each for each in added if each.name not in self._outside[dtype]]
        case = plain
        for feature in added:
            case = case if feature.present(case) else feature.added(case)
        found = names(case, self._features) - names(plain, self._features)
        inside = [self._faults.admission.admitted(self._operation.about, dtype, each) for each in (plain, case)]
        if len(found) < 2 or found != {each.name for each in added} or inside != [plain, case] or not self._clock.left:
            return None, frozenset()
        alone, together = (self._faults.judges[dtype](each) for each in (plain, case))
        if not together.served or (together.value, together.gradient) != (alone.value, alone.gradient):
            return None, frozenset()
        return case, found

    def _plain(self, seed: int) -> Any:
        return described(self._operation).plain(seed)

    def _tried(self, dtype: str, name: str, case: Any) -> Judged:
        """The verdict on a case, under the name of a feature."""
        faults = self._faults
        inside = faults.admission.admitted(self._operation.about, dtype, case)
        if name in self._outside[dtype] or inside is None:
            judged = Judged(case=case, dtype=dtype, value=NOT_PROMISED, gradient=NOT_PROMISED, arrays=())
        else:
            judged = faults.judges[dtype](inside)
        self.table.setdefault(name, {}).setdefault(dtype, []).append(judged)
        faults.served[name] = faults.served.get(name, False) or judged.served
        return judged

    def _explain(self, judged: Judged) -> None:
        if judged.wrong:
            self._faults.explain(judged.case, judged.dtype)


def _short(plain: Any, judged: Judged, features: Iterable[Feature], tried: Callable[[str, Any], Judged]) -> Any | None:
    """The plain case with few steps, to save time; None if its verdict differs from that of the plain case.

    Args:
        judged: the plain case.
        tried: judges a case under the name of a feature.
    """
    short = _shortened(plain)
    if short is None:
        return None
    gained = (feature.name for feature in features if feature.present(short) and not feature.present(plain))
    other = tried(next(gained, PLAIN), short)
    return short if (other.value, other.gradient) == (judged.value, judged.gradient) else None


def _shortened(plain: Any) -> Any | None:
    """The case with `SHORT_STEPS` steps; None if it does not have more."""
    short = with_steps(plain, SHORT_STEPS)
    return short if short.steps < plain.steps else None


def _with(feature: Feature, plain: Any, short: Any | None) -> Any | None:
    """A plain case with one added feature, with few steps unless the feature depends on their number.

    None if the feature cannot be added, or every case has it.
    """
    if feature.present(plain):
        return None
    if short is not None and not feature.present(short):
        other = feature.added(short)
        if feature.present(other) and other.steps <= short.steps:
            return other
    other = feature.added(plain)
    return other if feature.present(other) else None
