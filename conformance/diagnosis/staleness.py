"""Finds out by experiment whether a target's results are stale: computed from values of an earlier call.

Such a target keeps what it computed, or compiled, by the shapes of a call. Experiments that repeat a shape see it wrong
everywhere; with sizes that were not tried before, its first call is right and later ones are wrong.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from conformance.diagnosis.experiments import Experiments, reseeded, with_steps
from conformance.features import described
from conformance.features.calls import with_lengths
from conformance.formulas.judged import RIGHT, WRONG, Judge, Judged, shapes

STEPS = {True: 16, False: 4}
"""The number of steps of a plain call, and by which each other one is longer, by whether there is time for thorough
experiments. Most divisors on which kernels depend then divide the number of steps.
"""

SIZES = 5
"""The number of sizes that are tried.

By chance, a target that is wrong on half of all calls would be right on the first call of each size, and wrong on the
second one, once in a thousand times.
"""


def staleness(experiments: Experiments) -> tuple[str, Judged] | None:
    """The aspect that is wrong on every later call of a shape and right on the first one, with such a later call.

    A target that is wrong on a first call is not called again, and one that compiles each call is not called at all.
    """
    judge = experiments.judge
    if not judge.eager:
        return None
    cases = list(islice(_fresh(judge, STEPS[experiments.thorough]), SIZES))
    # Either of two calls may come first.
    pairs = [(case, reseeded(case, 1))[:: -1 if number % 2 else 1] for number, case in enumerate(cases)]
    if not pairs or not (aspect := _worse(judge(pairs[0][0]), judge, pairs[0][1])):
        return None
    # All first calls come before the second ones: a target may be wrong on every second call.
    if any(judge(first).status(aspect) != RIGHT for first, _ in pairs):
        return None
    if any(judge(later).status(aspect) != WRONG for _, later in pairs):
        return None
    return aspect, judge(pairs[0][1])


def _worse(first: Judged, judge: Judge, later: Any) -> str | None:
    """The aspect in which a later call is wrong and the first one right."""
    if first.value != RIGHT:
        return None
    if judge(later).value == WRONG:
        return "value"
    return "gradient" if (first.gradient, judge(later).gradient) == (RIGHT, WRONG) else None


def _fresh(judge: Judge, more: int) -> Iterator[Any]:
    """Plain cases of sizes that were not tried: more steps, or more sequences if the arrays have no axis of steps."""
    plain = with_steps(described(judge.operation).plain(0), more)
    before = shapes(judge.call_of(plain))
    for number in range(1, 32):
        grown = _longer(plain, number * more)
        if shapes(judge.call_of(grown)) == before:
            grown = replace(plain, B=plain.B + number * more)
        if shapes(judge.call_of(grown)) not in judge.shapes:
            yield grown


def _longer(case: Any, more: int) -> Any:
    if hasattr(case, "inner"):
        return replace(case, inner=_longer(case.inner, more))
    return with_lengths(case, lambda S: S + more)
