"""Finds the faults of one operation by experiment: in plain calls, with one feature, in the cases of failed laws."""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from conformance.cases import as_drawn
from conformance.diagnosis.experiments import Experiments, Happens, natures_of
from conformance.diagnosis.formula_search import FormulaSearch
from conformance.diagnosis.patterns import patterns
from conformance.diagnosis.ranges import Range, ranges_of
from conformance.diagnosis.staleness import staleness
from conformance.features import features_of
from conformance.features.feature import Feature, avoiding, names
from conformance.formulas.formula import Formula
from conformance.formulas.judged import RIGHT, WRONG, Clock, Judge, Judged
from conformance.formulas.recognition import matches
from conformance.operations import Operation


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of an operation, as experiments show it.

    Attributes:
        aspect: ``value`` or ``gradient``.
        formula: the formula that is computed instead; None if it was not recognised.
        features: the features without which it does not show.
        example: a case that shows it.
        dtypes: the dtypes in which it was seen.
        patterns: see `conformance.diagnosis.patterns`.
        stale: whether its results are computed from values of an earlier call of the same shapes.
        ranges: the sizes and gates for which it shows, where they say more than features.
        located: whether there was time to find out which features it needs.
    """

    op: str
    aspect: str
    formula: Formula | None
    features: tuple[Feature, ...]
    example: Judged
    dtypes: tuple[str, ...]
    patterns: dict[str, str] = field(default_factory=dict)
    stale: bool = False
    ranges: tuple[Range, ...] = ()
    located: bool = True

    @property
    def plain(self) -> bool:
        """Whether only its features, and how arrays are wrong, are known of it."""
        return self.formula is None and not self.stale

    @property
    def natures(self) -> frozenset[str]:
        return natures_of(self.example)

    @property
    def where(self) -> str:
        """The calls that show it, as a clause; empty if every call does."""
        covered = {name for each in self.ranges for name in each.covers}
        clauses = [feature.where for feature in self.features if feature.name not in covered]
        return " and ".join([*clauses, *(f"where {each.clause}" for each in self.ranges)]).replace(" and where", " and")


@dataclass
class Faults:
    """The faults of one operation that have been found so far.

    Attributes:
        clock: when its time is over, nothing new is tried.
        hurried: whether formulas are tried on a case before a smaller one is looked for, which takes longer.
        served: returns the names of features of calls that were right, or equal to a formula, or at least served.
    """

    operation: Operation
    judges: dict[str, Judge]
    clock: Clock
    hurried: bool = False
    served: Callable[[], Set[str]] = frozenset
    found: list[Fault] = field(default_factory=list)
    _stale: dict[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._in = {
            dtype: Experiments(
                features_of(self.operation),
                judge,
                self.clock,
                thorough=not self.hurried,
            )
            for dtype, judge in self.judges.items()
        }

    def explain(self, case: Any, dtype: str) -> tuple[Fault, ...]:
        """The faults each of which makes a case wrong; if no known fault explains it, look for a new one.

        Returns an empty list if the case is not served, if time is over, or if the case is right and its roundings are
        not those of a known fault.
        """
        if dtype not in self._in:
            return ()
        judged = self.judges[dtype](case)
        if not judged.wrong:
            # A law with a narrower tolerance may be broken by roundings that an experiment allows.
            rounding = [(each, each.formula) for each in self.found if each.formula is not None and each.formula.rounds]
            return tuple(self._seen(each, dtype) for each, formula in rounding if _follows(formula, judged))
        present = names(case, features_of(self.operation))
        followed = self._followed(judged)
        if followed:
            return tuple(self._seen(fault, dtype) for fault in followed)
        unrecognised = [fault for fault in self.seen_in(dtype) if fault.formula is None]
        shown = [fault for fault in unrecognised if self._shows(fault, judged, present)]
        explaining = self._explaining(shown, judged) if shown else ()
        if explaining:
            return tuple(self._seen(fault, dtype) for fault in explaining)
        fault = self._new(judged)
        return tuple(shown[:1]) if fault is None else (fault,)

    def stale(self, dtype: str) -> Fault | None:
        """The fault that results are computed from values of earlier calls, if they are; it is looked for once."""
        if dtype not in self._stale:
            found = staleness(self._in[dtype]) if dtype in self._in and self.clock.left else None
            self._stale[dtype] = None if found is None else self._with_stale(*found)
        aspect = self._stale[dtype]
        return next((fault for fault in self.found if fault.stale and fault.aspect == aspect), None)

    def _with_stale(self, aspect: str, example: Judged) -> str:
        """Add that an aspect of results is stale, unless it is known from another dtype; return the aspect."""
        for fault in self.found:
            if fault.stale and fault.aspect == aspect:
                self._seen(fault, example.dtype)
                return aspect
        self.found.append(
            Fault(
                op=self.operation.about,
                aspect=aspect,
                formula=None,
                features=(),
                example=example,
                dtypes=(example.dtype,),
                stale=True,
            )
        )
        return aspect

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
        tried = self._in[judged.dtype]
        for fault in shown:
            if judged.status(fault.aspect) != WRONG:
                continue
            for feature in fault.features:
                other = feature.without(judged.case)
                status = None if feature.present(other) else tried.status(other, fault.aspect)
                if status == RIGHT:
                    return (fault,)
                followed = self._followed(tried.judge(other)) if status == WRONG else ()
                if followed:
                    return (*followed, fault)
        removed = avoiding(judged.case, {each.name for fault in shown for each in fault.features}, tried.features)
        rest = tried.judge(removed)
        followed = self._followed(rest) if rest.wrong else ()
        return (*followed, *shown) if followed or not rest.wrong else ()

    def _seen(self, fault: Fault, dtype: str) -> Fault:
        if dtype in fault.dtypes:
            return fault
        other = replace(fault, dtypes=(*fault.dtypes, dtype))
        self.found[self.found.index(fault)] = other
        return other

    def _new(self, judged: Judged) -> Fault | None:
        if not self.clock.left:
            return None
        if (stale := self.stale(judged.dtype)) is not None:
            return stale
        aspect, tried = "value" if judged.value == WRONG else "gradient", self._in[judged.dtype]

        def happens(case: Any) -> bool:
            return tried.status(case, aspect) == WRONG

        search = FormulaSearch(tried, self.served())
        formula = search.formula(judged, happens) if self.hurried else None
        small = tried.smaller(judged, happens) if formula is None else tried.judge(tried.shorter(judged.case, happens))
        formula = formula or search.formula(small, happens)
        essential: tuple[Feature, ...] = ()
        ranges: tuple[Range, ...] = ()
        if formula is None:
            # A call without the feature that is refused says nothing about the feature.
            essential = tried.needed(judged.case, small, happens, lambda case: tried.status(case, aspect) != RIGHT)
            ranges = () if self.hurried else ranges_of(tried, small, essential, aspect, happens)
            formula = search.of_ranges(small, judged, happens, ranges)
            if formula is not None:
                essential, ranges = (), ()
        fault = self._kept(aspect, formula, essential, judged, small, happens, ranges)
        # What rounds is only close to a formula that rounds, and departs from it here and there.
        if formula is None or formula.rounds or self.hurried or _follows(formula, judged):
            return fault
        return self._beside(judged, aspect) or fault

    def _beside(self, judged: Judged, aspect: str) -> Fault | None:
        """The fault of a case that departs from a formula which the target equals on simpler calls.

        None if no feature of the case is responsible.
        """
        tried = self._in[judged.dtype]

        def departs(case: Any) -> bool:
            return tried.status(case, aspect) == WRONG and not self._followed(tried.judge(case))

        def may_depart(case: Any) -> bool:
            return tried.status(case, aspect) not in (RIGHT, WRONG) or departs(case)

        small = tried.smaller(judged, departs)
        essential = tried.needed(judged.case, small, departs, may_depart) if self.clock.left else ()
        if not essential:
            return None
        ranges = ranges_of(tried, small, essential, aspect, departs)
        return self._kept(aspect, None, essential, judged, small, departs, ranges)

    def _followed(self, judged: Judged) -> tuple[Fault, ...]:
        """The fault whose formula the target follows on a case; none if there is no such."""
        found = ((fault, fault.formula) for fault in self.found if fault.formula is not None)
        return next(((fault,) for fault, formula in found if _follows(formula, judged)), ())

    def _kept(
        self,
        aspect: str,
        formula: Formula | None,
        essential: tuple[Feature, ...],
        judged: Judged,
        small: Judged,
        happens: Happens,
        ranges: tuple[Range, ...] = (),
    ) -> Fault:
        """The fault among those found so far, which is added if it is not known."""
        for number, fault in enumerate(self.found):
            same = fault.formula is not None and formula is not None and fault.formula.name == formula.name
            alike = fault.plain and formula is None and fault.features == essential and fault.aspect == aspect
            if same or (alike and fault.natures == natures_of(small)):
                self.found[number] = replace(fault, dtypes=tuple(dict.fromkeys((*fault.dtypes, small.dtype))))
                return self.found[number]
        tried = self._in[small.dtype]
        shown = [] if formula is not None else tried.drawn(small, happens)
        # A pattern of a small call is that of the fault only if the call in which it was found shows it, too.
        found_in = as_drawn(judged.case)
        if shown and self.clock.left and happens(found_in):
            shown.append(tried.judge(found_in))
        fault = Fault(
            op=self.operation.about,
            aspect=aspect,
            formula=formula,
            features=essential,
            example=small,
            dtypes=(small.dtype,),
            patterns=patterns(shown),
            ranges=ranges,
            located=bool(essential) or self.clock.left,
        )
        self.found.append(fault)
        return fault


def _follows(formula: Formula, judged: Judged) -> bool:
    return matches(formula, judged, closely=False) is True
