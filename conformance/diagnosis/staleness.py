"""Finds out by experiment whether a target's results are stale: computed from values of an earlier call.

Such a target keeps what it computed, or compiled, by the shapes of a call. Experiments that repeat a shape see it wrong
everywhere; with sizes that were not tried before, its first call is right and later ones are wrong.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from conformance.cases import as_drawn
from conformance.diagnosis.experiments import Experiments, reseeded, with_steps
from conformance.features import described
from conformance.features.calls import with_lengths
from conformance.formulas.judged import GRADIENT, RIGHT, WRONG, Judged, shapes

STEPS = {True: 16, False: 4}
"""The number of steps of a plain call, by whether there is time for thorough experiments."""

MOST = 32
"""The number of sizes that are derived from a case: each has `STEPS` more steps than the one before.

Most divisors on which kernels depend then still divide the number of steps.
"""

MOST_STEPS = 64
"""The largest number of steps of another case; a longer case is shortened first."""

SIZES = 5
"""The number of sizes that are tried.

By chance, a target that is wrong on half of all calls would be right on the first call of each size, and wrong on the
second one, once in a thousand times.
"""

FEW_SIZES = 2
"""The same if the results are those of the first calls, which is no coincidence, or if other calls were stale."""


@dataclass(frozen=True, kw_only=True)
class Stale:
    """A target whose results are stale.

    Attributes:
        aspect: ``value`` or ``gradient``.
        example: a later call, which is wrong.
        copied: whether its wrong arrays are those of the earlier call.
        differing: what differs between the two calls, as a clause; empty if it is any value.
    """

    aspect: str
    example: Judged
    copied: bool
    differing: str = ""

    def is_like(self, other: "Stale") -> bool:
        """Whether another experiment would be described in the same words."""
        return (self.aspect, self.copied, self.differing) == (other.aspect, other.copied, other.differing)

    def sentence(self, op: str) -> str:
        if self.copied:
            subject = "result" if self.aspect == "value" else "gradient"
            return f"{op}: the {subject} of a call is that of an earlier call of the same shapes"
        if self.example.problem and not self.example.wrong_arrays:
            later = f"on later ones{self.differing} it {self.example.problem}"
            return f"{op} is right on the first call with given shapes, and {later}"
        later = f"wrong on later ones{self.differing}"
        return f"The {self.aspect} of {op} is right on the first call with given shapes, and {later}"


class Staleness:
    """Experiments with calls of sizes that were not tried before.

    Args:
        experiments: those in the dtype of the wrong case.
    """

    def __init__(self, experiments: Experiments):
        self._experiments = experiments
        self._judge = experiments.judge
        self._more = STEPS[experiments.thorough]
        self._plain: bool | None = None
        self._first_is_right = False

    def of(self, case: Any, known: bool = False) -> Stale | None:
        """The way in which results of calls like this case, or of plain calls, are stale; None if they are not.

        A target that is wrong on a first plain call is not called again.

        Args:
            known: whether the results of other calls were stale.
        """
        if not self._judge.eager:
            # A call is compiled once for its shapes and options, with all of its arrays as arguments.
            return None
        if self._plain is None:
            found = self._of(with_steps(described(self._judge.operation).plain(0), self._more), known)
            self._plain = True if found is not None else self._first_is_right
            if found is not None:
                return found
        short = case if case.steps <= MOST_STEPS else with_steps(case, MOST_STEPS)
        return self._of(as_drawn(short), known) if self._plain else None

    def _of(self, case: Any, known: bool) -> Stale | None:
        fresh = self._fresh(case)
        first = self._tried(next(fresh, None))
        self._first_is_right = first is None or {first.value, first.gradient} <= {RIGHT, None}
        if first is None or first.value != RIGHT:
            return None
        for change, differing in self._changes(first):
            later = self._tried(change(first.case))
            aspect = None if later is None else _worse(first, later)
            if later is not None and aspect is not None:
                same = _copied(first, later, aspect)
                others = list(islice(fresh, (FEW_SIZES if same or known else SIZES) - 1))
                # Without other values, only what differs was ignored.
                found = Stale(aspect=aspect, example=later, copied=same and not differing, differing=differing)
                return found if self._always([(grown, change) for grown in others], found) else None
        return None

    def _always(self, pairs: list[tuple[Any, Callable[[Any], Any]]], found: Stale) -> bool:
        """Whether the first call of each pair is right and the second wrong, whichever of the two comes first.

        By now it is likely, and so these calls are made even if time is over.
        """
        orders = []
        for number, (grown, change) in enumerate(pairs):
            both = (grown, change(grown))
            orders.append(both if number % 2 else both[::-1])
        # All first calls come before the second ones: a target may be wrong on every second call.
        firsts = []
        for case, _ in orders:
            first = self._judge(case)
            if first is None or first.status(found.aspect) != RIGHT:
                return False
            firsts.append(first)
        for first, (_, case) in zip(firsts, orders, strict=True):
            later = self._judge(case)
            if later is None or later.status(found.aspect) != WRONG:
                return False
            if found.copied and not _copied(first, later, found.aspect):
                return False
        return True

    def _tried(self, case: Any | None) -> Judged | None:
        return self._judge(case) if case is not None and self._experiments.clock.left else None

    def _fresh(self, case: Any) -> Iterator[Any]:
        """The case with other sizes: more steps, or more sequences if its arrays have no axis of steps."""
        before = shapes(self._judge.call_of(case))
        for more in (self._more * number for number in range(1, MOST)):
            grown = _longer(case, more)
            if shapes(self._judge.call_of(grown)) == before:
                grown = replace(case, B=case.B + more)
            if shapes(self._judge.call_of(grown)) not in self._judge.shapes:
                yield grown

    def _changes(self, first: Judged) -> Iterator[tuple[Callable[[Any], Any], str]]:
        """Changes of a case that keep the shapes of its arrays, each with a clause that says what it changes."""
        yield lambda case: reseeded(case, 1), ""
        if first.gradient not in (RIGHT, None):
            # What is wrong on a first call is not stale, unless a gradient is missing because the value is.
            return
        if len(getattr(first.case, "lengths", None) or ()) > 1:
            yield _other_lengths, " whose sequences have other lengths"
        before = self._judge.call_of(first.case)
        for feature in self._experiments.features:
            change = feature.without if feature.present(first.case) else feature.added
            after = self._judge.call_of(change(first.case))
            given = {**before.options, **after.options}
            names = [name for name in given if before.options.get(name) != after.options.get(name)]
            if names and shapes(after) == shapes(before):
                yield change, f" with another {' and '.join(names)}"


def _worse(first: Judged, later: Judged) -> str | None:
    """The aspect in which a later call is wrong and the first one right."""
    if later.value == WRONG:
        return "value"
    return "gradient" if (first.gradient, later.gradient) == (RIGHT, WRONG) else None


def _copied(first: Judged, later: Judged, aspect: str) -> bool:
    """Whether the wrong arrays of a later call are those of the first one."""
    wrong = [x.where for x in later.wrong_arrays if x.where.startswith(GRADIENT) == (aspect == "gradient")]
    return bool(wrong) and all(
        name in first.got
        and name in later.got
        and np.array_equal(first.got[name].values, later.got[name].values, equal_nan=True)
        for name in wrong
    )


def _longer(case: Any, more: int) -> Any:
    if hasattr(case, "inner"):
        return replace(case, inner=_longer(case.inner, more))
    return with_lengths(case, lambda S: S + more)


def _other_lengths(case: Any) -> Any:
    """The packed case with one step less in its longest sequence and one more in another."""
    lengths = list(case.lengths)
    longest = lengths.index(max(lengths))
    lengths[longest] -= 1
    lengths[longest - 1] += 1
    return replace(case, lengths=tuple(lengths))
