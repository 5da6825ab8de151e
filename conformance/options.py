"""What a run is asked for."""

from dataclasses import dataclass
from pathlib import Path

from conformance.known import Known

EXAMPLES = 20
MAX_STEPS = 1031
SHRINK_SECONDS = 6.0

INTERPRETERS = {"triton": "TRITON_INTERPRET", "pallas": "GATESPEC_PALLAS_INTERPRET"}
"""The variable of the environment that runs the kernels of a backend under its interpreter."""


@dataclass(frozen=True)
class RunOptions:
    """What the command line asks for; empty tuples mean all.

    Attributes:
        ops, laws, dtypes: names to keep.
        examples: cases per law and dtype.
        max_steps: the longest sequence.
        seed: from which all cases are drawn.
        kernel_backend: passed on to operations that take one.
        strict: whether a skip counts as a failure, and a known failure that passes now.
        contract: whether every target has to keep what gatespec's contract decides; otherwise only those that declare
            themselves gatespec's own have to.
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
    contract: bool = False
