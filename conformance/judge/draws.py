"""The cases on which a law is tried, and how Hypothesis draws them."""

import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.errors import Unsatisfiable
from hypothesis.internal.conjecture import providers
from hypothesis.strategies import SearchStrategy

from conformance.base.dtypes import HALF
from conformance.base.options import RunOptions
from conformance.cases import USUAL, Limits, pinned
from conformance.features import without_decisions
from conformance.frameworks.implementation import Implementation
from conformance.laws import EVERY, Law
from conformance.operations import BY_LAWS

SUPPRESSED = (
    HealthCheck.too_slow,
    HealthCheck.filter_too_much,
    HealthCheck.data_too_large,
    # The features that a target refuses are searched for while its cases are drawn, which draws a few more cases.
    HealthCheck.nested_given,
)

QUICK_ROWS = 2
"""Number of rows of usual sizes in a quick run, in 16 bits, and of most laws where a shape is compiled."""

SHORT_STEPS = 130
"""Number of steps below which usual sizes, with at most so many steps, are left to few rows."""

FREE = 40
"""Number of cases of usual sizes among which a smaller one than that of a row is looked for."""

SHARES = {"small": 0.5, "chunk": 0.4, "long": 0.1}
"""The share of each stratum among the examples of a law."""


@dataclass(frozen=True)
class Draw:
    """Cases to draw.

    Attributes:
        cases: the strategy.
        seed: the seed from which they are drawn.
        examples: the number of cases.
        pinned: whether they are pinned to values that no law may miss, instead of being drawn freely.
        shrinks_only: whether they are drawn only to find a smaller case that breaks the law.
    """

    cases: SearchStrategy
    seed: int
    examples: int
    pinned: bool = False
    shrinks_only: bool = False


def planned(law: Law, dtype: str, implementation: Implementation, options: RunOptions) -> list[Draw]:
    """The cases on which a law is tried, in order."""
    assert law.cases is not None
    cases, eager = law.cases, implementation.eager

    operation = BY_LAWS.get(law.op)
    # The definition determines a value; gradients also depend on what gatespec holds constant in them.
    decided = implementation.keeps_contract or law.kind == "contract" or law.forward

    def judged(case: Any) -> Any:
        return without_decisions(operation, case) if operation is not None and operation.describes(case) else case

    def drawn(limits: Limits) -> SearchStrategy:
        return cases(limits) if decided else cases(limits).map(judged)

    total = sum(SHARES[stratum] for stratum in law.strata)
    draws = []
    strata = _quick(law.strata, eager) if options.quick else law.strata
    layouts = ("contiguous", *implementation.layouts) if eager else ("contiguous",)
    for stratum in () if options.sizes else strata:
        if stratum == "long" and len(law.strata) > 1 and (options.max_steps <= 130 or dtype == "float64"):
            # Two such cases take most of the time of a gradient, and float32 shows what adds up over many steps.
            continue
        if stratum == "long" and dtype in HALF and not eager:
            continue
        count = max(1, math.ceil(options.examples * law.share * SHARES[stratum] / total - 1e-9))
        limits = Limits(stratum, eager, dtype, options.max_steps, layouts, quick=options.quick)
        # The seed depends on the operation, not the law: laws that draw from the same strategy see the same cases
        # and share the oracle's answers.
        seed = zlib.crc32(f"{options.seed}/{law.op}/{stratum}/{dtype}".encode())
        parts = pinned(limits, count)
        chosen = [(part, examples, False) for part, examples in parts]
        if all(part.pin for part, _ in parts):
            # Freely drawn cases may include smaller ones than the pinned cases.
            chosen.append((limits, count, True))
        for part, examples, shrinks_only in chosen:
            draws.append(Draw(drawn(part), seed, examples, pinned=bool(part.pin), shrinks_only=shrinks_only))
    asked = {"seed": options.seed, "sizes": tuple(options.sizes.items())}
    limits = Limits(USUAL, eager, dtype, options.max_steps, layouts, USUAL, **asked)
    rows = usual_rows(law, dtype, implementation, options)
    for row in (*range(rows), None) if rows else ():
        strategy = drawn(replace(limits, row=row))
        draws.append(Draw(strategy, options.seed, 1 if row is not None else FREE, True, shrinks_only=row is None))
    return draws


