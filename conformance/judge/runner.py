"""Tries laws on a target: chooses the number and sizes of cases, and collects the results."""

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from conformance.base.options import RunOptions
from conformance.features import features_of
from conformance.features.feature import names
from conformance.frameworks.implementation import Implementation, RefusedError, without_gradients
from conformance.judge.avoidance import Avoidance, Blame
from conformance.judge.draws import Draw, planned, sampled
from conformance.judge.known_failures import known_failure
from conformance.judge.outcome import Counterexample, Found, LawResult
from conformance.judge.search import Search, retried
from conformance.judge.selection import agenda, why_not
from conformance.laws import Law
from conformance.laws.checker import Checker
from conformance.tolerance.compared import UNSOUND, BreakKind, comparisons_are_sound

SHRINK_SECONDS_OF_ALL = 60.0
"""Seconds for finding smaller cases in all laws that one process tries; a broken target breaks most of them."""

LEAST_SHRINK_SECONDS = 0.5

LEAST_SECONDS_OF_A_QUICK_SHRINK = 0.1
"""The same in a quick run, whose smaller cases are those of the cause that is found next."""

SAMPLE = 5
"""Number of cases of each part of a law that are drawn to see what all its cases have in common."""


Save = Callable[..., Counterexample]


@dataclass
class Runner:
    """Tries laws on one target, one after the other.

    Attributes:
        announce: called with each case, as JSON, before the target is called with it, and with None after the last one.
        note: called with each case that breaks a law in a way not seen before.
        save: saves the script of a failure (`conformance.failures.save`); None to save none.
        blame: what was found out about refused calls, by operation and dtype.
        shrinking: seconds left for finding smaller cases.
    """

    implementation: Implementation
    options: RunOptions
    announce: Callable[[str | None], None] = lambda case: None
    note: Callable[[Counterexample], None] = lambda found: None
    save: Save | None = None
    blame: dict[tuple[str, str], Blame] = field(default_factory=dict)
    shrinking: float = SHRINK_SECONDS_OF_ALL

    def __post_init__(self) -> None:
        options = self.options
        self.implementation = self.implementation.in_run(
            kernel_backend=options.kernel_backend, contract=options.contract
        )

    def result(
        self,
        law: Law,
        dtype: str,
        *,
        fatal: Mapping[str, BreakKind] | None = None,
        last: bool = False,
    ) -> LawResult:
        """Try one law, and save a script for each way in which it breaks if the options ask for it.

        Args:
            fatal: cases, as JSON, that have ended a process and are not tried again, each with how it ended.
            last: whether to end with those cases, and to try no new case.
        """
        start = time.monotonic()
        implementation: Implementation = self.implementation
        if self.options.only == "values":
            implementation = without_gradients(implementation, "--only values asks for no gradient")
        reason = why_not(implementation, law, dtype)
        if reason is not None:
            return LawResult(law=law, dtype=dtype, status="skipped", reason=reason)
        known = known_failure(self.options.known_failures, law, dtype)
        checker = Checker(implementation, dtype, law.forward)
        checker.gradients_only = self.options.only == "gradients"
        draws = [] if law.cases is None else planned(law, dtype, self.implementation, self.options)

        def sample() -> list[Any]:
            return [case for draw in draws for case in sampled(draw.cases, draw.seed, SAMPLE)]

        memory = self.blame.setdefault((law.op, dtype), Blame())
        avoidance = Avoidance(features_of(law.op), sample, self.options.max_steps, law.subject, memory)
        search = Search(law, checker, avoidance, self.announce, self.note, fatal=fatal or {}, last=last)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = self._search(search, draws, known=known is not None)
        self.announce(None)
        status, reason = self._status(search, found)
        if status == "passed" and not comparisons_are_sound():
            status, reason = "failed", UNSOUND
        counterexamples = tuple(
            # One script is enough for a list of calls: the others differ by one line.
            self._with_script(law, dtype, each, number)
            if status == "failed" and known is None and (number == 1 or law.rows is None)
            else each.counterexample
            for number, each in enumerate(found, 1)
        )
        measured = [each.worst for each in counterexamples if each.worst is not None]
        result = LawResult(
            law=law,
            dtype=dtype,
            status=status,
            reason=reason,
            examples=search.examples,
            refused=search.refusals(),
            worst=max([*measured, checker.worst]) or None,
            counterexamples=counterexamples,
            kinks=checker.kinks,
            elements=checker.elements,
            branches=dict(checker.branches),
            points=tuple(checker.points),
            seconds=time.monotonic() - start,
            features=self._features(law, search.held),
            saved=search.saved if found else 0.0,
        )
        return result if known is None else known.status_of(result)

    def _features(self, law: Law, held: list[Any]) -> dict[str, int]:
        """The number of passed cases that have each feature, for the two laws from which an envelope is drawn."""
        if law.name not in ("value", "gradient") or not features_of(law.op):
            return {}
        counts = Counter(name for case in held for name in names(case, features_of(law.op)))
        return {"": len(held), **counts}

    def _search(self, search: Search, draws: list[Draw], *, known: bool) -> list[Found]:
        only_whether = known or self.options.shrink_seconds == 0 or search.last
        if search.law.rows is not None:
            for row in search.law.rows():
                search.judge(row)
            return search.shrink([], 0.0)
        first_only = known or self.options.quick or self.options.shrink_seconds == 0
        for draw in draws:
            if draw.shrinks_only:
                continue
            search.collect(draw, stop_at_first=first_only)
            if first_only and search.found:
                break
        if only_whether:
            return search.shrink([], 0.0)
        if self.options.quick:
            # A run that finds a failure takes no longer than one that finds none: half of what was left out goes to
            # smaller cases, the other half to causes.
            planned = sum(draw.examples for draw in draws if not draw.shrinks_only)
            search.saved = self._seconds_of_a_case(search) * max(0, planned - search.examples) / 2
            seconds = max(search.saved, LEAST_SECONDS_OF_A_QUICK_SHRINK)
            return search.shrink(_freely_first(draws), min(self.options.shrink_seconds, seconds))
        start = time.monotonic()
        found = search.shrink(_freely_first(draws), self._shrink_seconds())
        self.shrinking -= time.monotonic() - start
        return found

    def _seconds_of_a_case(self, search: Search) -> float:
        """Seconds of computation for one more case; the first of a process takes longer, as it loads what it needs."""
        if not search.found:
            return 0.0
        case, checker = next(iter(search.found.values())).case, search.checker
        start = time.thread_time()
        with suppress(RefusedError):
            retried(checker.implementation, search.law, checker.dtype, case, self.announce, search.fatal)
        return time.thread_time() - start

    def _shrink_seconds(self) -> float:
        """A quarter of the time left for all laws, so that the first laws, which explain the others, get most of it."""
        share = max(self.shrinking / 4, LEAST_SHRINK_SECONDS)
        return min(self.options.shrink_seconds, share)

    def _with_script(self, law: Law, dtype: str, found: Found, number: int) -> Counterexample:
        options = self.options
        if options.failures is None or self.save is None:
            return found.counterexample
        return self.save(self.implementation, law, dtype, found, options.failures, number, run=not options.quick)

    def _status(self, search: Search, found: list[Found]) -> tuple[str, str | None]:
        if found:
            differs = search.law.kind == "contract" and not self.implementation.keeps_contract
            return "differs" if differs else "failed", found[0].counterexample.problem
        if search.suite_failure:
            return "suite failed", search.suite_failure
        if search.examples:
            return "passed", None
        if search.refused:
            return "not served", search.refusal
        return "skipped", f"it has no case of at most {self.options.max_steps} steps"


def run(implementation: Implementation, options: RunOptions) -> Iterator[LawResult]:
    """Try every law on one target, in this process."""
    runner = Runner(implementation, options)
    for law, dtype in agenda(implementation, options):
        yield runner.result(law, dtype)


def run_law(implementation: Implementation, law: Law, dtype: str, options: RunOptions) -> LawResult:
    """Try one law; nothing is written anywhere."""
    return Runner(implementation, replace(options, failures=None)).result(law, dtype)


def _freely_first(draws: list[Draw]) -> list[Draw]:
    """The freely drawn parts before the pinned ones, the smallest sizes first, since they contain the small cases."""
    return sorted(draws, key=lambda draw: draw.pinned)
