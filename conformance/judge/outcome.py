"""The result of a law: the cases that were judged, those that were refused, and the smallest that break it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance.laws import Law
from conformance.laws.comparison import CallRecord, Point
from conformance.tolerance.compared import ArrayOutcome, BreakKind

STATUSES = ("passed", "failed", "differs", "not served", "skipped", "known", "fixed", "suite failed")
"""The statuses, in the order in which a summary counts them."""


@dataclass(frozen=True, kw_only=True)
class Counterexample:
    """The smallest case found that breaks a law in one way.

    Attributes:
        case: the case in words.
        kind: where and how it breaks the law.
        problem: the failure in words.
        index, got, expected, allowed, ulp: the first bad element, if there is one.
        worst: the largest error over its tolerance, in any case that broke the law in this way; None where no number
            was compared.
        arrays: every array of the call that broke the law, those that are right too; empty where none was compared.
        stored: the case in the form that `conformance.cases.from_json` reads.
        script: the path of the saved script that shows this failure alone, if there is one.
        script_text: the text of the script.
        script_note: the result of running the script once.
        script_failed: whether it failed again; None if it was not run.
    """

    case: str
    kind: BreakKind
    problem: str
    index: tuple[int, ...] | None = None
    got: float | None = None
    expected: float | None = None
    allowed: float | None = None
    ulp: float | None = None
    worst: float | None = None
    arrays: tuple[ArrayOutcome, ...] = ()
    stored: dict[str, Any] = field(default_factory=dict)
    script: str | None = None
    script_text: str | None = None
    script_note: str = ""
    script_failed: bool | None = None

    @property
    def where(self) -> str:
        return self.kind.where


@dataclass(frozen=True, kw_only=True)
class Refused:
    """Cases that the target refused.

    Attributes:
        cases: the number of cases.
        reason: the target's message for the first one.
        features: the features of cases that further draws avoided for this reason.
    """

    cases: int = 0
    reason: str = ""
    features: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LawResult:
    """One law in one dtype on one target.

    Attributes:
        status: ``passed``, ``failed``, ``differs`` (the target deviates from gatespec's decisions, and does not
            claim to keep it), ``not served`` (the target refused every case), ``skipped`` (a function is absent, or the
            law does not apply),
            ``known`` (failed, which is known), ``fixed`` (passed, although it is known to fail), or ``suite failed``
            (an exception of the suite's own code, which says nothing about the target).
        reason: why it was not judged, what failed, or what is known.
        examples: cases that were served and judged.
        refused: cases that were refused.
        worst: the largest error over its tolerance; None if no numbers were compared.
        counterexamples: one for each kind of break, the first kind found first.
        kinks, elements: elements at which the gradient of either side passes, and all elements that were checked.
        branches: elements by the branch of the definition that they took.
        points: the errors of each example.
        seconds: the duration.
        features: for laws about value and gradient, the number of passed cases by feature; under "", of all cases.
        saved: seconds of computation that the cases would have taken that a quick run left out after the law broke.
    """

    law: Law
    dtype: str
    status: str
    reason: str | None = None
    examples: int = 0
    refused: Refused = field(default_factory=Refused)
    worst: float | None = None
    counterexamples: tuple[Counterexample, ...] = ()
    kinks: int = 0
    elements: int = 0
    branches: Mapping[str, float] = field(default_factory=dict)
    points: tuple[Point, ...] = ()
    seconds: float = 0.0
    features: Mapping[str, int] = field(default_factory=dict)
    saved: float = 0.0

    @property
    def counterexample(self) -> Counterexample | None:
        """The counterexample of the kind of break that was found first."""
        return self.counterexamples[0] if self.counterexamples else None

    @property
    def judged(self) -> bool:
        """Whether the target was called and served at least one call."""
        return self.status not in ("skipped", "not served", "suite failed")


@dataclass(frozen=True)
class Found:
    """The smallest case seen so far that breaks the law in one way.

    Attributes:
        order: smaller cases come first; among those of one size, those with simpler elements, then shorter words.
        kinds: all the ways in which it breaks the law.
        case: the case itself.
        error: the exception raised by the law or by the target.
        calls: the calls of the target up to that point.
    """

    order: tuple[int, int, int, str]
    kinds: tuple[BreakKind, ...]
    counterexample: Counterexample
    case: Any
    error: BaseException
    calls: list[CallRecord]
