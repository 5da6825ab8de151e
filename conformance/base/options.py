"""The options of a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

FRAMEWORKS = ("numpy", "torch", "jax")

EXAMPLES = 20
MAX_STEPS = 1031
TIMEOUT = 180.0
"""Seconds. The slowest case of torch_impl, its first compiled call, took 60 s on two cores shared by eight jobs."""
QUICK_EXAMPLES = 8
INTERPRETED_EXAMPLES = 8
INTERPRETED_STEPS = 33
"""Limits for kernel interpreters, which take seconds where a device takes microseconds: fewer and shorter cases."""
SHRINK_SECONDS = 6.0

INTERPRETERS = {"triton": "TRITON_INTERPRET", "pallas": "GATESPEC_PALLAS_INTERPRET"}
"""The environment variable that runs the kernels of a backend under its interpreter."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of the command line; empty tuples mean all.

    Attributes:
        ops, laws, dtypes: names to keep.
        only: ``values`` or ``gradients``, to omit the other.
        examples: cases per law and dtype.
        max_steps: the number of steps of the longest sequence.
        seed: the seed from which all cases are drawn.
        device: the device of the arrays.
        framework: the framework of the target's functions; None to detect it from its imports.
        kernel_backend: passed on to operations that take one.
        timeout: seconds that one case may take, including its calls and the oracle's answers.
        jobs: number of processes per target; None chooses a number to suit the machine.
        strict: whether a skip, or a known failure that now passes, counts as a failure.
        contract: whether every target must follow the decisions of gatespec's contract; otherwise only those that
            declare themselves gatespec's own must.
        promises: what callers of the target must keep to; cases are drawn within it (`conformance.features.promises`).
        quick: only the laws that are marked as quick, in float32 unless a dtype is named, on short sequences.
        thorough: whether breaks and causes are looked for in a quick run as in any other, because a file of them is to
            be written or read.
        known: failures that do not count (`conformance.judge.known_failures.Known`).
        failures: the directory for a script for each failure; None to save none.
        shrink_seconds: how long to look for a smaller case after a law broke.
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
    thorough: bool = False
    known: tuple[Any, ...] = ()
    failures: Path | None = None
    shrink_seconds: float = SHRINK_SECONDS
    contract: bool = False
    promises: tuple[str, ...] = ()

    @property
    def hurried(self) -> bool:
        """Whether a run that finds a failure should take no longer than one that finds none."""
        return self.quick and not self.thorough
