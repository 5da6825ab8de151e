"""Tries every law on a target: which laws apply, how many examples of which sizes, the smallest that breaks one."""

import math
import time
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import replace

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy

from conformance.cases import Plan, pinned
from conformance.checker import Checker
from conformance.comparison import CallRecord
from conformance.dtypes import FLOATING, HALF
from conformance.implementation import Implementation, RefusedError, UsageError
from conformance.known import KnownOutcome
from conformance.laws import Law, all_laws
from conformance.options import RunOptions
from conformance.outcome import Counterexample, LawResult
from conformance.repeatable_draws import the_same_everywhere
from conformance.search import Scene, Search

SHARES = {"small": 0.5, "chunk": 0.4, "long": 0.1}
SUPPRESSED = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)


def selected(settings: RunOptions) -> list[Law]:
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
        and (law.quick or not settings.quick)
    ]
    if not kept and settings.quick:
        raise UsageError("no law that --op and --law keep is part of a quick run; leave out --quick")
    if not kept:
        raise UsageError(
            f"no law is named {' or '.join(settings.laws)} among those about {' or '.join(settings.ops)}; "
            "`python -m conformance laws` lists them"
        )
    return kept


def agenda(implementation: Implementation, settings: RunOptions) -> list[tuple[Law, str]]:
    """Every law with every dtype in which it is to be tried."""
    pairs = []
    for law in selected(settings):
        usual = law.usual_dtypes(implementation.eager)
        if settings.quick and not settings.dtypes:
            usual = tuple(dtype for dtype in usual if dtype == "float32")
        # A target that compiles is tried in fewer dtypes unless more are asked for; none is asked for that a law does
        # not hold in (exact eighths, compositions of calls, the text of an error).
        kept = [dtype for dtype in FLOATING if dtype in settings.dtypes and dtype in law.dtypes]
        dtypes = kept if settings.dtypes else [dtype for dtype in FLOATING if dtype in usual]
        pairs += [(law, dtype) for dtype in dtypes]
    return pairs


def why_not(implementation: Implementation, law: Law, dtype: str) -> str | None:
    """Why a law does not apply to a target, None where it does."""
    absent = [name for name in law.functions if name not in implementation.functions]
    if absent:
        return f"absent: {', '.join(absent)}"
    return (
        implementation.cannot(dtype)
        or (law.gradient and implementation.no_gradient(law.gradient))
        or (law.skip and law.skip(implementation))
        or None
    )


def run(implementation: Implementation, settings: RunOptions) -> Iterator[LawResult]:
    """Try every law on one target, and save a script for each that broke where the settings say so."""
    for law, dtype in agenda(implementation, settings):
        yield run_and_save(implementation, law, dtype, settings)


def run_and_save(implementation: Implementation, law: Law, dtype: str, settings: RunOptions) -> LawResult:
    """`run_law`, and a script that shows the failure alone where the settings say where to save one."""
    result, scene = _tried(implementation, law, dtype, settings)
    if scene is None or settings.failures is None or result.counterexample is None or result.status != "failed":
        return result
    from conformance.failures import save

    found = save(implementation, law, dtype, result.counterexample, scene, settings.kernel_backend, settings.failures)
    return replace(result, counterexamples=(found,))


def run_law(implementation: Implementation, law: Law, dtype: str, settings: RunOptions) -> LawResult:
    """Try one law; nothing is written anywhere."""
    return _tried(implementation, law, dtype, settings)[0]


