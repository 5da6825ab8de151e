"""One try of one law on one case: calls the target, compares its answers, and raises if the law is broken."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from conformance import oracle
from conformance.base.call import Call
from conformance.base.dtypes import ROUNDOFF, Array, accumulation
from conformance.base.exceptions import raised_by_target, shortened, text_of
from conformance.frameworks.implementation import Implementation, Named, RefusedError, Results
from conformance.laws.comparison import CallRecord, Comparison, Evidence, HasNaN, Point, WrongDtype, WrongShape
from conformance.operations import LOG_SCALE, OPERATIONS, in_units_of
from conformance.tolerance.budget import Expected, Precision, Verdict
from conformance.tolerance.compared import ArrayOutcome, BreakKind, Compared, compared, dtype_of
from conformance.tolerance.designs import AnyDesign, TensorFloat32, TensorFloat32AnyDesign
from conformance.tolerance.staged import Staged, stages

MANY = 25.0
"""Roundoffs of the dtype of a result, of its largest element, by which it may be off and not count as far off."""
HOPELESS = 100.0
"""The number of tolerances, those of one way to compute an array, by which it has to be off as well.

Of the gradients and values of three recurrences (2,696 arrays, ordinary and extreme gates), 1 % would be allowed to be
off by so much and by 1,000 roundoffs by another way, 0.3 % by 100,000 roundoffs.
"""


class LawError(Exception):
    """A law does not hold.

    Attributes:
        where: the array, ``gradient of k``.
        verdict: the outcome of the comparison; None if no numbers were compared.
        comparison: the comparison, if it can be shown without the law.
        nature: how it breaks, as in `conformance.tolerance.compared.BreakKind`.
    """

    def __init__(
        self,
        where: str,
        text: str,
        verdict: Verdict | None = None,
        comparison: Evidence | None = None,
        nature: str = "text",
    ):
        super().__init__(f"{where}: {text}" if where else text)
        self.where = where
        self.text = text
        self.verdict = verdict
        self.comparison = comparison
        self.nature = nature

    @property
    def kind(self) -> BreakKind:
        return BreakKind(self.where, self.nature)


@dataclass(eq=False)
class Checker:
    """The object that a law's check receives in addition to the case.

    Attributes:
        implementation: the target.
        dtype: the dtype of the values.
        forward: whether outputs must be those of a call without a gradient.
        gradients_only: whether arrays that are not gradients are left unjudged.
        far: what is off by more roundoffs of its largest element, and by many tolerances of one way to compute it, is
            wrong although the others are not known.
        calls: the calls of the present case.
        breaks: the breaks found in the present case.
        arrays: the arrays of the present case that were compared; the worst one of several with the same name.
        points: the largest errors of each case in which nothing is broken.
        worst: the largest error over its budget so far.
        kinks, elements: elements at which the gradient of either side passes, and all elements that were checked.
        branches: elements by the branch that they took.
    """

    implementation: Implementation
    dtype: str
    forward: bool = True
    gradients_only: bool = False
    far: float = math.inf
    calls: list[CallRecord] = field(default_factory=list)
    breaks: list[LawError] = field(default_factory=list)
    arrays: dict[str, ArrayOutcome] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    worst: float = 0.0
    kinks: int = 0
    elements: int = 0
    branches: Counter[str] = field(default_factory=Counter)
    _point: Point | None = None

    def run(self, check: Callable[["Checker", Any], None], case: Any) -> list[LawError]:
        """All breaks of its law that ``check`` finds with one case, in the order in which they are found.

        An array that is wrong does not end the check; the arrays after it are compared as well.

        Raises:
            RefusedError: the target refuses the case, and no break was found before.
            BaseException: anything else that the target raises before a break was found.
        """
        self.calls, self.breaks, self.arrays, self._point = [], [], {}, None
        try:
            with self.implementation.settings_kept():
                check(self, case)
        except LawError as broken:
            self.breaks.append(broken)
        except raised_by_target():
            if not self.breaks:
                raise
        if not self.breaks and self._point is not None:
            self.points.append(self._point)
        return self.breaks

    @property
    def upcasts(self) -> bool:
        return self.implementation.upcasts

    @property
    def contract(self) -> bool:
        return self.implementation.keeps_contract

    def precision(self, steps: int) -> Precision:
        tf32 = self.implementation.tf32 and self.dtype == "float32"
        if self.contract:
            kind = TensorFloat32 if tf32 else Precision
        else:
            kind = TensorFloat32AnyDesign if tf32 else AnyDesign
        return kind(self.dtype, steps, self.upcasts)

    def on_backend(self, call: Call) -> Call:
        """The call with the requested kernel backend, if its operation takes one."""
        backend, operation = self.implementation.kernel_backend, OPERATIONS.get(call.operation)
        if backend is None or operation is None or not operation.takes("kernel_backend"):
            return call
        return call.with_options(kernel_backend=backend)

    def served(self, function: Callable[[Call], Any], call: Call) -> Any:
        """The result of ``function(call)``.

        Raises:
            RefusedError: the target does not run that kernel backend here, raises `NotImplementedError`, or has no
                parameter for one of the call's keywords; the law is then skipped, with that as the reason.
        """
        try:
            with np.errstate(all="ignore"):
                return function(call)
        except NotImplementedError as error:
            raise RefusedError(
                f"{call.operation} refuses this call: {shortened(text_of(error)) or 'NotImplementedError'}"
            ) from error
        except TypeError as error:
            lacking = [f"`{name}`" for name in self._lacking(call)]
            if not lacking:
                raise
            raise RefusedError(f"{call.operation} takes no {' and no '.join(lacking)}") from error
        except ValueError as error:
            if self.implementation.kernel_backend is not None and "`kernel_backend`" in text_of(error):
                raise RefusedError(text_of(error)) from error
            raise

    def _lacking(self, call: Call) -> list[str]:
        """The keywords for which the target's function has no parameter, unless its contract demands them."""
        operation, function = OPERATIONS.get(call.operation), self.implementation.functions.get(call.operation)
        if operation is None or function is None or self.implementation.keeps_contract:
            return []
        return sorted(operation.untaken(function, call.arrays, call.options))

    def call(self, call: Call) -> Results:
        """The target's outputs."""
        compiled = not self.forward and not self.implementation.eager
        record = self._record("outputs" if compiled else "call", replace(self.on_backend(call), cotangents={}))
        function = self.implementation.call if self.forward else self.implementation.outputs
        results = record.results = self.served(function, record.call)
        return results

    def vjp(self, call: Call) -> tuple[Results, Results]:
        """The target's outputs and gradients."""
        record = self._record("vjp", self.on_backend(call))
        outputs, gradients = self.served(self.implementation.vjp, record.call)
        record.results = {**outputs, **{f"gradient of {name}": gradient for name, gradient in gradients.items()}}
        return outputs, gradients

    def _record(self, kind: str, call: Call) -> CallRecord:
        record = CallRecord(kind, call)
        self.calls.append(record)
        return record

    def remember(self, key: tuple, make: Callable[[], Expected]) -> Expected:
        return oracle.remember((*key, self.dtype, self.upcasts, self.implementation.tf32, self.contract), make)

    def note_kinks(self, expected: Expected) -> None:
        self.kinks += expected.kinks
        self.elements += expected.elements
        self.branches.update(expected.spread)

    def close(
        self,
        where: str,
        got: Array,
        expected: np.ndarray,
        slack: np.ndarray | Staged,
        steps: int,
        times: float = 1.0,
        upcasts: bool | None = None,
        state: tuple[Array, np.ndarray] | None = None,
        of_oracle: bool = False,
        note: str = "",
    ) -> None:
        """Check one array against its budget.

        Args:
            upcasts: whether this array should be in float64; None for the target's usual behaviour.
            state: if ``got`` is a state in units of the oracle's stabiliser, the state as returned by the target, and
                that stabiliser.
            of_oracle: whether ``expected`` is the oracle's; otherwise it may be made from other results of the target.
            note: what a break adds about the call.
        """
        if self.gradients_only and not where.startswith("gradient"):
            return
        precision = self.precision(steps)
        if upcasts is not None:
            precision = replace(precision, upcasts=upcasts)
        each = (compared(where, got, expected, stage, precision, times) for stage in stages(slack))
        far = max(self.far * precision.roundoff, MANY * ROUNDOFF[dtype_of(got, precision)])
        found, (given, m) = _first_that_passes(each, far), state or (got, None)
        outcome, verdict, before = found.outcome, found.verdict, self.arrays.get(where)
        if before is None or outcome.worst > before.worst:
            self.arrays[where] = outcome
        if outcome.nature is None:
            self.worst = max(self.worst, outcome.worst)
            self._measure(got, outcome, steps)
            return
        if found.tolerance is None:
            evidence: Evidence = WrongShape(given, expected.shape)
        else:
            alone = of_oracle or len(self.calls) == 1
            evidence = Comparison(got=given, expected=expected, allowed=found.tolerance, m=m, alone=alone)
        self.breaks.append(LawError(where, f"{_said(verdict)}{note}", verdict, evidence, outcome.nature))

    def _measure(self, got: Array, outcome: ArrayOutcome, steps: int) -> None:
        if not got.values.size or not math.isfinite(outcome.distance):
            return
        unit = ROUNDOFF.get("float64" if self.upcasts else got.dtype, ROUNDOFF["float64"])
        roundoffs = outcome.error / unit if math.isfinite(outcome.error) else 0.0
        before = self._point or Point(steps, 0.0, 0.0)
        worst = max(outcome.worst, before.budget_ratio)
        self._point = Point(max(steps, before.steps), worst, max(roundoffs, before.roundoffs))

    def agree(
        self,
        got: Results,
        expected: Expected,
        steps: int,
        *,
        of: str = "",
        times: float = 1.0,
        only: tuple[str, ...] | None = None,
    ) -> None:
        """Check every array of ``got`` against its budget; states are compared as ``C·exp(m − m*)``.

        Args:
            of: a prefix for the names of the arrays, ``gradient of ``.
            only: the names to compare; None for all that are both expected and given.
        """
        for name in expected.values if only is None else only:
            if name not in got:
                self.breaks.append(LawError(f"{of}{name}", "missing", nature="missing"))
                continue
            array, state = got[name], None
            if LOG_SCALE.get(name) in got and not of:
                scale = expected.values[LOG_SCALE[name]]
                array, state = in_units_of(scale, name, got), (array, scale)
            values, slack = expected.values[name], expected.slack[name]
            self.close(f"{of}{name}", array, values, slack, steps, times, state=state, of_oracle=True)

    def expect_dtype(self, where: str, got: Array, expected: str) -> None:
        wanted = "float64" if self.upcasts else expected
        if got.dtype != wanted:
            said = f"dtype {got.dtype}, expected {wanted}"
            self.breaks.append(LawError(where, said, comparison=WrongDtype(got, wanted), nature="dtype"))

    def expect_dtypes(self, outputs: Results, gradients: Results, arrays: Named, values: tuple[str, ...]) -> None:
        """Outputs in ``values`` have the values' dtype, others the accumulation dtype, gradients the primals'."""
        for name, output in outputs.items():
            self.expect_dtype(name, output, self.dtype if name in values else accumulation(self.dtype))
        for name, gradient in gradients.items():
            self.expect_dtype(f"gradient of {name}", gradient, arrays[name].dtype)

    def expect_no_nan(self, results: Results, of: str = "") -> None:
        for name, array in results.items():
            nans = np.argwhere(np.isnan(array.values))
            if nans.size:
                index = tuple(int(at) for at in nans[0])
                verdict = Verdict(np.inf, index, np.nan)
                self.breaks.append(LawError(f"{of}{name}", f"NaN at {list(index)}", verdict, HasNaN(array), "nan"))


