"""The options of a run, and those of them that can be typed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

FRAMEWORKS = ("numpy", "torch", "jax")

EXAMPLES = 20
MAX_STEPS = 1031
TIMEOUT = 180.0
"""Seconds. The slowest case of torch_impl, its first compiled call, took 60 s on two cores shared by eight jobs."""
QUICK_TIMEOUT = 30.0
SIZES_TIMEOUT = 3600.0
LONGEST_SECONDS = 100_000.0
"""Seconds above which a time limit is refused; the system calls that wait take no more than 24 days."""
QUICK_EXAMPLES = 8
INTERPRETED_EXAMPLES = 8
INTERPRETED_STEPS = 33
"""Limits for kernel interpreters, which take seconds where a device takes microseconds: fewer and shorter cases."""
SHRINK_SECONDS = 6.0

UNSHARED = 4.0
"""Ratio of elapsed time to computing time that is allowed, so that a busy machine makes the same experiments."""

INTERPRETERS = {"triton": "TRITON_INTERPRET", "pallas": "GATESPEC_PALLAS_INTERPRET"}
"""The environment variable that runs the kernels of a backend under its interpreter."""


def time_limit(timeout: float | None, *, quick: bool, sizes: bool = False) -> float:
    """The seconds that one case may take, if ``timeout`` was given and if not.

    Args:
        sizes: whether the sizes of calls were given, for which the oracle may take minutes.
    """
    return timeout or (SIZES_TIMEOUT if sizes else QUICK_TIMEOUT if quick else TIMEOUT)


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
        quick: only the laws that are marked as quick, in float32 unless a dtype is named, on short sequences; a run
            that finds a failure takes no longer than one that finds none.
        sizes: sizes of the calls, by their letters; laws are then tried on calls of these sizes alone.
        spec: a file that states recurrences, of which the target is judged.
        known_failures: laws that may break (`conformance.judge.known_failures.KnownFailure`).
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
    sizes: Mapping[str, int] = field(default_factory=dict)
    spec: Path | None = None
    known_failures: tuple[Any, ...] = ()
    failures: Path | None = None
    shrink_seconds: float = SHRINK_SECONDS
    contract: bool = False


Kind = Literal["flag", "text", "choice", "dtype", "count", "seed", "seconds", "file", "directory"]


@dataclass(frozen=True, kw_only=True)
class OfferedOption:
    """``--NAME`` of the command, and ``--conformance-NAME`` of pytest.

    Attributes:
        name: without the dashes at its front.
        field: the argument of `conformance.judge.selection.options_of` that takes its value.
        help: a sentence.
        kind: what it holds: a flag, any text, one of ``choices``, the name of a dtype, an integer of at least 1, a
            seed, a positive number of seconds, or a path.
        metavar: the word for its value in a help text.
        choices: for the kind ``choice``.
        default: what holds where it is not given.
        several: whether it may be given several times.
        pytest: whether the plugin has it. The others are about a whole run, and pytest has options of its own for it.
    """

    name: str
    field: str
    help: str
    kind: Kind = "text"
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    default: Any = None
    several: bool = False
    pytest: bool = True


def _offered(name: str, help: str, kind: Kind = "text", metavar: str | None = None, **fields: Any) -> OfferedOption:
    return OfferedOption(
        name=name, help=help, kind=kind, metavar=metavar, **{"field": name.replace("-", "_"), **fields}
    )


_EXAMPLES = (
    f"Cases per law and dtype.  [default: {EXAMPLES}; {QUICK_EXAMPLES} with --quick, "
    f"{INTERPRETED_EXAMPLES} under a kernel interpreter]"
)
_STEPS = f"Length of the longest sequence.  [default: {MAX_STEPS}; {INTERPRETED_STEPS} under a kernel interpreter]"
_SIZES = "Sizes of all calls, such as B=2,S=4096,N=16,K=128,V=256; those left out are chosen."
_FRAMEWORK = "Framework of the target.  [default: guessed from its imports]"
_ONLY_LAW = "Only this law: `gradient` or `mlstm.gradient`."
_TIMEOUT = (
    "Time limit for one case; a call that takes longer is stopped and breaks its law.  "
    f"[default: {TIMEOUT:g}; {QUICK_TIMEOUT:g} with --quick, {SIZES_TIMEOUT:g} with --sizes]"
)
_SPEC = "File that states recurrences of your own, in Python; it is run, and only they are judged."
_JOBS = "Number of processes for a target.  [default: 2 on a CPU of two cores or more, else 1]"
_STRICT = "Fail for laws that cannot be tried and for known failures that pass, too."
_CONTRACT = "Require gatespec's own decisions too, where other implementations may differ."

OFFERED = (
    _offered("op", "Only laws about this operation.", metavar="NAME", field="ops", several=True),
    _offered("law", _ONLY_LAW, metavar="NAME", field="laws", several=True),
    _offered("dtype", "Only this dtype of values.", "dtype", field="dtypes", several=True),
    _offered("device", "Device of the arrays.", "choice", choices=("cpu", "cuda"), default="cpu"),
    _offered("kernel-backend", "Kernel backend for every operation that takes one.", metavar="NAME"),
    _offered("framework", _FRAMEWORK, "choice", choices=FRAMEWORKS),
    _offered("quick", "Only values and gradients, in float32, on short sequences.", "flag"),
    _offered("examples", _EXAMPLES, "count", "N"),
    _offered("max-steps", _STEPS, "count", "S"),
    _offered("sizes", _SIZES, metavar="TEXT", pytest=False),
    _offered("seed", "Seed of all cases.", "seed", "N", default=0),
    _offered("only", "Judge only values or only gradients.", "choice", choices=("values", "gradients")),
    _offered("timeout", _TIMEOUT, "seconds", "SECONDS"),
    _offered("jobs", _JOBS, "count", "N", pytest=False),
    _offered("strict", _STRICT, "flag", pytest=False),
    _offered("contract", _CONTRACT, "flag"),
    _offered("spec", _SPEC, "file", "PATH"),
    _offered("known-failures", "File of ids of laws that may break, each with a reason.", "file", "PATH"),
    _offered("failures", "Directory for the scripts of failures.", "directory", "DIR", default="reports/failures"),
)