def retried(
    implementation: Implementation, law: Law, dtype: str, case: object, kernel_backend: str | None
) -> tuple[Counterexample | None, list[CallRecord]]:
    """What one case breaks, None where the law holds of it; and the calls of the target that were made.

    Raises:
        RefusedError: the target says itself that it cannot serve the call.
    """
    checker = Checker(implementation, dtype, kernel_backend, law.forward)
    search = Search(law, checker, shrink_seconds=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.attempt(case)
    return search.found, checker.calls


def _tried(
    implementation: Implementation, law: Law, dtype: str, settings: RunOptions
) -> tuple[LawResult, Scene | None]:
    start = time.monotonic()
    reason = why_not(implementation, law, dtype)
    if reason is not None:
        return LawResult(law=law, dtype=dtype, status="skipped", reason=reason), None
    checker = Checker(implementation, dtype, settings.kernel_backend, law.forward)
    search = Search(law, checker, settings.shrink_seconds)
    known: tuple[KnownOutcome, ...] = ()
    try:
        known = _known_outcomes(implementation, law, dtype, settings)
        search.excused = frozenset(outcome.where for outcome in known if outcome.fails)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if law.rows is not None:
                for row in law.rows():
                    search.attempt(row)
            else:
                _search(search, law, dtype, settings)
    except RefusedError as refusal:
        seconds = time.monotonic() - start
        result = LawResult(
            law=law, dtype=dtype, status="skipped", reason=str(refusal), examples=search.examples, seconds=seconds
        )
        return result, None
    if search.examples == 0 and not known:
        reason = f"it has no case of at most {settings.max_steps} steps"
        return LawResult(law=law, dtype=dtype, status="skipped", reason=reason), None
    found = search.found
    worst = checker.worst or None
    if search.worst_broken is not None:
        worst = max(search.worst_broken, checker.worst)
    contract = settings.contract or implementation.keeps_contract
    status, reason = _status(law, found, known, contract)
    result = LawResult(
        law=law,
        dtype=dtype,
        status=status,
        reason=reason,
        examples=search.examples,
        worst=worst,
        counterexamples=() if found is None else (found,),
        kinks=checker.kinks,
        elements=checker.elements,
        branches=dict(checker.branches),
        points=tuple(checker.points),
        seconds=time.monotonic() - start,
        expected_failures=known,
    )
    return result, search.scene


def _status(
    law: Law, found: Counterexample | None, known: tuple[KnownOutcome, ...], contract: bool
) -> tuple[str, str | None]:
    if found is not None:
        return "failed" if contract or law.kind != "contract" else "differs", found.problem
    if not known:
        return "passed", None
    status = "known" if any(outcome.fails for outcome in known) else "fixed"
    return status, "; ".join(outcome.said for outcome in known)


def _known_outcomes(
    implementation: Implementation, law: Law, dtype: str, settings: RunOptions
) -> tuple[KnownOutcome, ...]:
    """What came of the stored cases, however long: a known failure that is not tried would excuse nothing, unsaid."""
    outcomes = []
    for entry in settings.known:
        if not entry.applies(implementation.name, law.id, dtype):
            continue
        case = entry.revived()
        found, _ = retried(implementation, law, dtype, case, settings.kernel_backend)
        fails = found is not None and found.where == entry.where
        outcomes.append(KnownOutcome(entry.reason, entry.link, entry.where, case.describe(), fails))
    return tuple(outcomes)


def _search(search: Search, law: Law, dtype: str, settings: RunOptions) -> None:
    assert law.cases is not None
    total = sum(SHARES[stratum] for stratum in law.strata)
    implementation = search.checker.implementation
    for stratum in _quick(law.strata, implementation) if settings.quick else law.strata:
        if stratum == "long" and settings.max_steps <= 130 and len(law.strata) > 1:
            continue
        if stratum == "long" and dtype in HALF and not implementation.eager:
            continue
        count = max(1, math.ceil(settings.examples * law.share * SHARES[stratum] / total - 1e-9))
        plan = Plan(
            stratum, implementation.eager, dtype, settings.max_steps, _layouts(implementation), quick=settings.quick
        )
        # By operation, not by law: laws that draw from one strategy see the same cases and share the oracle's answers.
        seed = zlib.crc32(f"{settings.seed}/{law.op}/{stratum}/{dtype}".encode())
        for part, examples in pinned(plan, count):
            _draw(search, law.cases(part), seed, examples)
            if search.found is None:
                continue
            if part.pin and settings.shrink_seconds > 0:
                # Among the cases that are drawn freely there may be a smaller one.
                _draw(search, law.cases(plan), seed, count)
            return


def _draw(search: Search, cases: SearchStrategy, seed: int, examples: int) -> None:
    """Let Hypothesis draw so many cases, and smaller ones where one breaks the law."""
    search.deadline = None
    test = hypothesis.given(cases)(search.example)
    test = hypothesis.seed(seed)(test)
    test = hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=SUPPRESSED,
    )(test)
    try:
        with the_same_everywhere():
            test()
    except RefusedError:
        raise
    except Unsatisfiable:
        return  # No case of this stratum fits: the law is skipped if none fits in any.
    except BaseException as error:
        # What broke the law is in the search's own records, whatever Hypothesis makes of a search that was cut short.
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError) or search.found is None:
            raise


def _quick(strata: tuple[str, ...], implementation: Implementation) -> tuple[str, ...]:
    """The strata of a quick run: no long one, and a single one where each shape has to be compiled."""
    short = tuple(stratum for stratum in strata if stratum != "long") or strata
    return short if implementation.eager else short[-1:]


def _layouts(implementation: Implementation) -> tuple[str, ...]:
    """Contiguous arrays most of the time; the laws about memory try the others one and all."""
    return ("contiguous", *implementation.layouts) if implementation.eager else ("contiguous",)
