"""Tries every law on every target: which laws apply, how many examples of which sizes, the smallest that breaks one."""

import math
import time
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.errors import Unsatisfiable

from conformance.cases import Plan
from conformance.dtypes import FLOATING, HALF
from conformance.hunt import Counterexample, Hunt
from conformance.implementation import Implementation, RefusedError, UsageError
from conformance.laws import Law, all_laws
from conformance.trial import Point, Trial

EXAMPLES = 20
MAX_STEPS = 1031
SHARES = {"small": 0.5, "chunk": 0.4, "long": 0.1}
SUPPRESSED = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)


@dataclass(frozen=True)
class Settings:
    """What the command line asks for; empty tuples mean all.

    Attributes:
        ops, laws, dtypes: names to keep.
        examples: cases per law and dtype.
        max_steps: the longest sequence.
        seed: from which all cases are drawn.
        kernel_backend: passed on to operations that take one.
        strict: whether a skip counts as a failure.
    """

    ops: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    examples: int = EXAMPLES
    max_steps: int = MAX_STEPS
    seed: int = 0
    kernel_backend: str | None = None
    strict: bool = False


@dataclass(frozen=True)
class Result:
    """One law in one dtype on one target.

    Attributes:
        status: ``passed``, ``failed`` or ``skipped``.
        reason: why it was skipped, or what failed.
        examples: cases tried.
        worst: the largest error over its budget, None where no number was compared.
        kinks, elements: elements at which the gradient of either side passes, and all that were looked at.
        spread: elements by the branch that they took.
        points: how far off each example was.
        seconds: how long it took.
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


def selected(settings: Settings) -> list[Law]:
    """The laws that the settings keep.

    Raises:
        UsageError: a name is unknown, or nothing is left.
    """
    laws = all_laws()
    ops = list(dict.fromkeys(law.op for law in laws))
    for op in settings.ops:
        if op not in ops:
            raise UsageError(f"there is no law about {op!r}; name one of {', '.join(ops)} after --op")
    known = {law.name for law in laws} | {law.id for law in laws}
    for name in settings.laws:
        if name not in known:
            raise UsageError(f"there is no law {name!r}; `python -m conformance laws` lists the names for --law")
    kept = [
        law
        for law in laws
        if (not settings.ops or law.op in settings.ops)
        and (not settings.laws or law.name in settings.laws or law.id in settings.laws)
    ]
    if not kept:
        raise UsageError(
            f"no law is named {' or '.join(settings.laws)} among those about {' or '.join(settings.ops)}; "
            "`python -m conformance laws` lists them"
        )
    return kept


def agenda(implementation: Implementation, settings: Settings) -> list[tuple[Law, str]]:
    """Every law with every dtype in which it is to be tried."""
    pairs = []
    for law in selected(settings):
        usual = law.dtypes if implementation.eager else law.compiled_dtypes
        if settings.dtypes:
            # A law about one dtype alone (bad calls) is tried in it only where that dtype is asked for.
            dtypes = [d for d in settings.dtypes if d in (law.dtypes if law.rows else FLOATING)]
            if not set(law.dtypes) - {"bfloat16", "float16"}:
                dtypes = [d for d in dtypes if d in law.dtypes]
        else:
            dtypes = [d for d in FLOATING if d in usual]
        pairs += [(law, dtype) for dtype in dtypes]
    return pairs


def why_not(implementation: Implementation, law: Law, dtype: str) -> str | None:
    """Why a law does not apply to a target, None where it does."""
    absent = [name for name in law.needs if name not in implementation.functions]
    if absent:
        return f"absent: {', '.join(absent)}"
    return (
        implementation.cannot(dtype)
        or (law.gradient and implementation.no_gradient(law.gradient))
        or (law.skip and law.skip(implementation))
        or None
    )


def run(implementation: Implementation, settings: Settings) -> Iterator[Result]:
    """Try every law on one target."""
    for law, dtype in agenda(implementation, settings):
        yield run_law(implementation, law, dtype, settings)


def run_law(implementation: Implementation, law: Law, dtype: str, settings: Settings) -> Result:
    start = time.monotonic()
    reason = why_not(implementation, law, dtype)
    if reason is not None:
        return Result(law, dtype, "skipped", reason)
    trial = Trial(implementation, dtype, settings.kernel_backend, law.forward)
    hunt = Hunt(law, trial)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if law.rows is not None:
                for row in law.rows():
                    hunt.attempt(row)
            else:
                _search(hunt, law, dtype, settings)
    except RefusedError as refusal:
        return Result(law, dtype, "skipped", str(refusal), hunt.examples, seconds=time.monotonic() - start)
    if hunt.examples == 0:
        return Result(law, dtype, "skipped", f"it has no case of at most {settings.max_steps} steps")
    found = hunt.found
    status = "passed" if found is None else "failed"
    worst = trial.worst or None
    if hunt.worst_broken is not None:
        worst = max(hunt.worst_broken, trial.worst)
    return Result(
        law,
        dtype,
        status,
        None if found is None else found.problem,
        hunt.examples,
        worst,
        found,
        trial.kinks,
        trial.elements,
        dict(trial.spread),
        trial.points,
        time.monotonic() - start,
    )


def _search(hunt: Hunt, law: Law, dtype: str, settings: Settings) -> None:
    assert law.cases is not None
    total = sum(SHARES[stratum] for stratum in law.strata)
    implementation = hunt.trial.implementation
    for stratum in law.strata:
        if stratum == "long" and settings.max_steps <= 130 and len(law.strata) > 1:
            continue
        if stratum == "long" and dtype in HALF and not implementation.eager:
            continue
        count = max(1, math.ceil(settings.examples * law.share * SHARES[stratum] / total - 1e-9))
        plan = Plan(stratum, implementation.eager, dtype, settings.max_steps, _layouts(implementation))
        # By operation, not by law: laws that draw from one strategy see the same cases and share the oracle's answers.
        seed = zlib.crc32(f"{settings.seed}/{law.op}/{stratum}/{dtype}".encode())
        hunt.deadline = None
        test = hypothesis.given(law.cases(plan))(hunt.example)
        test = hypothesis.seed(seed)(test)
        test = hypothesis.settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            print_blob=False,
            report_multiple_bugs=False,
            verbosity=Verbosity.quiet,
            suppress_health_check=SUPPRESSED,
        )(test)
        try:
            test()
        except RefusedError:
            raise
        except Unsatisfiable:
            continue
        except BaseException as error:
            # What broke the law is in the hunt's own records, whatever Hypothesis makes of a search that was cut short.
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError) or hunt.found is None:
                raise
        if hunt.found is not None:
            return


def _layouts(implementation: Implementation) -> tuple[str, ...]:
    """Contiguous arrays most of the time; the laws about memory try the others one and all."""
    return ("contiguous", *implementation.layouts) if implementation.eager else ("contiguous",)
