"""Records of the target's calls and of what broke a law: enough for a script to show the failure without the law."""

from dataclasses import dataclass

import numpy as np

from conformance.base.call import Call
from conformance.base.dtypes import Array
from conformance.frameworks.implementation import Results


@dataclass
class CallRecord:
    """A call that the target answered, or was asked to answer.

    Attributes:
        kind: ``call``, ``vjp``, or ``outputs`` for a call whose outputs came from a compiled gradient.
        call: the call, with the options and the cotangents that it was made with.
        results: outputs, and gradients as ``gradient of q``; None until the call returns.
    """

    kind: str
    call: Call
    results: Results | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The complete comparison that broke a law.

    Attributes:
        got: the array that the target returned.
        expected: its correct values.
        allowed: the error that each element may have.
        m: the oracle's stabiliser, if a state is compared as ``got·exp(m_got − m)``.
        alone: whether ``expected`` does not depend on the target, so that it also holds for a corrected one.
    """

    got: Array
    expected: np.ndarray
    allowed: np.ndarray
    m: np.ndarray | None = None
    alone: bool = True


@dataclass(frozen=True)
class WrongShape:
    """An array whose shape differs from that of ``expected``."""

    got: Array
    expected: tuple[int, ...]


@dataclass(frozen=True)
class WrongDtype:
    """An array whose dtype differs from that of ``expected``."""

    got: Array
    expected: str


@dataclass(frozen=True)
class HasNaN:
    """An array with a NaN where none is allowed."""

    got: Array


Evidence = Comparison | WrongShape | WrongDtype | HasNaN


@dataclass(frozen=True)
class Point:
    """The largest errors of one example.

    Attributes:
        steps: the number of steps of its longest sequence.
        budget_ratio: largest error over its budget.
        roundoffs: largest error of an array, in roundoffs of that array's largest element.
    """

    steps: int
    budget_ratio: float
    roundoffs: float