def usual_rows(law: Law, dtype: str, implementation: Implementation, options: RunOptions) -> int:
    """The number of rows of usual sizes on which a law is tried.

    All in float32, in which sizes that matter show best; in 16 bits, in a quick run and where each shape has to be
    compiled, the first, which have the largest value of each size. Kernels that an interpreter runs, which takes a
    minute for what a device does in a millisecond, are asked for one gradient.
    """
    if not law.usual or options.sizes:
        return min(law.usual, 1)
    if dtype == "float64" or (implementation.upcasts and dtype != "float32"):
        return 0
    if options.kernel_backend is not None and options.max_steps < SHORT_STEPS:
        return int(law.usual == EVERY)
    if options.quick or options.max_steps < SHORT_STEPS:
        return min(law.usual, QUICK_ROWS)
    eager, first = implementation.eager, min(law.usual, QUICK_ROWS)
    if dtype in HALF:
        return first if eager or law.usual == EVERY else 0
    return law.usual if eager or law.gradient else first


def _quick(strata: tuple[str, ...], eager: bool) -> tuple[str, ...]:
    """The strata of a quick run: without the long one, and a single one if each shape has to be compiled."""
    short = tuple(stratum for stratum in strata if stratum != "long") or strata
    return short if eager else short[-1:]


def sampled(cases: SearchStrategy, seed: int, number: int) -> list[Any]:
    """Some cases of a strategy."""
    drawn: list[Any] = []

    def example(case: Any) -> None:
        drawn.append(case)

    run_draw(example, Draw(cases, seed, number), Phase.generate)
    return drawn


def run_draw(example: Callable[[Any], None], draw: Draw, *phases: Phase) -> None:
    """Let Hypothesis draw cases for ``example``, whose exceptions are passed on."""
    test = hypothesis.given(draw.cases)(example)
    test = hypothesis.seed(draw.seed)(test)
    test = hypothesis.settings(
        max_examples=draw.examples,
        database=None,
        deadline=None,
        phases=phases,
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=SUPPRESSED,
    )(test)
    try:
        with the_same_everywhere():
            test()
    except Unsatisfiable:
        return  # No case of this kind fits: the law is skipped if none fits in any stratum.


def missing() -> list[str]:
    """The names that `the_same_everywhere` needs and does not find in Hypothesis's module of providers."""
    return [name for name in ("_get_local_constants", "Constants", "CONSTANTS_CACHE") if not hasattr(providers, name)]


@contextmanager
def the_same_everywhere() -> Iterator[None]:
    """Make Hypothesis draw without the constants that it finds in the source of the modules imported so far.

    It mixes them into every twentieth draw. That is good for tests that compare with literals, but not for cases that
    are sizes and words. With them, the same seed draws different cases in another process, or after an edit of any
    module, and a failure cannot be run again by its seed. There is no setting for this, and the part that is replaced
    is private, so that another version may lack it; the range of versions in ``pyproject.toml`` was tried at both ends.

    Raises:
        RuntimeError: this version of Hypothesis does not have the part that is replaced.
    """
    if missing():
        raise RuntimeError(
            f"Hypothesis {hypothesis.__version__} lacks {', '.join(missing())} in {providers.__name__}, so that "
            "cases would depend on what was imported; install a version from the range in gatespec's pyproject.toml"
        )
    found = providers._get_local_constants
    nothing = providers.Constants()
    # Permitted constants are cached by type and bounds only: entries made with the constants are removed and restored.
    providers.CONSTANTS_CACHE.cache.clear()
    providers._get_local_constants = lambda: nothing  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        providers._get_local_constants = found  # pyright: ignore[reportAttributeAccessIssue]
        providers.CONSTANTS_CACHE.cache.clear()
