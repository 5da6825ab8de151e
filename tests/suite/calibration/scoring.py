"""Counts the false alarms: every variant of an operation on every case, value and gradient."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.base.dtypes import accumulation, rounded
from conformance.operations import LOG_SCALE
from conformance.tolerance import budget
from conformance.tolerance.staged import stages
from tests.suite.calibration.families import Family, families
from tests.suite.calibration.subjects import FamilyCall, Subject

QUANTILES = (0.5, 0.9, 0.99, 0.999)


@dataclass
class Score:
    """The outcome of one variant under the budget.

    Attributes:
        subject, variant: their names.
        worst: of each case, its largest error over its budget; above 1 is a false alarm.
        dtypes: of each case, its dtype.
        unrounded: the same before the last rounding, which may take up all of a 16-bit output's budget.
        refused: the cases that raised an alarm, each with what was refused.
        largest: of each output and gradient, the largest of ``worst``.
    """

    subject: str
    variant: str
    worst: list[float] = field(default_factory=list)
    unrounded: list[float] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    refused: list[tuple[str, tuple[str, Any]]] = field(default_factory=list)
    largest: dict[str, float] = field(default_factory=dict)

    @property
    def cases(self) -> int:
        return len(self.worst)

    @property
    def false_alarms(self) -> int:
        return int(np.count_nonzero(np.asarray(self.worst) > 1))

    @property
    def worst_ratio(self) -> float:
        return max(self.worst, default=0.0)

    def quantiles(self) -> dict[str, float]:
        return {f"{q:g}": float(np.quantile(self.worst, q)) for q in QUANTILES} if self.worst else {}

    def by_dtype(self, ratios: list[float]) -> dict[str, float]:
        """The largest of ``worst`` or ``unrounded`` in each dtype."""
        found: dict[str, float] = {}
        for dtype, ratio in zip(self.dtypes, ratios, strict=True):
            found[dtype] = max(ratio, found.get(dtype, 0.0))
        return found


Ratios = dict[str, tuple[np.ndarray, np.ndarray]]


def compared(call: FamilyCall, outputs: dict, gradients: dict) -> Ratios:
    """The largest error over its budget of each output and gradient, case by case, and the same before rounding."""
    found = {}
    for at, (of, results) in enumerate((("", outputs), ("gradient of ", gradients))):
        expected, precision = call.expected[at], call.precision[at]
        for name in call.compared[at]:
            # A state was rescaled in float64: it was computed in its own dtype, and rounded once to that.
            output = call.dtype_of(name)
            got = results[name] if not of and name in LOG_SCALE else rounded(results[name], output)
            worst = []
            for given, dtype in ((got, output), (results[name].astype(np.float64), accumulation(output))):
                for slack in stages(expected.slack[name]):
                    allowed = budget.allowed(expected.values[name], slack, precision, dtype)
                    ratio = budget.ratios(given, expected.values[name], allowed, dtype)
                    if (ratio <= 1).all():
                        break
                worst.append(call.by_case(name, ratio).max(axis=1, initial=0.0))
            found[f"{of}{name}"] = (worst[0], worst[1])
    return found


def judged(subject: Subject, family: Family) -> dict[str, Ratios]:
    """Every variant on one family: ``variant → output → worst ratios of each case``."""
    found: dict[str, Ratios] = {name: {} for name in subject.variants}
    with np.errstate(all="ignore"):
        for call in subject.calls(family, subject.precision):
            for name, variant in subject.variants.items():
                for where, (rounded_once, unrounded) in compared(call, *call.run(variant)).items():
                    before = found[name].get(where, (0.0, 0.0))
                    found[name][where] = (np.maximum(rounded_once, before[0]), np.maximum(unrounded, before[1]))
    return found


def calibrate(subject: Subject, count: int, seed: int, tick: Callable[[int], None] = lambda cases: None) -> list[Score]:
    """The scores of all variants of an operation on ``count`` cases."""
    scores = {name: Score(subject.name, name) for name in subject.variants}
    for label, (strategy, share) in subject.strategies.items():
        name = f"{subject.name} {label}"
        wanted = round(count * share)
        for family in families(strategy, name, subject.strata, subject.dtypes, wanted, seed, subject.eager):
            for variant, found in judged(subject, family).items():
                _note(scores[variant], family, found)
            tick(len(family.cases))
    return list(scores.values())


def _note(score: Score, family: Family, found: Ratios) -> None:
    worst, unrounded = np.zeros(len(family.cases)), np.zeros(len(family.cases))
    for where, (ratio, before) in found.items():
        worst, unrounded = np.maximum(worst, ratio), np.maximum(unrounded, before)
        score.largest[where] = max(score.largest.get(where, 0.0), float(ratio.max()))
        score.refused += [(where, (family.dtype, family.cases[at])) for at in np.flatnonzero(ratio > 1)]
    score.worst += worst.tolist()
    score.unrounded += unrounded.tolist()
    score.dtypes += [family.dtype] * len(worst)
