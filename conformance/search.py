"""The search for the smallest case that breaks a law."""

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.cases import to_json
from conformance.checker import Checker, LawError
from conformance.comparison import CallRecord
from conformance.implementation import RefusedError
from conformance.laws import Law
from conformance.options import SHRINK_SECONDS
from conformance.outcome import BreakKind, Counterexample


@dataclass(frozen=True)
class Scene:
    """What was seen when a law broke: more than a report keeps, for the script that shows it again.

    Attributes:
        case: the case.
        error: what was raised, by the law or by the target.
        calls: the calls of the target up to there.
    """

    case: Any
    error: Exception
    calls: list[CallRecord]


class Search:
    """Counts examples and keeps the smallest one that broke the law.

    Args:
        excused: arrays (or exceptions) in which the law is known to break; a case that breaks it there is passed over.
    """

    def __init__(
        self, law: Law, checker: Checker, shrink_seconds: float = SHRINK_SECONDS, excused: frozenset[str] = frozenset()
    ):
        self.law = law
        self.checker = checker
        self.examples = 0
        self.excused = excused
        self.found: Counterexample | None = None
        self.scene: Scene | None = None
        self.worst_broken: float | None = None
        self.deadline: float | None = None
        self._shrink_seconds = shrink_seconds
        self._smallest: int | None = None

        def example(case: Any) -> None:
            if self.deadline is not None and time.monotonic() > self.deadline:
                return
            failure = self.attempt(case)
            if failure is not None:
                raise failure

        self.example: Callable[[Any], None] = example

    def attempt(self, case: Any) -> Exception | None:
        if self.found is None:
            self.examples += 1
        self.checker.begin()
        try:
            self.law.check(self.checker, case)
        except RefusedError:
            raise
        except LawError as broken:
            verdict = broken.verdict
            if broken.where in self.excused:
                return None
            numbers = (
                {}
                if verdict is None
                else {name: getattr(verdict, name) for name in ("index", "got", "expected", "allowed", "ulp")}
            )
            self._note(case, broken, str(broken), broken.kind, **numbers)
            if verdict is not None:
                self.worst_broken = max(verdict.worst, self.worst_broken or 0.0)
            # One class whatever the text: to Hypothesis every break of a law is the same fault, and it shrinks on.
            return _FaultError()
        except Exception as error:
            if type(error).__name__ in self.excused:
                return None
            frame = traceback.extract_tb(error.__traceback__)[-1]
            at = f"{Path(frame.filename).name}:{frame.lineno}"
            text = str(error).strip().split("\n")[0][:300]
            self._note(
                case,
                error,
                f"raised {type(error).__name__}: {text} ({at})",
                BreakKind(type(error).__name__, "exception"),
            )
            return _FaultError()
        self.checker.end()
        return None

    def _note(self, case: Any, error: Exception, problem: str, kind: BreakKind, **numbers: Any) -> None:
        if self.found is None:
            self.checker.end()
            self.deadline = time.monotonic() + self._shrink_seconds
        if self._smallest is None or case.size <= self._smallest:
            self._smallest = case.size
            self.found = Counterexample(
                case=case.describe(), problem=problem, kind=kind, **numbers, stored=to_json(case)
            )
            self.scene = Scene(case, error, self.checker.calls)


class _FaultError(Exception):
    """What Hypothesis sees of a broken law."""
