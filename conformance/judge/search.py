"""The search for cases that break a law: draws them, counts those served and refused, and shrinks what breaks.

First, all cases are drawn and judged. Then, for each kind of break that was seen, Hypothesis draws the same
cases once more (their outcome is known) and shrinks towards the smallest that breaks the law in the same way.
"""

import json
import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import hypothesis
from hypothesis import Phase
from hypothesis.errors import HypothesisException

from conformance.base.exceptions import (
    name_of,
    place_in_suite,
    place_of,
    raised,
    raised_by_suite,
    raised_by_target,
)
from conformance.base.options import UNSHARED
from conformance.base.result_form import WrongResultError
from conformance.cases import simpler, simplicity, to_json
from conformance.frameworks.implementation import Implementation, RefusedError, without_gradients
from conformance.judge.avoidance import Avoidance
from conformance.judge.draws import Draw, run_draw
from conformance.judge.outcome import Counterexample, Found, Refused
from conformance.laws import Law
from conformance.laws.checker import Checker, LawError
from conformance.laws.comparison import CallRecord
from conformance.tolerance.compared import ENDINGS, BreakKind, ProcessEndedError

KINDS = 4
"""Maximum number of kinds of break with a counterexample; further kinds of one law say nothing new."""

SMALL = 400
"""Size of a case below which it is tried in any case when a smaller one is looked for."""

FAR = 1e3
"""After a law was broken: an array that is off by more roundoffs of its largest element counts as wrong, although its
tolerance is not known. Most of the time would go to tolerances of what is wrong by far. The smallest case is compared
in full.
"""

FRUITLESS = 20
"""Number of refusals, without a single served case, after which the law counts as not served."""


