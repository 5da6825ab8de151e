"""Records of a diagnosis: causes of failures, and the envelope of calls for which a target is right."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance.outcome import ArrayOutcome

LEADING = 5
"""How many causes a report leads with."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One law in one dtype."""

    law: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.law} ({self.dtype})"


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One reason for which laws fail.

    Attributes:
        sentence: it, in words.
        ops: the operations that it was found in.
        kind: ``value``, ``gradient``, or ``behaviour`` where a law fails although value and gradient are right.
        formula: what the target computes instead, where that was recognised.
        features: what a call must have for it to show; empty where every call shows it.
        natures: how arrays are wrong: ``number``, ``nan``, ``exception`` …
        arrays: every array of the smallest case, the right ones too.
        patterns: a wrong array → what it is instead, in words.
        problem: what was raised, if anything.
        case, dtype: the smallest case, in words, and its dtype.
        stored: the case as `conformance.cases.from_json` reads it.
        explains: the checks that fail for this reason.
        script, script_text, script_note: of the smallest case, where one was saved.
        example: the check and the case, as stored, by which a file of known failures shows it.
        breaks: every array that it makes wrong in those checks, or exception that it makes them raise, in each way
            in which it does, with the largest error.
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
    example: tuple[Check, Mapping[str, Any]] | None = None
    breaks: tuple[ArrayOutcome, ...] = ()

    @property
    def error(self) -> float:
        """The largest error of an array, relative to that array's largest value."""
        return max((array.error for array in self.arrays), default=0.0)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One feature in one dtype.

    Attributes:
        value, gradient: ``right``, ``wrong``, ``not served``, ``not promised``, or ``not tried``; of gradients that
            there are none here, an empty text.
        cases: how many cases were judged.
        held, wrong: how many arrays of these cases were right, and how many were not.
        note: what was said where nothing was served, or raised.
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
        feature: its name; of the first row, ``plain call``.
        sentence: what it means.
    """

    feature: str
    sentence: str
    cells: Mapping[str, Cell]


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """Where an operation is right: a plain call, and one feature at a time.

    Attributes:
        summary: it in a sentence.
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
