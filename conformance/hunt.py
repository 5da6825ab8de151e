"""The search for the smallest case that breaks a law."""

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.implementation import RefusedError
from conformance.laws import Law
from conformance.trial import LawError, Trial

SHRINK_SECONDS = 12.0


@dataclass(frozen=True)
class Counterexample:
    """The smallest case found that breaks a law.

    Attributes:
        case: it, in words.
        problem: what went wrong.
        where: the array.
        index, got, expected, allowed, ulp: the first bad element, where there is one.
    """

    case: str
    problem: str
    where: str = ""
    index: tuple[int, ...] | None = None
    got: float | None = None
    expected: float | None = None
    allowed: float | None = None
    ulp: float | None = None


class Hunt:
    """Counts examples and keeps the smallest one that broke the law."""

    def __init__(self, law: Law, trial: Trial):
        self.law = law
        self.trial = trial
        self.examples = 0
        self.found: Counterexample | None = None
        self.worst_broken: float | None = None
        self.deadline: float | None = None
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
        self.trial.begin()
        try:
            self.law.check(self.trial, case)
        except RefusedError:
            raise
        except LawError as broken:
            verdict = broken.verdict
            numbers = (
                {}
                if verdict is None
                else {name: getattr(verdict, name) for name in ("index", "got", "expected", "allowed", "ulp")}
            )
            self._note(case, Counterexample(case.describe(), str(broken), broken.where, **numbers))
            if verdict is not None:
                self.worst_broken = max(verdict.worst, self.worst_broken or 0.0)
            # One class whatever the text: to Hypothesis every break of a law is the same fault, and it shrinks on.
            return _FaultError()
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            at = f"{Path(frame.filename).name}:{frame.lineno}"
            text = str(error).strip().split("\n")[0][:300]
            self._note(case, Counterexample(case.describe(), f"raised {type(error).__name__}: {text} ({at})"))
            return _FaultError()
        self.trial.end()
        return None

    def _note(self, case: Any, found: Counterexample) -> None:
        if self.found is None:
            self.deadline = time.monotonic() + SHRINK_SECONDS
        if self._smallest is None or case.size <= self._smallest:
            self._smallest, self.found = case.size, found


class _FaultError(Exception):
    """What Hypothesis sees of a broken law."""
