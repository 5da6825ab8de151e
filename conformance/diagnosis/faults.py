"""Finds the faults of one operation by experiment: a plain call, one feature at a time, the cases of failed laws."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from conformance.cases import as_drawn
from conformance.diagnosis.fault import Fault
from conformance.diagnosis.formula_search import FormulaSearch, similar, with_steps
from conformance.diagnosis.necessity import Necessity, natures_of
from conformance.diagnosis.patterns import patterns
from conformance.diagnosis.staleness import Staleness
from conformance.features import features_of
from conformance.features.admission import Admission
from conformance.features.feature import Feature, avoiding, names
from conformance.formulas import pairs_of
from conformance.formulas.formula import Formula
from conformance.formulas.judged import NOT_PROMISED, RIGHT, WRONG, Clock, Judge, Judged
from conformance.formulas.recognition import matches
from conformance.operations import Operation

RANK = ("float32", "float64", "bfloat16", "float16")
"""Dtypes in the order in which a fault is examined: float32 first, because most kernels are written for it."""

SHORT = (1, 2, 3, 5, 7, 13)
"""Numbers of steps with which a shorter example of a fault is looked for."""


class Faults:
    """The faults of one operation that have been found so far.

    Args:
        operation: the operation.
        judges: one judge for each dtype.
        clock: when its time is over, nothing new is tried.
        admission: the cases that may be tried.
        hurried: whether formulas are tried on a case before a smaller one is looked for, which takes longer.
    """

    def __init__(
        self, operation: Operation, judges: dict[str, Judge], clock: Clock, admission: Admission, hurried: bool = False
    ):
        self.operation = operation
        self.judges = judges
        self.clock = clock
        self.admission = admission
        self.hurried = hurried
        self.found: list[Fault] = []
        self.served: dict[str, bool] = {}
        self._staleness: dict[str, Staleness] = {}

    def explain(self, case: Any, dtype: str) -> tuple[Fault, ...]:
        """The faults each of which makes a case wrong; if no known fault explains it, look for a new one.

        Returns an empty list if the case is not served, if time is over, or if the case is right and its roundings are
        not those of a known fault.
        """
        if dtype not in self.judges:
            return ()
        judged = self.judges[dtype](case)
        if not judged.wrong:
            # A law with a narrower tolerance may be broken by roundings that an experiment allows.
            rounding = (each for each in self.found if each.formula is not None and each.formula.noisy)
            return tuple(self._seen(each, dtype) for each in rounding if judged.got and self._equals(each, judged))
        present = names(case, features_of(self.operation))
        followed = self._followed(judged)
        if followed:
            return tuple(self._seen(fault, dtype) for fault in followed)
        unrecognised = [fault for fault in self.seen_in(dtype) if fault.plain or fault.anywhere]
        shown = [fault for fault in unrecognised if self._shows(fault, judged, present)]
        explaining = self._explaining(shown, judged) if shown else ()
        if explaining:
            return tuple(self._seen(fault, dtype) for fault in explaining)
        fault = self._new(judged)
        return tuple(shown[:1]) if fault is None else (fault,)

    def stale(self, case: Any, dtype: str) -> Fault | None:
        """The fault that results of calls like this case are those of earlier calls, which may have been right."""
        if dtype not in self.judges:
            return None
        if dtype not in self._staleness:
            known = self.operation, self.judges[dtype], self.clock
            self._staleness[dtype] = Staleness(*known, partial(self._admits, dtype=dtype), self.hurried)
        found = self._staleness[dtype].of(case, known=any(fault.stale for fault in self.found))
        if found is None:
            return None
        for fault in self.found:
            if fault.stale is not None and found.is_like(fault.stale):
                return self._seen(fault, dtype)
        fault = Fault(
            op=self.operation.about,
            aspect=found.aspect,
            formula=None,
            features=(),
            example=found.example,
            dtypes=(dtype,),
            stale=found,
        )
        self.found.append(fault)
        return fault

    def absorb(self) -> bool:
        """Drop faults that are explained by formulas that other calls showed later; return whether there were any."""
        before = len(self.found)
        self.found = [fault for fault in self.found if fault.formula is not None or not self._followed(fault.example)]
        return len(self.found) < before

    def seen_in(self, dtype: str) -> list[Fault]:
        """The faults that calls in a dtype show; most of them were found in another dtype."""
        return [fault for fault in self.found if dtype in fault.dtypes or self._shown_in(fault, dtype)]

    def _shown_in(self, fault: Fault, dtype: str) -> bool:
        judged = self.judges[dtype](fault.example.case)
        return judged.status(fault.aspect) == WRONG and bool(fault.natures & natures_of(judged))

    def _equals(self, fault: Fault, judged: Judged) -> bool:
        assert fault.formula is not None
        return self._matches(fault.formula, judged)

    def _matches(self, formula: Formula, judged: Judged) -> bool:
        return matches(formula, judged, self.judges[judged.dtype].precision_of(judged), closely=False) is True

    def _shows(self, fault: Fault, judged: Judged, present: frozenset[str]) -> bool:
        """Whether the fault alone could have made the case wrong: same features, same ways to be wrong."""
        if not {feature.name for feature in fault.features} <= present or not fault.natures & natures_of(judged):
            return False
        return fault.aspect == "value" or judged.value != WRONG

    def _explaining(self, shown: Sequence[Fault], judged: Judged) -> tuple[Fault, ...]:
        """The faults without whose features the case is right, and those of the formula that it follows without them.

        Empty if the case is wrong without these features, and follows no formula.
        """
        everywhere = tuple(fault for fault in shown if not fault.features)
        if everywhere:
            of_faults = {array.where for fault in shown for array in fault.example.wrong_arrays}
            of_faults |= set().union(*(set(fault.natures) for fault in shown)) & {"exception"}
            wrong = {array.where for array in judged.wrong_arrays} or {"exception"}
            explained = wrong <= of_faults or bool(judged.problem) == bool(shown[0].example.problem)
            return everywhere if explained else ()
        for fault in shown:
            if judged.status(fault.aspect) != WRONG:
                continue
            for feature in fault.features:
                other = feature.without(judged.case)
                status = NOT_PROMISED if feature.present(other) else self._status(other, judged.dtype, fault.aspect)
                if status == RIGHT:
                    return (fault,)
                followed = self._followed(self.judges[judged.dtype](other)) if status == WRONG else ()
                if followed:
                    return (*followed, fault)
        removed = avoiding(
            judged.case, {each.name for fault in shown for each in fault.features}, features_of(self.operation)
        )
        rest = self.judges[judged.dtype](removed)
        followed = self._followed(rest) if rest.wrong else ()
        return (*followed, *shown) if followed or not rest.wrong else ()

    def _status(self, case: Any, dtype: str, aspect: str) -> str | None:
        """The verdict on a case; a case outside the promises is not tried."""
        if not self._admits(case, dtype):
            return NOT_PROMISED
        return self.judges[dtype](case).status(aspect)

    def _admits(self, case: Any, dtype: str) -> bool:
        return self.admission.admitted(self.operation.about, dtype, case) == case

    def _seen(self, fault: Fault, dtype: str) -> Fault:
        if dtype in fault.dtypes:
            return fault
        other = replace(fault, dtypes=(*fault.dtypes, dtype))
        self.found[self.found.index(fault)] = other
        return other

    def _new(self, judged: Judged) -> Fault | None:
        if not self.clock.left:
            return None
        if (stale := self.stale(judged.case, judged.dtype)) is not None:
            return stale
        aspect = "value" if judged.value == WRONG else "gradient"

        def status(case: Any) -> str | None:
            return self._status(case, judged.dtype, aspect)

        def happens(case: Any) -> bool:
            return status(case) == WRONG

        judge = self.judges[judged.dtype]
        formula = self._recognised(judged, happens) if self.hurried else None
        small = self._smaller(judged, happens) if formula is None else judge(self._shorter(judged.case, happens))
        formula = formula or self._recognised(small, happens)
        essential = (
            ()
            if formula is not None and not formula.occasional
            # A call without the feature that is refused, or outside the promises, says nothing about the feature.
            else self._needed(judged, small, happens, lambda case: status(case) != RIGHT)
        )
        fault = self._kept(aspect, formula, essential, small, happens)
        # What rounds is only close to a formula that rounds, and departs from it here and there.
        if formula is None or formula.noisy or self.hurried or self._equals(fault, judged):
            return fault
        return self._beside(judged, aspect) or fault

    def _beside(self, judged: Judged, aspect: str) -> Fault | None:
        """The fault of a case that departs from a formula which the target equals on simpler calls.

        None if no feature of the case is responsible.
        """

        def departs(case: Any) -> bool:
            wrong = self._status(case, judged.dtype, aspect) == WRONG
            return wrong and not self._followed(self.judges[judged.dtype](case))

        def may_depart(case: Any) -> bool:
            return self._status(case, judged.dtype, aspect) not in (RIGHT, WRONG) or departs(case)

        small = self._smaller(judged, departs)
        essential = self._needed(judged, small, departs, may_depart) if self.clock.left else ()
        return self._kept(aspect, None, essential, small, departs) if essential else None

    def _needed(
        self, judged: Judged, small: Judged, happens: Callable[[Any], bool], may_happen: Callable[[Any], bool]
    ) -> tuple[Feature, ...]:
        experiments = Necessity(
            features_of(self.operation), self.judges[judged.dtype], self.clock, thorough=not self.hurried
        )
        return experiments.features(judged.case, small, happens, may_happen)

    def _followed(self, judged: Judged) -> tuple[Fault, ...]:
        """The faults whose formula the target follows on a case: one, or two at once; none if there are no such."""
        found = [(fault, fault.formula) for fault in self.found if fault.formula is not None]
        for fault, formula in found:
            if self._matches(formula, judged):
                return (fault,)
        for (first, formula), (second, other) in itertools.combinations(found, 2):
            if any(self._matches(both, judged) for both in pairs_of(self.operation, [(formula, other)])):
                return first, second
        return ()

    def _kept(
        self,
        aspect: str,
        formula: Formula | None,
        essential: tuple[Feature, ...],
        small: Judged,
        happens: Callable[[Any], bool],
    ) -> Fault:
        """The fault among those found so far, which is added if it is not known."""
        judge = self.judges[small.dtype]
        for number, fault in enumerate(self.found):
            same = fault.formula is not None and formula is not None and fault.formula.name == formula.name
            alike = fault.plain and formula is None and fault.features == essential and fault.aspect == aspect
            if same or (alike and fault.natures == natures_of(small)):
                self.found[number] = replace(fault, dtypes=tuple(dict.fromkeys((*fault.dtypes, small.dtype))))
                return self.found[number]

        shown = [] if formula is not None else self._trials(small, happens)
        fault = Fault(
            op=self.operation.about,
            aspect=aspect,
            formula=formula,
            features=essential,
            example=small,
            dtypes=(small.dtype,),
            patterns=patterns(shown, judge.precision_of) if shown else {},
        )
        self.found.append(fault)
        return fault

    def _trials(self, small: Judged, happens: Callable[[Any], bool]) -> list[Judged]:
        """The case with drawn elements, if it shows the fault then, and with other ones."""
        drawn, judge = as_drawn(small.case), self.judges[small.dtype]
        first = judge(drawn) if drawn != small.case and self.clock.left and happens(drawn) else small
        return [first, *(similar(first, judge, happens) if self.clock.left else ())]

    def _smaller(self, judged: Judged, happens: Callable[[Any], bool]) -> Judged:
        """The case without the features that the fault does not need, and with fewer steps if it still shows."""
        case = self._shorter(judged.case, happens)
        for feature in features_of(self.operation):
            if not self.clock.left:
                break
            if feature.present(case) and feature.present(judged.case):
                other = feature.without(case)
                if not feature.present(other) and other.size <= 4 * case.size + 400 and happens(other):
                    case = other
        return self.judges[judged.dtype](self._shorter(case, happens))

    def _shorter(self, case: Any, happens: Callable[[Any], bool]) -> Any:
        """The case with the fewest steps of `SHORT` with which the fault still shows."""
        for S in SHORT:
            shorter = with_steps(case, S)
            if S < case.steps and self.clock.left and happens(shorter):
                return shorter
        return case

    def _recognised(self, judged: Judged, happens: Callable[[Any], bool]) -> Formula | None:
        """The formula that the target equals on this case and on similar ones."""
        # Calls with these features were right, or equal to a formula, or at least served.
        served = frozenset(name for name, served in self.served.items() if served)
        known = [fault.formula for fault in self.found if fault.formula is not None]
        search = FormulaSearch(self.operation, self.judges[judged.dtype], self.clock, served, known)
        return search.formula_of(judged, happens)