@dataclass
class Search:
    """Judges cases of one law on one target.

    Attributes:
        announce: called with each case, as JSON, before the target is called with it.
        note: called with each case that breaks the law in a way not seen before.
        fatal: cases, as JSON, that ended the target's process when they were tried, each with how; they are not
            tried again.
        last: whether the search ends after the last of these.
        examples: cases that were served and judged before any shrinking.
        refused: cases that were not served.
        found: by kind of break, in the order in which the kinds were seen.
        held: the cases for which the law holds.
        saved: see `conformance.judge.outcome.LawResult`.
        suite_failure: how the suite itself failed in a case, which says nothing about the target; empty if it did not.
    """

    law: Law
    checker: Checker
    avoidance: Avoidance
    announce: Callable[[str | None], None] = lambda case: None
    note: Callable[[Counterexample], None] = lambda found: None
    fatal: Mapping[str, BreakKind] = field(default_factory=dict)
    last: bool = False
    examples: int = 0
    refused: int = 0
    refusal: str = ""
    found: dict[BreakKind, Found] = field(default_factory=dict)
    held: list[Any] = field(default_factory=list)
    saved: float = 0.0
    suite_failure: str = ""
    _first: Found | None = None
    _outcomes: dict[str, tuple[BreakKind, ...] | None] = field(default_factory=dict)
    _counted: set[str] = field(default_factory=set)
    _passed_over: set[str] = field(default_factory=set)

    def collect(self, draw: Draw, *, stop_at_first: bool = False) -> None:
        """Draw cases and judge them all; refused cases do not count, and others are drawn instead."""
        before, refused_before = self.examples, self.refused
        repeated = 0

        def example(case: Any) -> None:
            nonlocal repeated
            enough = self.examples - before >= draw.examples
            too_many = self.refused - refused_before > draw.examples + FRUITLESS // 4
            fruitless = self.examples == 0 and self.refused >= FRUITLESS
            if enough or too_many or fruitless or (stop_at_first and self.found) or self._at_its_end():
                return
            case = self.avoidance.around(case)
            if self.avoidance.names and _key(case) in self._counted and repeated < draw.examples:
                repeated += 1
                hypothesis.reject()  # Without the refused features, two cases may be equal.
            kinds = self.judge(case)
            if kinds is None and self.avoidance.learn(case, self._is_refused):
                kinds = self.judge(self.avoidance.around(case))
            if kinds is None:
                hypothesis.reject()

        run_draw(example, draw, Phase.generate)

    def _at_its_end(self) -> bool:
        return self.last and all(key in self._outcomes for key in self.fatal)

    def shrink(self, draws: list[Draw], seconds: float) -> list[Found]:
        """The smallest case of each kind of break; a kind that another kind's smallest case also shows is omitted.

        Args:
            seconds: of computation, that finding smaller cases may take.
        """
        end = time.thread_time() + seconds
        kept: list[Found] = []
        seen: set[BreakKind] = set()
        # The search for a smaller case of one kind may meet another kind.
        while (kind := next((each for each in self.found if each not in seen), None)) and len(kept) < KINDS:
            seen.add(kind)
            if any(kind in found.kinds for found in kept):
                continue
            if seconds > 0:
                left = max(0.0, end - time.thread_time())
                self._shrink(kind, draws, left if kept else left / 2)
                self._simplify(kind)
            kept += self._in_full(kind)
        return kept or [self._first] if self._first is not None else []

    def _in_full(self, kind: BreakKind) -> list[Found]:
        """The smallest case of a kind of break, if it is one with tolerances that are computed in full."""
        found = self.found[kind]
        if kind.nature not in ("number", "nan", "infinity"):
            return [found]
        self.checker.far = math.inf
        kinds = self._judged(found.case, _key(found.case)) or ()
        return [self.found[kind]] if kind in kinds else []

    def _shrink(self, kind: BreakKind, draws: list[Draw], seconds: float) -> None:
        end, latest = time.thread_time() + seconds, time.monotonic() + UNSHARED * seconds

        def example(case: Any) -> None:
            case = self.avoidance.around(case)
            key = _key(case)
            over = time.thread_time() > end or time.monotonic() > latest
            large = case.size > 4 * self.found[kind].order[0] + SMALL
            if (over or large) and key not in self._outcomes:
                return
            if kind in (self.judge(case, counts=False) or ()):
                raise _FaultError

        for draw in draws:
            try:
                run_draw(example, draw, Phase.generate, Phase.shrink)
            except (_FaultError, HypothesisException):
                return  # The results are in `found`, whatever Hypothesis concludes from a search that was cut short.

    def _simplify(self, kind: BreakKind) -> None:
        """Give the smallest case of a kind of break the simplest elements with which the law breaks in that way."""
        if kind.nature in ENDINGS:
            return
        for case in simpler(self.found[kind].case):
            unchanged = self.avoidance.around(case) == case
            if unchanged and kind in (self.judge(case, counts=False) or ()):
                return  # It is in `found`: among cases of one size it comes first.

    def judge(self, case: Any, *, counts: bool = True) -> tuple[BreakKind, ...] | None:
        """The ways in which a case breaks the law, empty if it holds; None if the target refuses the case."""
        key = _key(case)
        if key not in self._outcomes:
            # That the law is broken is known from a tolerance that was computed in full.
            self.checker.far = FAR if self.found else math.inf
            self._outcomes[key] = self._judged(case, key)
        kinds = self._outcomes[key]
        if counts and key not in self._counted:
            self._counted.add(key)
            self.examples += kinds is not None
            if kinds == () and key not in self._passed_over:
                self.held.append(case)
            self.refused += kinds is None
        return kinds

    def _is_refused(self, case: Any) -> bool:
        return self.judge(case, counts=False) is None

    def _judged(self, case: Any, key: str) -> tuple[BreakKind, ...] | None:
        if key in self.fatal:
            kind = self.fatal[key]
            self._note(case, (kind,), {kind: (_ended(kind), ProcessEndedError(kind))})
            return (kind,)
        self.announce(key)
        try:
            broken = self._tried(case)
        except RefusedError as refusal:
            self.refusal = self.refusal or str(refusal)
            return None
        except raised_by_target() as error:
            kind, problem = _raised(error)
            if raised_by_suite(error) and not isinstance(error, WrongResultError):
                problem = raised(error, 300, place_in_suite(error))
                self.suite_failure = self.suite_failure or f"the suite itself {problem}, for {case.describe()}"
                self._passed_over.add(key)
                return ()
            self._note(case, (kind,), {kind: (problem, error)})
            return (kind,)
        kinds = tuple(dict.fromkeys(each.kind for each in broken))
        self._note(case, kinds, {each.kind: (str(each), each) for each in reversed(broken)})
        return kinds

    def _tried(self, case: Any) -> list[LawError]:
        """The breaks of the law; where a call is refused, without gradients if the law can do without them."""
        checker = self.checker
        implementation = checker.implementation
        try:
            return checker.run(self.law.check, case)
        except RefusedError as refusal:
            asked = [each for each in self.law.functions if implementation.no_gradient(each) is None]
            if self.law.gradient or self.law.forward or not asked:
                raise
            checker.implementation = without_gradients(implementation, str(refusal))
            try:
                return checker.run(self.law.check, case)
            except RefusedError:
                raise refusal from None
        finally:
            checker.implementation = implementation

    def _note(
        self, case: Any, kinds: tuple[BreakKind, ...], breaks: Mapping[BreakKind, tuple[str, BaseException]]
    ) -> None:
        if not kinds:
            return
        order = (case.size, simplicity(case), len(case.describe()), case.describe())
        for kind in kinds:
            before = self.found.get(kind)
            problem, error = breaks[kind]
            verdict = error.verdict if isinstance(error, LawError) else None
            worst = None if verdict is None or self.checker.far < math.inf else verdict.worst
            if before is not None and before.counterexample.worst is not None and worst is not None:
                worst = max(worst, before.counterexample.worst)
            if before is not None and order > before.order:
                continue
            counterexample = Counterexample(
                case=case.describe(),
                kind=kind,
                problem=problem,
                worst=worst,
                arrays=tuple(self.checker.arrays.values()) if verdict is not None else (),
                stored=to_json(case),
                **({} if verdict is None else {name: getattr(verdict, name) for name in _ELEMENT}),
            )
            calls = self.checker.calls if not isinstance(error, ProcessEndedError) else []
            self.found[kind] = Found(order, kinds, counterexample, case, error, calls)
            if self._first is None:
                self._first = self.found[kind]
            if before is None:
                self.note(counterexample)

    def refusals(self) -> Refused:
        return Refused(cases=self.refused, reason=self.refusal, features=self.avoidance.names)