def _first_that_passes(comparisons: Iterator[Compared], far: float) -> Compared:
    """The first, or the last one; each has a larger tolerance than the one before: none, of one way, of two …

    Args:
        far: the share of an array's largest element, an error above which ends the search.
    """
    found = next(comparisons)
    for ways in count():
        if found.outcome.nature in (None, "shape") or (far < math.inf and _is_hopeless(found, ways, far)):
            break
        later = next(comparisons, None)
        if later is None:
            break
        found = later
    return found


def _is_hopeless(found: Compared, ways: int, far: float) -> bool:
    """Whether an array is most likely wrong whatever its tolerance is, known from so many ways to compute it."""
    if found.outcome.nature == "nan":
        return True
    if not ways or found.tolerance is None:
        return False
    is_far = far < found.outcome.error < math.inf
    return is_far and found.outcome.distance > HOPELESS * found.tolerance.max(initial=0.0)


def _said(verdict: Verdict) -> str:
    if verdict.reason is not None:
        return verdict.reason
    ulp = "" if verdict.ulp is None else f" ({verdict.ulp:.3g} roundoffs)"
    index = [] if verdict.index is None else list(verdict.index)
    return (
        f"at {index} got {verdict.got!r}, expected {verdict.expected!r} ± {verdict.allowed:.3g}{ulp}; "
        f"worst error is {verdict.worst:.3g} times its tolerance"
    )
