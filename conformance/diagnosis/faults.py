"""Finds the faults of one operation by experiment: a plain call, one feature at a time, the cases of failed laws."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from conformance.diagnosis.admission import Admission, excluded
from conformance.diagnosis.features import Feature, avoiding, names, needed, only
from conformance.diagnosis.formulas.formula import Formula
from conformance.diagnosis.judged import NOT_PROMISED, RIGHT, WRONG, Clock, Judge, Judged
from conformance.diagnosis.recognition import matches, patterns, recognised
from conformance.operations import Operation

SEEDS = (0, 1)
RANK = ("float32", "float64", "bfloat16", "float16")
"""Dtypes in the order in which a fault is examined: float32 first, because most kernels are written for it."""

EXCEPTION = frozenset({"exception"})

RECOGNITION_SECONDS = 12.0
"""Time limit for trying formulas on one fault; pairs of formulas have the same limit again."""

SHORT = (1, 2, 3, 5, 7, 13)
"""Numbers of steps with which a shorter example of a fault is looked for."""

SHORT_STEPS = 8
"""Steps of a call with a feature that does not depend on their number; few steps take an eighth of the time."""

PLAIN = "plain call"
"""The name for calls without any feature, in a list of features."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of an operation.

    Attributes:
        aspect: ``value`` or ``gradient``.
        formula: the formula that is computed instead; None if it was not recognised.
        features: the features without which it does not show.
        example: a case that shows it.
        dtypes: the dtypes in which it was seen.
        patterns: see `recognition.patterns`.
    """

    op: str
    aspect: str
    formula: Formula | None
    features: tuple[Feature, ...]
    example: Judged
    dtypes: tuple[str, ...]
    patterns: dict[str, str] = field(default_factory=dict)

    @property
    def natures(self) -> frozenset[str]:
        return _natures(self.example)


class Faults:
    """The faults of one operation that have been found so far.

    Args:
        operation: the operation.
        judges: one judge for each dtype.
        clock: when its time is over, nothing new is tried.
        admission: the cases that may be tried.
    """

    def __init__(self, operation: Operation, judges: dict[str, Judge], clock: Clock, admission: Admission):
        self.operation = operation
        self.judges = judges
        self.clock = clock
        self.admission = admission
        self.found: list[Fault] = []
        self.served: dict[str, bool] = {}

    def explain(self, case: Any, dtype: str) -> tuple[Fault, ...]:
        """The faults that a wrong case shows; if no known fault explains it, look for a new one.

        Returns an empty list if the case is right or not served, or if time is over.
        """
        if dtype not in self.judges:
            return ()
        judged = self.judges[dtype](case)
        if not judged.wrong:
            return ()
        present = names(case, self.operation.features)
        for fault in self.found:
            if fault.formula is not None and self._equals(fault, judged):
                return (self._seen(fault, dtype),)
        unrecognised = [fault for fault in self.seen_in(dtype) if fault.formula is None]
        shown = [fault for fault in unrecognised if self._shows(fault, judged, present)]
        if shown and self._all(shown, judged):
            return tuple(self._seen(fault, dtype) for fault in shown)
        fault = self._new(judged)
        if fault is None:
            return tuple(shown)
        return (fault, *(each for each in shown if each is not fault))

    def absorb(self) -> None:
        """Drop faults that are explained by a formula that another call showed later."""
        formulas = [fault for fault in self.found if fault.formula is not None]
        self.found = [
            fault
            for fault in self.found
            if fault.formula is not None or not any(self._equals(formula, fault.example) for formula in formulas)
        ]

    def seen_in(self, dtype: str) -> list[Fault]:
        """The faults that calls in a dtype show; most of them were found in another dtype."""
        return [fault for fault in self.found if dtype in fault.dtypes or self._shown_in(fault, dtype)]

    def _shown_in(self, fault: Fault, dtype: str) -> bool:
        judged = self.judges[dtype](fault.example.case)
        return judged.status(fault.aspect) == WRONG and bool(fault.natures & _natures(judged))

    def _equals(self, fault: Fault, judged: Judged) -> bool:
        assert fault.formula is not None and judged.call is not None
        return matches(fault.formula, judged, self.judges[judged.dtype].precision(judged.call), closely=False) is True

    def _shows(self, fault: Fault, judged: Judged, present: frozenset[str]) -> bool:
        """Whether the fault alone could have made the case wrong: same features, same ways to be wrong."""
        if not {feature.name for feature in fault.features} <= present or not fault.natures & _natures(judged):
            return False
        return fault.aspect == "value" or judged.value != WRONG

    def _all(self, shown: Sequence[Fault], judged: Judged) -> bool:
        """Whether the case is right without the features of these faults."""
        if any(not fault.features for fault in shown):
            of_faults = {array.where for fault in shown for array in fault.example.wrong_arrays}
            of_faults |= set().union(*(set(fault.natures) for fault in shown)) & {"exception"}
            wrong = {array.where for array in judged.wrong_arrays} or {"exception"}
            return wrong <= of_faults or bool(judged.problem) == bool(shown[0].example.problem)
        for fault in shown:
            for feature in fault.features:
                other = feature.without(judged.case)
                if not feature.present(other) and self._status(other, judged.dtype, fault.aspect) == RIGHT:
                    return True
        removed = avoiding(
            judged.case, {each.name for fault in shown for each in fault.features}, self.operation.features
        )
        return not self.judges[judged.dtype](removed).wrong

    def _status(self, case: Any, dtype: str, aspect: str) -> str | None:
        """The verdict on a case; a case outside the promises is not tried."""
        if self.admission.admitted(self.operation.about, dtype, case) != case:
            return NOT_PROMISED
        return self.judges[dtype](case).status(aspect)

    def _seen(self, fault: Fault, dtype: str) -> Fault:
        if dtype in fault.dtypes:
            return fault
        other = replace(fault, dtypes=(*fault.dtypes, dtype))
        self.found[self.found.index(fault)] = other
        return other

    def _new(self, judged: Judged) -> Fault | None:
        if not self.clock.left:
            return None
        aspect = "value" if judged.value == WRONG else "gradient"

        def status(case: Any) -> str | None:
            return self._status(case, judged.dtype, aspect)

        def happens(case: Any) -> bool:
            return status(case) == WRONG

        judge = self.judges[judged.dtype]
        small = self._smaller(judged, happens)
        formula = self._recognised(small, happens)
        essential = (
            ()
            if formula is not None and not formula.occasional
            # A call without the feature that is refused, or outside the promises, says nothing about the feature.
            else needed(small.case, lambda case: status(case) != RIGHT, self.operation.features)
        )
        for number, fault in enumerate(self.found):
            same = fault.formula is not None and formula is not None and fault.formula.name == formula.name
            alike = fault.formula is None and formula is None and fault.features == essential and fault.aspect == aspect
            if same or (alike and fault.natures == _natures(small)):
                self.found[number] = replace(fault, dtypes=tuple(dict.fromkeys((*fault.dtypes, judged.dtype))))
                return self.found[number]
        assert small.call is not None
        found = {} if formula is not None else patterns(small, judge.precision(small.call))
        fault = Fault(
            op=self.operation.about,
            aspect=aspect,
            formula=formula,
            features=essential,
            example=small,
            dtypes=(judged.dtype,),
            patterns=found,
        )
        self.found.append(fault)
        return fault

    def _smaller(self, judged: Judged, happens: Callable[[Any], bool]) -> Judged:
        """The case without the features that the fault does not need, and with fewer steps if it still shows."""
        case = self._shorter(judged.case, happens)
        for feature in self.operation.features:
            if not self.clock.left:
                break
            if feature.present(case):
                other = feature.without(case)
                if not feature.present(other) and other.size <= 4 * case.size + 400 and happens(other):
                    case = other
        return self.judges[judged.dtype](self._shorter(case, happens))

    def _shorter(self, case: Any, happens: Callable[[Any], bool]) -> Any:
        """The case with the fewest steps of `SHORT` with which the fault still shows."""
        for S in SHORT:
            shorter = _with_steps(case, S)
            if shorter is not None and S < case.steps and self.clock.left and happens(shorter):
                return shorter
        return case

    def _recognised(self, judged: Judged, happens: Callable[[Any], bool]) -> Formula | None:
        """The formula that the target equals on this case and on similar ones."""
        only_nan = _natures(judged) == {"nan"}
        if judged.problem or only_nan or not self.clock.left:
            return None
        judge = self.judges[judged.dtype]
        trials = [judged]
        for seed in range(1, 6):
            other = _reseeded(judged.case, seed)
            if len(trials) < 2 and happens(other):
                trials.append(judge(other))
        if (make := self.operation.rich or self.operation.plain) is not None:
            # A call that shows all there is to see: of several formulas that agree on the smallest, one remains.
            served = names(judged.case, self.operation.features) | self._served()
            rich = judge(only(make(1), served, self.operation.features))
            if rich.wrong and not rich.problem:
                trials.append(rich)
        found = self._formulas(judged)

        def precision(trial: Judged) -> Any:
            assert trial.call is not None
            return judge.precision(trial.call)

        single = recognised(self._timed(found), trials, precision)
        if single is None:
            # With a second, smaller fault the target equals no formula to within a tolerance.
            single = recognised(self._timed(found), trials, precision, closely=False)
        if single is not None:
            return single
        exact = [formula for formula in found if not formula.noisy]
        pairs = (
            both
            for at, first in enumerate(exact)
            for second in exact[at + 1 :]
            if (both := self.operation.paired(first, second)) is not None
        )
        return recognised(self._timed(pairs), trials, precision)

    def _served(self) -> frozenset[str]:
        """The features of calls that were right, or equal to a formula, or at least served."""
        return frozenset(name for name, served in self.served.items() if served)

    def _formulas(self, judged: Judged) -> list[Formula]:
        """The formulas to try, the likely ones first."""
        chunk_size = getattr(judged.case, "chunk_size", None)
        found = self.operation.formulas(chunk_size)
        of_aspect = [formula for formula in found if formula.changes_value == (judged.value == WRONG)]
        return [*of_aspect, *(formula for formula in found if formula not in of_aspect)]

    def _timed(self, formulas: Iterable[Formula]) -> Iterable[Formula]:
        own = Clock(RECOGNITION_SECONDS)
        for formula in formulas:
            if not self.clock.left or not own.left:
                return
            yield formula


def _natures(judged: Judged) -> frozenset[str]:
    return frozenset(array.nature for array in judged.wrong_arrays if array.nature is not None) or EXCEPTION


def _reseeded(case: Any, seed: int) -> Any:
    """The case with other random values."""
    if hasattr(case, "inner"):
        return replace(case, inner=replace(case.inner, seed=case.inner.seed + seed))
    return replace(case, seed=case.seed + seed)


def _with_steps(case: Any, S: int) -> Any | None:
    """The case with this number of steps; None if it is packed."""
    if hasattr(case, "inner"):
        inner = _with_steps(case.inner, S)
        return None if inner is None else replace(case, inner=inner)
    return None if getattr(case, "lengths", None) is not None else replace(case, S=S)


def explore(
    operation: Operation, judges: dict[str, Judge], clock: Clock, admission: Admission
) -> tuple[Faults, dict[str, dict[str, list[Judged]]]]:
    """The faults that plain calls and calls with a single feature show, and all calls that were judged.

    Returns:
        The faults, and the judged calls by feature (``plain call`` first) and dtype.
    """
    faults = Faults(operation, judges, clock, admission)
    features = admission.features(operation)
    assert operation.plain is not None
    table: dict[str, dict[str, list[Judged]]] = {}
    first, *others = sorted(judges, key=RANK.index)
    outside = {dtype: set(excluded(features, admission, operation, dtype)) for dtype in judges}

    def tried(dtype: str, name: str, case: Any) -> Judged:
        inside = admission.admitted(operation.about, dtype, case)
        if name in outside[dtype] or inside is None:
            judged = Judged(case=case, dtype=dtype, value=NOT_PROMISED, gradient=NOT_PROMISED, arrays=())
        else:
            judged = judges[dtype](inside)
        table.setdefault(name, {}).setdefault(dtype, []).append(judged)
        faults.served[name] = faults.served.get(name, False) or judged.served
        return judged

    for dtype, seed in [*((first, seed) for seed in SEEDS), *((dtype, SEEDS[0]) for dtype in others)]:
        if not clock.left:
            break
        plain = operation.plain(seed)
        short = _short(plain, tried(dtype, PLAIN, plain), features, partial(tried, dtype))
        for feature in features:
            case = _with(feature, plain, short)
            if case is not None and clock.left:
                tried(dtype, feature.name, case)
    # A plain call first, then the calls with one feature: what a simpler call shows explains the others.
    for trials in table.values():
        for judged in trials.get(first, ()):
            if judged.wrong:
                faults.explain(judged.case, first)
    faults.absorb()
    return faults, table


def _short(plain: Any, judged: Judged, features: Iterable[Feature], tried: Callable[[str, Any], Judged]) -> Any | None:
    """The plain case with few steps, to save time; None if its verdict differs from that of the plain case.

    Args:
        judged: the plain case.
        tried: judges a case under the name of a feature.
    """
    short = _with_steps(plain, SHORT_STEPS)
    if short is None or short.steps >= plain.steps:
        return None
    gained = (feature.name for feature in features if feature.present(short) and not feature.present(plain))
    other = tried(next(gained, PLAIN), short)
    return short if (other.value, other.gradient) == (judged.value, judged.gradient) else None


def _with(feature: Feature, plain: Any, short: Any | None) -> Any | None:
    """A plain case with one added feature, with few steps unless the feature depends on their number.

    None if the feature cannot be added, or every case has it.
    """
    if feature.present(plain):
        return None
    if short is not None and not feature.present(short):
        other = feature.added(short)
        if feature.present(other) and other.steps <= short.steps:
            return other
    other = feature.added(plain)
    return other if feature.present(other) else None
