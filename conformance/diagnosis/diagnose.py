"""The diagnosis of a target: its causes and envelopes, from the results of its laws and from experiments."""

import time
from collections.abc import Callable, Mapping, Sequence

from conformance.base.options import RunOptions
from conformance.diagnosis import causes, envelope
from conformance.diagnosis.cause import Cause, Diagnosis, Envelope
from conformance.diagnosis.examined import Examined, Pair, pairs
from conformance.formulas.judged import UNWATCHED, Clock, Watch
from conformance.frameworks.implementation import Implementation
from conformance.judge.outcome import LawResult
from conformance.operations import BY_LAWS
from conformance.tolerance.compared import ENDINGS

SECONDS = 90.0
"""Time limit of the experiments on one target."""

QUICK_SECONDS = 0.7
"""Time limit for the first cause of each operation in a quick run, in addition to the time that its laws saved by
ending at a break. Other experiments have only what was saved."""

FATAL = tuple(nature for nature in ENDINGS if nature != "exit")

QUICK_NOTE = "a quick run looks for the first cause; without --quick there are more experiments"


def diagnose(
    implementation: Implementation,
    options: RunOptions,
    results: Sequence[LawResult],
    keep: Callable[[Diagnosis], None] | None = None,
    watch: Watch = UNWATCHED,
) -> Diagnosis:
    """Find out why laws fail, and for which calls the target is right.

    Args:
        results: one for each law and dtype.
        keep: called with the results so far after each operation, because a target may end the process that tries it.
        watch: notified of each call of the target.
    """
    start = time.monotonic()
    implementation = implementation.in_run(kernel_backend=options.kernel_backend, contract=options.contract)
    clock = Clock(SECONDS)
    failed = [result for result in results if result.status == "failed"]
    found: list[Cause] = []
    envelopes: list[Envelope] = []
    alone: dict[tuple, list[Pair]] = {}
    note = ""
    for op in dict.fromkeys(result.law.op for result in results):
        of_op = [result for result in results if result.law.op == op]
        broken = [result for result in failed if result.law.op == op]
        spare = clock
        if options.hurried:
            saved = sum(result.saved for result in broken)
            clock, spare = Clock(QUICK_SECONDS + saved), Clock(saved)
        operation = BY_LAWS.get(op)
        if operation is not None and not any(map(_ends_process, broken)):
            examined = Examined(implementation, options, operation, of_op, clock, spare, watch)
            examined.run(broken)
            found += examined.causes()
            envelopes += examined.envelopes()
            note = QUICK_NOTE if options.hurried and examined.untried else note
            for pair in examined.alone:
                alone.setdefault(causes.key_of_law(*pair), []).append(pair)
        else:
            for result in broken:
                for pair in pairs(result):
                    alone.setdefault(causes.key_of_law(*pair), []).append(pair)
        if broken and not clock.left:
            note = f"experiments stopped after {clock.seconds:.0f} s; failures without a cause are listed law by law"
            note = QUICK_NOTE if options.hurried else note
        if keep is not None:
            keep(_put_together(found, alone, envelopes, start, note))
    return _put_together(found, alone, envelopes, start, note)


def without_experiments(options: RunOptions, results: Sequence[LawResult]) -> Diagnosis:
    """A diagnosis from the results alone: failed laws one by one, and the features of cases that held."""
    start = time.monotonic()
    alone: dict[tuple, list[Pair]] = {}
    for result in results:
        for pair in pairs(result) if result.status == "failed" else ():
            alone.setdefault(causes.key_of_law(*pair), []).append(pair)
    examined = (BY_LAWS[op] for op in dict.fromkeys(result.law.op for result in results) if op in BY_LAWS)
    counted = (envelope.of_results(operation, results) for operation in examined)
    envelopes = [each for each in counted if each is not None]
    return _put_together([], alone, envelopes, start, "")


def _put_together(
    found: list[Cause], alone: Mapping[tuple, list[Pair]], envelopes: list[Envelope], start: float, note: str
) -> Diagnosis:
    everything = causes.merged([*found, *(causes.of_law(same) for same in alone.values())])
    return Diagnosis(causes=tuple(everything), envelopes=tuple(envelopes), seconds=time.monotonic() - start, note=note)


def _ends_process(result: LawResult) -> bool:
    """Whether an experiment with this failure would end its process; an exception that asks to exit is caught."""
    return any(found.kind.nature in FATAL for found in result.counterexamples) or not result.counterexamples
