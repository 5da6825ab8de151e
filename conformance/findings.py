"""A case that breaks a law, with the circumstances that a script needs to reproduce it."""

from dataclasses import dataclass
from typing import Any

from conformance.comparison import CallRecord
from conformance.outcome import BreakKind, Counterexample


@dataclass(frozen=True)
class Scene:
    """The circumstances of a broken law, in more detail than in a report, for the script that reproduces it.

    Attributes:
        case: the case.
        error: the exception raised by the law or by the target.
        calls: the calls of the target up to that point.
    """

    case: Any
    error: BaseException
    calls: list[CallRecord]


@dataclass(frozen=True)
class Found:
    """The smallest case seen so far that breaks the law in one way.

    Attributes:
        order: smaller cases come first; among those of one size, those with simpler elements, then shorter words.
        kinds: all the ways in which it breaks the law.
    """

    order: tuple[int, int, int, str]
    kinds: tuple[BreakKind, ...]
    counterexample: Counterexample
    scene: Scene
