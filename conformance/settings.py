"""What a run is asked for, and what it finds of each law."""

from dataclasses import dataclass, field
from pathlib import Path

from conformance.evidence import Point
from conformance.hunt import SHRINK_SECONDS, Counterexample
from conformance.known import Known, KnownOutcome
from conformance.laws import Law

EXAMPLES = 20
MAX_STEPS = 1031

INTERPRETERS = {"triton": "TRITON_INTERPRET", "pallas": "GATESPEC_PALLAS_INTERPRET"}
"""The variable of the environment that runs the kernels of a backend under its interpreter."""


@dataclass(frozen=True)
class Settings:
    """What the command line asks for; empty tuples mean all.

    Attributes:
        ops, laws, dtypes: names to keep.
        examples: cases per law and dtype.
        max_steps: the longest sequence.
        seed: from which all cases are drawn.
        kernel_backend: passed on to operations that take one.
        strict: whether a skip counts as a failure, and a known failure that passes now.
        quick: only the laws that are marked so, in float32 unless a dtype is named, on short sequences.
        known: failures that are none.
        failures: where a script for each failure is saved, None for nowhere.
        shrink_seconds: how long a smaller case may be looked for once a law broke.
    """

    ops: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    examples: int = EXAMPLES
    max_steps: int = MAX_STEPS
    seed: int = 0
    kernel_backend: str | None = None
    strict: bool = False
    quick: bool = False
    known: tuple[Known, ...] = ()
    failures: Path | None = None
    shrink_seconds: float = SHRINK_SECONDS


@dataclass(frozen=True)
class Result:
    """One law in one dtype on one target.

    Attributes:
        status: ``passed``, ``failed``, ``skipped``, ``known`` (only known failures) or ``fixed`` (passed, a known
            failure included).
        reason: why it was skipped, or what failed, or what is known.
        examples: cases tried.
        worst: the largest error over its budget, None where no number was compared.
        kinks, elements: elements at which the gradient of either side passes, and all that were looked at.
        spread: elements by the branch that they took.
        points: how far off each example was.
        seconds: how long it took.
        known: what came of known failures.
    """

    law: Law
    dtype: str
    status: str
    reason: str | None = None
    examples: int = 0
    worst: float | None = None
    counterexample: Counterexample | None = None
    kinks: int = 0
    elements: int = 0
    spread: dict[str, float] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    seconds: float = 0.0
    known: tuple[KnownOutcome, ...] = ()

    @property
    def link(self) -> str | None:
        """Where a known failure is being dealt with."""
        return next((outcome.link for outcome in self.known if outcome.link), None)
