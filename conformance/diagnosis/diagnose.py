"""The diagnosis of a target: its causes and envelopes, from the results of its laws and from experiments."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from conformance.base.options import RunOptions
from conformance.cases import from_json
from conformance.diagnosis import causes
from conformance.diagnosis.cause import LEADING, Cause, Diagnosis, Envelope
from conformance.diagnosis.causes import Pair, pairs
from conformance.diagnosis.envelope import envelope, of_results
from conformance.diagnosis.faults import Fault, Faults
from conformance.diagnosis.matrix import RANK, Matrix
from conformance.features import features_of
from conformance.features.feature import avoiding
from conformance.formulas.judged import RIGHT, UNWATCHED, Clock, Judge, Judged, Watch
from conformance.frameworks.implementation import Implementation, RefusedError
from conformance.judge.outcome import Counterexample, LawResult
from conformance.judge.runner import Save
from conformance.judge.search import retried, search_of
from conformance.operations import BY_LAWS, Operation
from conformance.tolerance.compared import ENDINGS, BreakKind

SECONDS = 90.0
"""Time limit of the experiments on one target."""

QUICK_SECONDS = 2.0
"""Time limit for the first cause of each operation in a quick run, in addition to the time that its laws saved by
ending at a break. Other experiments have only what was saved."""

FATAL = tuple(nature for nature in ENDINGS if nature != "exit")

QUICK_NOTE = "a quick run looks for the first cause; without --quick there are more experiments"

WIDE = ("float64", "float32")

LAW = "law "
"""Prefix of the text that announces the case of a law."""


def diagnose(
    implementation: Implementation,
    options: RunOptions,
    results: Sequence[LawResult],
    keep: Callable[[Diagnosis], None] | None = None,
    watch: Watch = UNWATCHED,
    save: Save | None = None,
) -> Diagnosis:
    """Find out why laws fail, and for which calls the target is right.

    Args:
        results: one for each law and dtype.
        keep: called with the results so far after each operation, because a target may end the process that tries it.
        watch: notified of each call of the target.
        save: saves the script of a failure (`conformance.failures.save`); None to save none.
    """
    start = time.monotonic()
    implementation = implementation.in_run(kernel_backend=options.kernel_backend, contract=options.contract)
    clock = Clock(SECONDS)
    found: list[Cause] = []
    envelopes: list[Envelope] = []
    alone: list[Pair] = []
    note = ""
    for op in dict.fromkeys(result.law.op for result in results):
        of_op = [result for result in results if result.law.op == op]
        broken = [result for result in of_op if result.status == "failed"]
        operation, spare = BY_LAWS.get(op), clock
        if options.quick:
            saved = sum(result.saved for result in broken)
            clock, spare = Clock(QUICK_SECONDS + saved), Clock(saved)
        if operation is None or any(map(_ends_process, broken)):
            alone += [pair for result in broken for pair in pairs(result)]
        elif not broken:
            counted = of_results(operation, of_op)
            envelopes += [] if counted is None else [counted]
        else:
            examined = _Examined(implementation, options, operation, of_op, clock, spare, watch)
            examined.run(broken)
            found += examined.causes()
            envelopes.append(examined.envelope())
            alone += examined.alone
            note = QUICK_NOTE if options.quick and examined.matrix.untried else note
        if broken and not clock.left:
            note = f"experiments stopped after {clock.seconds:.0f} s; failures without a cause are listed law by law"
            note = QUICK_NOTE if options.quick else note
        if keep is not None:
            keep(_put_together(found, alone, envelopes, start, note))
    scripts = _Scripts(implementation, options, results, save, watch)
    diagnosis = _put_together(found, alone, envelopes, start, note)
    leading = [scripts.of(cause, number) for number, cause in enumerate(diagnosis.causes[:LEADING], 1)]
    return replace(diagnosis, causes=(*leading, *diagnosis.causes[LEADING:]))


@dataclass
class _Scripts:
    """Saves scripts of the cases of causes; those of laws show the laws' own cases."""

    implementation: Implementation
    options: RunOptions
    results: Sequence[LawResult]
    save: Save | None
    watch: Watch

    def of(self, cause: Cause, number: int) -> Cause:
        """The cause with a script of its own case, if there is none yet and the law about its value or gradient breaks.

        Args:
            number: the number of the cause in the report.
        """
        directory = self.options.failures
        wanted = (cause.ops[0], cause.kind)
        law = next((each.law for each in self.results if (each.law.op, each.law.name) == wanted), None)
        if self.save is None or directory is None or law is None or not cause.script or self._has_its_own(cause):
            return cause
        search = search_of(self.implementation, law, cause.dtype, *_watched(self.watch))
        search.judge(from_json(dict(cause.stored)))
        wrong = {array.kind for array in cause.arrays if array.nature is not None}
        found = sorted(search.found.values(), key=lambda each: each.counterexample.kind not in wrong)
        if not found:
            return cause
        run, label = not self.options.quick, f"cause-{number}"
        saved = self.save(self.implementation, law, cause.dtype, found[0], directory, run=run, label=label)
        return replace(cause, **causes.script_of(saved))

    def _has_its_own(self, cause: Cause) -> bool:
        scripted = (each for result in self.results for each in result.counterexamples if each.script == cause.script)
        return any(each.stored == cause.stored for each in scripted)


