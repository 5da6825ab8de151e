"""What a run is asked for."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conformance.known import Known

FRAMEWORKS = ("numpy", "torch", "jax")

EXAMPLES = 20
MAX_STEPS = 1031
TIMEOUT = 180.0
"""Seconds. The slowest case of torch_impl, its first compiled call, took 60 s on two cores shared by eight jobs."""
QUICK_EXAMPLES = 6
INTERPRETED_EXAMPLES = 8
INTERPRETED_STEPS = 33
"""A kernel interpreter takes seconds for what a device does in microseconds: fewer cases, of at most so many steps."""
SHRINK_SECONDS = 6.0

INTERPRETERS = {"triton": "TRITON_INTERPRET", "pallas": "GATESPEC_PALLAS_INTERPRET"}
"""The variable of the environment that runs the kernels of a backend under its interpreter."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What the command line asks for; empty tuples mean all.

    Attributes:
        ops, laws, dtypes: names to keep.
        only: ``values`` or ``gradients`` to leave out the other.
        examples: cases per law and dtype.
        max_steps: the longest sequence.
        seed: from which all cases are drawn.
        device: where arrays live.
        framework: what the target's functions take; None to see it from its imports.
        kernel_backend: passed on to operations that take one.
        timeout: seconds that one case may take, its calls and the oracle's answers to them together.
        jobs: processes for a target; None for what suits the machine.
        strict: whether a skip counts as a failure, and a known failure that passes now.
        contract: whether every target has to keep what gatespec's contract decides; otherwise only those that declare
            themselves gatespec's own have to.
        promises: what callers of the target must keep to; cases are drawn inside (`conformance.diagnosis.promises`).
        quick: only the laws that are marked so, in float32 unless a dtype is named, on short sequences.
        known: failures that are none.
        failures: where a script for each failure is saved, None for nowhere.
        shrink_seconds: how long a smaller case may be looked for once a law broke.
    """

    ops: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    only: str | None = None
    examples: int = EXAMPLES
    max_steps: int = MAX_STEPS
    seed: int = 0
    device: str = "cpu"
    framework: str | None = None
    kernel_backend: str | None = None
    timeout: float = TIMEOUT
    jobs: int | None = None
    strict: bool = False
    quick: bool = False
    known: "tuple[Known, ...]" = ()
    failures: Path | None = None
    shrink_seconds: float = SHRINK_SECONDS
    contract: bool = False
    promises: tuple[str, ...] = ()
