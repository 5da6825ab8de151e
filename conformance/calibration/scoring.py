"""Counts the false alarms: every variant of an operation on every case, value and gradient."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from conformance import budget
from conformance.calibration.families import Family, families
from conformance.calibration.subjects import Call, Subject
from conformance.dtypes import rounded

QUANTILES = (0.5, 0.9, 0.99, 0.999)


@dataclass
class Score:
    """What the budget says of one variant.

    Attributes:
        op, variant: their names.
        worst: of each case, its largest error over its budget; above 1 is a false alarm.
        dtypes: of each case, its dtype.
        refused: the cases that raised an alarm, each with what was refused.
    """

    op: str
    variant: str
    worst: list[float] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    refused: list[tuple[str, object]] = field(default_factory=list)
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

    def by_dtype(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for dtype, worst in zip(self.dtypes, self.worst, strict=True):
            found[dtype] = max(worst, found.get(dtype, 0.0))
        return found


def compared(call: Call, outputs: dict, gradients: dict) -> dict[str, np.ndarray]:
    """The largest error over its budget of each output and gradient, case by case."""
    found = {}
    for at, (of, results) in enumerate((("", outputs), ("gradient of ", gradients))):
        expected, precision = call.expected[at], call.precision[at]
        for name in call.compared[at]:
            dtype = call.dtype_of(name) if of or name not in ("C", "n") else "float64"
            # A state was rescaled in float64; it was computed in its own dtype, and rounded once to it.
            output = call.dtype_of(name)
            got = rounded(results[name], dtype)
            allowed = budget.allowed(expected.values[name], expected.slack[name], precision, output)
            ratio = budget.ratios(got, expected.values[name], allowed, output)
            found[f"{of}{name}"] = call.by_case(name, ratio).max(axis=1, initial=0.0)
    return found


def judged(subject: Subject, family: Family) -> dict[str, dict[str, np.ndarray]]:
    """Every variant on one family: ``variant → output → worst ratio of each case``."""
    found: dict[str, dict[str, np.ndarray]] = {name: {} for name in subject.variants}
    with np.errstate(all="ignore"):
        for call in subject.calls(family):
            for name, variant in subject.variants.items():
                for where, ratio in compared(call, *call.run(variant)).items():
                    found[name][where] = np.maximum(ratio, found[name].get(where, 0.0))
    return found


def calibrate(
    subject: Subject, count: int, seed: int, tick: Callable[[int], None] = lambda cases: None
) -> list[Score]:
    """The scores of all variants of an operation on ``count`` cases."""
    scores = {name: Score(subject.op, name) for name in subject.variants}
    for label, (strategy, share) in subject.strategies.items():
        name = f"{subject.op} {label}"
        for family in families(strategy, name, subject.strata, subject.dtypes, round(count * share), seed):
            for variant, found in judged(subject, family).items():
                score = scores[variant]
                worst = np.zeros(len(family.cases))
                for where, ratio in found.items():
                    worst = np.maximum(worst, ratio)
                    score.largest[where] = max(score.largest.get(where, 0.0), float(ratio.max()))
                    score.refused += [(where, (family.dtype, family.cases[at])) for at in np.flatnonzero(ratio > 1)]
                score.worst += worst.tolist()
                score.dtypes += [family.dtype] * len(worst)
            tick(len(family.cases))
    return list(scores.values())