def without_experiments(options: RunOptions, results: Sequence[LawResult]) -> Diagnosis:
    """A diagnosis from the results alone: failed laws one by one, and the features of cases that held."""
    start = time.monotonic()
    alone = [pair for result in results if result.status == "failed" for pair in pairs(result)]
    examined = (BY_LAWS[op] for op in dict.fromkeys(result.law.op for result in results) if op in BY_LAWS)
    counted = (of_results(operation, results) for operation in examined)
    return _put_together([], alone, [each for each in counted if each is not None], start, "")


def _put_together(
    found: list[Cause], alone: Sequence[Pair], envelopes: list[Envelope], start: float, note: str
) -> Diagnosis:
    groups: dict[tuple, list[Pair]] = {}
    for pair in alone:
        groups.setdefault(causes.key_of_law(*pair), []).append(pair)
    everything = causes.merged([*found, *map(causes.of_law, groups.values())])
    return Diagnosis(causes=tuple(everything), envelopes=tuple(envelopes), seconds=time.monotonic() - start, note=note)


def _ends_process(result: LawResult) -> bool:
    """Whether an experiment with this failure would end its process; an exception that asks to exit is caught."""
    return any(found.kind.nature in FATAL for found in result.counterexamples) or not result.counterexamples


@dataclass
class _Examined:
    """One operation: its matrix, the faults that it shows, and its failed laws, each assigned to those that explain it.

    Attributes:
        results: those of its laws.
        clock, spare: the time for causes, and for the rest of the matrix.
        watch: notified of each call of the target.
        alone: failed laws that no fault explains.
    """

    implementation: Implementation
    options: RunOptions
    operation: Operation
    results: Sequence[LawResult]
    clock: Clock
    spare: Clock
    watch: Watch
    alone: list[Pair] = field(default_factory=list)
    _explained: list[tuple[Fault, list[Pair]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        options = self.options
        refused = {name for each in self.results if each.law.quick for name in each.refused.features}
        contract = self.implementation.keeps_contract
        self.matrix = Matrix(self.operation, refused, contract, self.spare, options.quick)
        broken = {result.dtype for result in self.results if result.status == "failed"}
        self._judges = {dtype: self._judge(dtype) for dtype in RANK if dtype in broken}
        self._faults = Faults(self.operation, self._judges, self.clock, options.quick, lambda: self.matrix.served)

    def run(self, broken: Sequence[LawResult]) -> None:
        dtypes, judges, faults = [*self._judges], self._judges, self._faults

        def explain(judged: Judged) -> None:
            if judged.wrong:
                faults.explain(judged.case, judged.dtype)

        if self.options.quick:
            explain(self.matrix.first_call(judges[dtypes[0]]))
            self._attribute_all(broken)
            self.matrix.fill(judges, explain)
            faults.absorb()
            return
        self.matrix.fill(judges)
        # A plain call first, then the calls with one feature: what a simpler call shows explains the others.
        for judged in self.matrix.failing(dtypes[0]):
            explain(judged)
        faults.absorb()
        self._attribute_all(broken)
        if faults.absorb():
            self._attribute_all(broken)
        # Each feature in the other dtypes, too: the cases of laws that held show few of them.
        held = dict.fromkeys(each.dtype for each in self.results if each.status == "passed" and each.dtype in RANK)
        others = {dtype: self._judge(dtype) for dtype in held if dtype not in judges}
        if others:
            self.matrix.fill(others)

    def _judge(self, dtype: str) -> Judge:
        return Judge(
            self.implementation,
            self.operation,
            dtype,
            self.watch,
            gradients=self.options.only != "values",
            forward=not self._outputs_are_known(dtype),
        )

    def _outputs_are_known(self, dtype: str) -> bool:
        """Whether laws found that calls without a gradient are right, and that calls with one are served."""
        judged = {each.law.name: each.status for each in self.results if each.dtype == dtype}
        return judged.get("value") == "passed" and judged.get("gradient") in ("passed", "failed")

    def _attribute_all(self, broken: Sequence[LawResult]) -> None:
        self.alone, self._explained = [], []
        for result in broken:
            for pair in pairs(result):
                self._attribute(pair)

    def _attribute(self, pair: Pair) -> None:
        result, found = pair
        faults = self._explaining(result, found) if found is not None else ()
        for fault in faults:
            known = next((each for before, each in self._explained if _same(before, fault)), None)
            if known is None:
                self._explained.append((fault, [pair]))
            elif pair not in known:
                known.append(pair)
        if not faults:
            self.alone.append(pair)

    def _explaining(self, result: LawResult, found: Counterexample) -> tuple[Fault, ...]:
        case = from_json(found.stored) if found.stored else None
        if not self.operation.describes(case):
            # A case of a law's own, which is not a call of the operation.
            return ()
        explained = self._faults.explain(case, result.dtype)
        if explained:
            return explained
        # A case that is right by itself may be wrong after another one.
        stale = self._faults.stale(result.dtype) if any(array.nature for array in found.arrays) else None
        return (stale,) if stale is not None else self._without_faults(result, case)

    def _without_faults(self, result: LawResult, case: Any) -> tuple[Fault, ...]:
        """For a case whose own call is right: the faults without whose features the law holds."""
        for fault in self._faults.seen_in(result.dtype):
            wanted = {feature.name for feature in fault.features}
            other = avoiding(case, wanted, features_of(self.operation))
            if not wanted or other == case or not self.clock.left:
                continue
            try:
                found, _ = retried(
                    self.implementation,
                    result.law,
                    result.dtype,
                    other,
                    *_watched(self.watch),
                )
            except RefusedError:
                continue
            if not found:
                return (fault,)
        return ()

    def causes(self) -> list[Cause]:
        found = []
        for fault in self._faults.found:
            explained = next((each for before, each in self._explained if _same(before, fault)), [])
            shown = [result for result in self.results if _shows(result, fault)]
            # What breaks no law that failed is seen in the envelope.
            if explained or shown:
                found.append(causes.of_fault(fault, explained, shown, spared=self._spared(fault)))
        return found

    def _spared(self, fault: Fault) -> bool:
        """Whether a fault that float32 or float64 shows is not there in the other one."""
        tried = {result.dtype for result in self.results if result.status in ("passed", "failed")}
        others = [dtype for dtype in WIDE if dtype in tried and dtype not in fault.dtypes]
        if self.options.quick or len(others) == len(WIDE):
            return False
        case = fault.example.case
        for dtype in others:
            judge = self._judges.get(dtype) or self._judge(dtype)
            if judge(case).status(fault.aspect) == RIGHT:
                return True
        return False

    def envelope(self) -> Envelope:
        held = [result for result in self.results if result.dtype not in self._judges]
        dtypes = {result.dtype for result in self.results}
        matrix = self.matrix
        return envelope(self.operation, held, dtypes, matrix.cells, self._faults.found, matrix.untried)


def _watched(watch: Watch) -> tuple[Callable[[str | None], None], dict[str, BreakKind]]:
    """The announcement of a law's cases, and those that have ended a process before."""
    fatal = {key.removeprefix(LAW): kind for key, kind in watch.fatal.items() if key.startswith(LAW)}
    return lambda case: watch.announce(case and f"{LAW}{case}"), fatal


def _shows(result: LawResult, fault: Fault) -> bool:
    """Whether the fault's own example breaks a law that failed, on whichever cases that law was tried."""
    return result.status == "failed" and result.law.name == fault.aspect and result.dtype == fault.example.dtype


def _same(fault: Fault, other: Fault) -> bool:
    """Whether it is the same fault, of which more may have been learnt since."""
    return fault.example is other.example and fault.aspect == other.aspect
