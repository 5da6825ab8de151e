"""Records of a diagnosis: causes of failures, and the envelope of calls for which a target is right."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance.tolerance.compared import ArrayOutcome

LEADING = 5
"""Number of causes at the head of a report."""


NOISE = 1e-3
"""Errors below this share of an array's largest value are excessive rounding, not a wrong formula."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One law in one dtype."""

    law: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.law} ({self.dtype})"


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One reason why laws fail.

    Attributes:
        sentence: the cause in words.
        ops: the operations in which it was found.
        kind: ``value``, ``gradient``, or ``behaviour`` if a law fails although value and gradient are right.
        formula: the formula that the target computes instead, if it was recognised.
        features: the features that a call must have to show it; empty if every call shows it.
        natures: how arrays are wrong: ``number``, ``nan``, ``exception`` …
        arrays: every array of the smallest case, including those that are right.
        patterns: for a wrong array, a description of what it is instead.
        problem: the exception that was raised, if any.
        case, dtype: the smallest case, in words, and its dtype.
        stored: the case as `conformance.cases.from_json` reads it.
        explains: the checks that fail for this reason.
        script, script_text, script_note: the script of the smallest case, if one was saved.
    """

    sentence: str
    ops: tuple[str, ...]
    kind: str
    formula: str | None = None
    features: tuple[str, ...] = ()
    natures: tuple[str, ...] = ()
    arrays: tuple[ArrayOutcome, ...] = ()
    patterns: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    case: str = ""
    dtype: str = ""
    stored: Mapping[str, Any] = field(default_factory=dict)
    explains: tuple[Check, ...] = ()
    script: str | None = None
    script_text: str | None = None
    script_note: str = ""

    @property
    def error(self) -> float:
        """The largest error of an array, relative to that array's largest value."""
        return max((array.error for array in self.arrays), default=0.0)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One feature in one dtype.

    Attributes:
        value, gradient: ``right``, ``wrong``, ``not served``, or ``not tried``; an empty text for
            gradients that do not exist here.
        cases: the number of cases that were judged.
        held, wrong: the number of arrays of these cases that were right, and that were wrong.
        note: the target's message if it served nothing, or the exception that it raised.
    """

    value: str
    gradient: str
    cases: int = 0
    held: int = 0
    wrong: int = 0
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One feature in every dtype.

    Attributes:
        feature: its name; ``plain call`` in the first row.
        sentence: the meaning of the feature.
    """

    feature: str
    sentence: str
    cells: Mapping[str, Cell]


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """The calls for which an operation is right: a plain call, and one feature at a time.

    Attributes:
        summary: the table in one sentence.
    """

    op: str
    rows: tuple[Row, ...]
    summary: str

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(dtype for row in self.rows for dtype in row.cells))


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The diagnosis of one target.

    Attributes:
        causes: the causes found; those that explain the most checks come first.
        envelopes: one for each operation that was tried.
        seconds: duration of the experiments.
        note: what was left out and why; empty if nothing was.
    """

    causes: tuple[Cause, ...] = ()
    envelopes: tuple[Envelope, ...] = ()
    seconds: float = 0.0
    note: str = ""