_ELEMENT = ("index", "got", "expected", "allowed", "ulp")


class _FaultError(Exception):
    """The exception by which Hypothesis sees a break of the kind that it should shrink."""


def _key(case: Any) -> str:
    return json.dumps(to_json(case))


def _ended(kind: BreakKind) -> str:
    if kind.nature == "timeout":
        return "did not return within the --timeout of a case"
    return f"ended the process ({kind.where})"


def _raised(error: BaseException) -> tuple[BreakKind, str]:
    if isinstance(error, WrongResultError):
        return BreakKind(error.function, "result"), str(error)
    name, place = name_of(error), place_of(error)
    at = f" ({place})" if place else ""
    if isinstance(error, SystemExit):
        return BreakKind(name, "exit"), f"called sys.exit({error.code!r}){at}"
    return BreakKind(name, "exception"), raised(error, 300)


def retried(
    implementation: Implementation,
    law: Law,
    dtype: str,
    case: Any,
    announce: Callable[[str | None], None] = lambda case: None,
    fatal: Mapping[str, BreakKind] | None = None,
) -> tuple[list[Counterexample], list[CallRecord]]:
    """The ways in which one case breaks a law, and the calls of the target that were made.

    Raises:
        RefusedError: the target refuses the case.
    """
    search = search_of(implementation, law, dtype, announce, fatal or {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if search.judge(case) is None:
            raise RefusedError(search.refusal)
    return [found.counterexample for found in search.found.values()], search.checker.calls


def search_of(
    implementation: Implementation,
    law: Law,
    dtype: str,
    announce: Callable[[str | None], None],
    fatal: Mapping[str, BreakKind],
) -> Search:
    """The search that judges single cases of a law."""
    checker = Checker(implementation, dtype, law.forward)
    return Search(law, checker, Avoidance((), list, max_steps=0), announce, fatal=fatal)
