"""One operation of a target: experiments on it, and its failed laws, each assigned to the faults that explain it."""

from collections.abc import Sequence
from typing import Any

from conformance.base.options import RunOptions
from conformance.cases import from_json
from conformance.diagnosis import causes, envelope
from conformance.diagnosis.cause import Cause, Envelope
from conformance.diagnosis.exploration import Exploration
from conformance.diagnosis.fault import Fault
from conformance.diagnosis.faults import RANK, Faults
from conformance.features import features_of
from conformance.features.admission import Admission
from conformance.features.feature import avoiding
from conformance.formulas.judged import RIGHT, Clock, Judge, Watch
from conformance.frameworks.implementation import Implementation, RefusedError
from conformance.judge.outcome import Counterexample, LawResult
from conformance.operations import Operation

WIDE = ("float64", "float32")

LAW = "law "
"""Prefix of the text that announces the case of a law."""

Pair = tuple[LawResult, Counterexample | None]
"""A failed law, and one of its counterexamples; None if it has none."""


def pairs(result: LawResult) -> list[Pair]:
    return [(result, found) for found in result.counterexamples] or [(result, None)]


class Examined:
    """One operation: experiments on it, and its failed laws, each assigned to the faults that explain it."""

    def __init__(
        self,
        implementation: Implementation,
        options: RunOptions,
        operation: Operation,
        results: Sequence[LawResult],
        clock: Clock,
        spare: Clock,
        watch: Watch,
    ):
        self.alone: list[Pair] = []
        self.untried: list[str] = []
        self._implementation = implementation
        self._options = options
        self._operation = operation
        self._admission = Admission(options.promises, implementation.keeps_contract)
        self._results = results
        self._clock = clock
        self._spare = spare
        self._watch = watch
        self._faults: Faults | None = None
        self._table: dict[str, Any] = {}
        self._explained: dict[int, list[Pair]] = {}
        self._order: list[Fault] = []

    def run(self, broken: Sequence[LawResult]) -> None:
        if not broken:
            return
        dtypes = [dtype for dtype in RANK if any(result.dtype == dtype for result in broken)]
        judges = {dtype: self._judge(dtype) for dtype in dtypes}
        hurried = self._options.hurried
        self._faults = Faults(self._operation, judges, self._clock, self._admission, hurried)
        exploration = Exploration(self._faults, self._spare)
        self._table, self.untried = exploration.table, exploration.untried
        if hurried:
            exploration.first_call()
        else:
            exploration.explore()
        self._attribute_all(broken)
        if not hurried and self._faults.absorb():
            self._attribute_all(broken)
        if hurried:
            exploration.explore()
        else:
            self._fill_table(dtypes)

    def _fill_table(self, tried: Sequence[str]) -> None:
        """Try each feature in the other dtypes, too: the cases of laws that held show few of them."""
        others = dict.fromkeys(each.dtype for each in self._results if each.status == "passed" and each.dtype in RANK)
        judges = {dtype: self._judge(dtype) for dtype in others if dtype not in tried}
        if judges:
            faults = Faults(self._operation, judges, self._clock, self._admission)
            exploration = Exploration(faults, self._spare)
            exploration.try_all()
            for name, trials in exploration.table.items():
                self._table.setdefault(name, {}).update(trials)

    def _judge(self, dtype: str) -> Judge:
        return Judge(
            self._implementation,
            self._operation,
            dtype,
            self._watch,
            gradients=self._options.only != "values",
            forward=not self._outputs_are_known(dtype),
        )

    def _outputs_are_known(self, dtype: str) -> bool:
        """Whether laws found that calls without a gradient are right, and that calls with one are served."""
        judged = {each.law.name: each.status for each in self._results if each.dtype == dtype}
        return judged.get("value") == "passed" and judged.get("gradient") in ("passed", "failed")

    def _attribute_all(self, broken: Sequence[LawResult]) -> None:
        self.alone, self._explained, self._order = [], {}, []
        for result in broken:
            for pair in pairs(result):
                self._attribute(*pair)

    def _attribute(self, result: LawResult, found: Counterexample | None) -> None:
        faults = self._explaining(result, found) if found is not None else ()
        if not faults:
            self.alone.append((result, found))
            return
        for number in dict.fromkeys(map(self._number, faults)):
            self._explained.setdefault(number, []).append((result, found))

    def _number(self, fault: Fault) -> int:
        """The position of a fault, which does not change when more is learnt about it."""
        for number, before in enumerate(self._order):
            if _same(before, fault):
                return number
        self._order.append(fault)
        return len(self._order) - 1

    def _explaining(self, result: LawResult, found: Counterexample) -> tuple[Fault, ...]:
        assert self._faults is not None
        case = from_json(found.stored) if found.stored else None
        if not self._operation.describes(case):
            # A case of a law's own, which is not a call of the operation.
            return ()
        explained = self._faults.explain(case, result.dtype)
        if explained:
            return explained
        # A case that is right by itself may be wrong after another one.
        stale = self._faults.stale(case, result.dtype) if any(array.nature for array in found.arrays) else None
        return (stale,) if stale is not None else self._without_faults(result, case)

    def _without_faults(self, result: LawResult, case: Any) -> tuple[Fault, ...]:
        """For a case whose own call is right: the faults without whose features the law holds."""
        assert self._faults is not None
        from conformance.judge.single_cases import retried

        for fault in self._faults.seen_in(result.dtype):
            wanted = {feature.name for feature in fault.features}
            other = avoiding(case, wanted, features_of(self._operation))
            if not wanted or other == case or not self._clock.left:
                continue
            try:
                found, _ = retried(
                    self._implementation,
                    result.law,
                    result.dtype,
                    other,
                    lambda case: self._watch.announce(case and f"{LAW}{case}"),
                    {key.removeprefix(LAW): kind for key, kind in self._watch.fatal.items() if key.startswith(LAW)},
                )
            except RefusedError:
                continue
            if not found:
                return (fault,)
        return ()

    def causes(self) -> list[Cause]:
        if self._faults is None:
            return []
        found = []
        for fault in self._faults.found:
            explained = next(
                (self._explained.get(number, []) for number, each in enumerate(self._order) if _same(each, fault)), []
            )
            shown = [result for result in self._results if _shows(result, fault)]
            # What breaks no law that failed is seen in the envelope.
            if explained or shown:
                found.append(causes.of_fault(fault, explained, shown, spared=self._spared(fault)))
        return found

    def _spared(self, fault: Fault) -> bool:
        """Whether a fault that float32 or float64 shows is not there in the other one."""
        assert self._faults is not None
        tried = {result.dtype for result in self._results if result.status in ("passed", "failed")}
        others = [dtype for dtype in WIDE if dtype in tried and dtype not in fault.dtypes]
        if self._options.hurried or len(others) == len(WIDE):
            return False
        case = fault.example.case
        for dtype in others:
            judge = self._faults.judges.get(dtype) or self._judge(dtype)
            if self._admission.admitted(self._operation.about, dtype, case) != case:
                continue
            if judge(case).status(fault.aspect) == RIGHT:
                return True
        return False

    def envelopes(self) -> list[Envelope]:
        if self._faults is None:
            counted = envelope.of_results(self._operation, self._results)
            return [] if counted is None else [counted]
        held = [result for result in self._results if result.dtype not in self._faults.judges]
        dtypes = {result.dtype for result in self._results}
        counts, found = envelope.counts_of(held), self._faults.found
        return [envelope.of_trials(self._operation, self._table, counts, dtypes, found, self.untried)]


def _shows(result: LawResult, fault: Fault) -> bool:
    """Whether the fault's own example breaks a law that failed, on whichever cases that law was tried."""
    return result.status == "failed" and result.law.name == fault.aspect and result.dtype == fault.example.dtype


def _same(fault: Fault, other: Fault) -> bool:
    return fault.example is other.example and fault.aspect == other.aspect
