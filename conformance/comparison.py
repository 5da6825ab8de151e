"""What a checker keeps of the target's calls, and what broke a law: enough for a script to show it without the law."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.dtypes import Array
from conformance.implementation import Named, Results


@dataclass
class CallRecord:
    """A call of the target.

    Attributes:
        kind: ``call``, ``vjp``, ``outputs`` for a call whose outputs came with a compiled gradient, or ``attempt`` for
            one that ought to be refused.
        operation, arrays, options, cotangents: what it was given.
        results: outputs, and gradients as ``gradient of q``; None as long as it has not come back.
    """

    kind: str
    operation: str
    arrays: Mapping[str, Any]
    options: Mapping[str, Any]
    cotangents: Named = field(default_factory=dict)
    results: Results | None = None


@dataclass(frozen=True)
class Comparison:
    """The comparison that broke a law, whole.

    Attributes:
        got: the array as the target gave it.
        expected: what it ought to be, elementwise.
        allowed: how far off each element may be.
        m: where a state is compared as ``got·exp(m_got − m)``, the oracle's stabiliser.
        alone: whether ``expected`` owes nothing to the target, so that it holds for a mended one as well.
    """

    got: Array
    expected: np.ndarray
    allowed: np.ndarray
    m: np.ndarray | None = None
    alone: bool = True


@dataclass(frozen=True)
class WrongShape:
    """An array that came back in another shape than ``expected``."""

    got: Array
    expected: tuple[int, ...]


@dataclass(frozen=True)
class WrongDtype:
    """An array that came back in another dtype than ``expected``."""

    got: Array
    expected: str


@dataclass(frozen=True)
class HasNaN:
    """An array that holds a NaN where none may be."""

    got: Array


@dataclass(frozen=True)
class Refusal:
    """The exception that a call ought to raise: the name of its type, its text, and whether that must be the same."""

    type: str
    text: str
    compares_text: bool = True


Evidence = Comparison | WrongShape | WrongDtype | HasNaN | Refusal


@dataclass(frozen=True)
class Point:
    """How far off one example was at its worst.

    Attributes:
        steps: its longest sequence.
        budget_ratio: largest error over its budget.
        roundoffs: largest error of an array, in roundoffs of that array's largest element.
    """

    steps: int
    budget_ratio: float
    roundoffs: float
