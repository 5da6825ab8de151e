"""The verdict on every array of one call of a target, with and without its gradient."""

import json
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from conformance import oracle
from conformance.base.call import Call
from conformance.base.dtypes import Array
from conformance.base.exceptions import raised, raised_by_target
from conformance.base.options import UNSHARED
from conformance.base.result_form import WrongResultError
from conformance.cases import to_json
from conformance.frameworks.implementation import Implementation, RefusedError
from conformance.laws.checker import Checker
from conformance.operations import Operation
from conformance.tolerance.budget import Expected, Precision
from conformance.tolerance.compared import ArrayOutcome, BreakKind, ProcessEndedError

RIGHT, WRONG, NOT_SERVED = "right", "wrong", "not served"
GRADIENT = "gradient of "


FAR = 1e5
"""Roundoffs of its largest element by more than which an array of an experiment is wrong, whatever its tolerance."""

LEAST_PASSED = 30.0
"""Seconds that may pass in any case: the shorter the time, the more another program may take of it."""


class Clock:
    """The time that a diagnosis may take.

    Args:
        seconds: seconds of computation by this thread, from now on.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._end = time.thread_time() + seconds
        self._end_of_all = time.monotonic() + max(UNSHARED * seconds, LEAST_PASSED)

    @property
    def left(self) -> bool:
        return time.thread_time() < self._end and time.monotonic() < self._end_of_all


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Messages to another process about each call of a target, because a call may end the process that it runs in.

    Attributes:
        announce: called with the text of each call before it is made, and with None after it.
        fatal: the texts of calls that ended a process, each with how it ended; they are not made again.
    """

    announce: Callable[[str | None], None] = lambda call: None
    fatal: Mapping[str, BreakKind] = field(default_factory=dict)


UNWATCHED = Watch()


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The answer of a target to one case, and the verdict on it.

    Attributes:
        case, dtype: the case and the dtype.
        value: verdict on the outputs: ``right``, ``wrong`` or ``not served``.
        gradient: verdict on the gradients; None if the operation has none here.
        arrays: every output, then every gradient.
        problem: the exception, or the reason why the case was not served.
        call, precision: the call, and the precision to which it is judged.
        got: everything that the target returned: the outputs, and gradients under names such as ``gradient of q``.
        expected: the oracle's answer, under the same names.
    """

    case: Any
    dtype: str
    value: str
    gradient: str | None
    arrays: tuple[ArrayOutcome, ...]
    problem: str = ""
    call: Call | None = None
    precision: Precision
    got: Mapping[str, Array] = field(default_factory=dict)
    expected: Expected | None = None

    def status(self, aspect: str) -> str | None:
        return self.value if aspect == "value" else self.gradient

    @property
    def wrong(self) -> bool:
        return WRONG in (self.value, self.gradient)

    @property
    def served(self) -> bool:
        return NOT_SERVED not in (self.value, self.gradient)

    @property
    def wrong_arrays(self) -> tuple[ArrayOutcome, ...]:
        return tuple(array for array in self.arrays if array.nature is not None)


Shapes = frozenset[tuple[str, tuple[int, ...]]]


def shapes(call: Call) -> Shapes:
    """The shapes of the arrays of a call, with their names."""
    return frozenset((name, x.shape) for name, x in call.arrays.items())


class Judge:
    """Judges cases of one operation in one dtype on a target, each once.

    Attributes:
        eager: whether a call with new shapes costs no compilation.
        done: the verdicts, by case.
        shapes: the shapes of the arrays of these cases.

    Args:
        implementation: the target.
        dtype: the dtype of the values.
        watch: notified of each call.
        gradients: whether gradients are requested.
        forward: whether outputs of calls without a gradient are judged, too; otherwise only those that come with a
            gradient, where the target has one.
    """

    def __init__(
        self,
        implementation: Implementation,
        operation: Operation,
        dtype: str,
        watch: Watch = UNWATCHED,
        gradients: bool = True,
        forward: bool = True,
    ):
        self.operation = operation
        self.dtype = dtype
        self._watch = watch
        self.differentiable = gradients and implementation.no_gradient(operation.name) is None
        self.eager = implementation.eager
        self._forward = forward or not self.differentiable
        self._checker = Checker(implementation, dtype, far=FAR)
        self.shapes: set[Shapes] = set()
        self.done: dict[Any, Judged] = {}

    def __call__(self, case: Any) -> Judged:
        if case not in self.done:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.done[case] = self._judged(case)
        return self.done[case]

    def call_of(self, case: Any) -> Call:
        return self.operation.call_of(case, self.dtype)

    def with_array(self, case: Any, name: str, said: str, change: Callable[[Array], Array]) -> Judged:
        """The verdict on the call of a case in which one array is changed.

        Args:
            said: distinguishes the change from others of the same array.
        """
        call = self.call_of(case)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._of_call(case, call.with_arrays(**{name: change(call.arrays[name])}), f"{name} {said} ")

    def _judged(self, case: Any) -> Judged:
        call = self.call_of(case)
        self.shapes.add(shapes(call))
        return self._of_call(case, call)

    def _of_call(self, case: Any, call: Call, changed: str = "") -> Judged:
        checker, precision = self._checker, self._checker.precision(call.steps)
        checker.arrays, checker.breaks = {}, []
        values, cotangents = oracle.values(call.arrays), oracle.values(call.cotangents)
        expected = self.operation.value(values, call.options, precision)
        key = f"{changed}{self.dtype} {json.dumps(to_json(case))}"
        both = None if self._forward else self._attempt(f"gradient {key}", checker.vjp, call)
        alone = both[0] if isinstance(both, tuple) else self._attempt(f"value {key}", checker.call, call)
        arrays = self._compared(alone, expected, call, tuple(call.cotangents))
        judged = Judged(
            case=case,
            dtype=self.dtype,
            value=_status(alone, arrays),
            gradient=None,
            arrays=arrays,
            problem=_said(alone),
            call=call,
            precision=precision,
            got=dict(alone) if isinstance(alone, dict) else {},
            expected=expected,
        )
        if not self.differentiable:
            return judged
        if judged.value == NOT_SERVED or isinstance(alone, ProcessEndedError):
            return replace(judged, gradient=judged.value)
        of_gradient = self.operation.gradient(values, call.options, cotangents, precision)
        if both is None:
            both = self._attempt(f"gradient {key}", checker.vjp, call)
        expected = Expected(
            {**expected.values, **{GRADIENT + name: x for name, x in of_gradient.values.items()}},
            {**expected.slack, **{GRADIENT + name: x for name, x in of_gradient.slack.items()}},
        )
        judged = replace(judged, expected=expected)
        if not isinstance(both, tuple):
            return replace(judged, gradient=_status(both, ()), problem=judged.problem or _said(both))
        outputs, gradients = both
        if alone is not outputs:
            # Of a call that raised there are no outputs; its backward pass may have returned them all the same.
            arrays = self._compared(outputs, expected, call, tuple(call.cotangents))
        of_primals = self._compared(gradients, of_gradient, call, call.primals, of=GRADIENT)
        return replace(
            judged,
            value=_status({}, arrays) if judged.value == RIGHT else judged.value,
            gradient=_status({}, of_primals),
            arrays=arrays + of_primals,
            got={**judged.got, **outputs, **{GRADIENT + name: x for name, x in gradients.items()}},
        )

    def _attempt(self, key: str, function: Callable[[Call], Any], call: Call) -> Any:
        """The target's return value, or the exception that it raised."""
        self._checker.calls.clear()
        if key in self._watch.fatal:
            return ProcessEndedError(self._watch.fatal[key])
        self._watch.announce(key)
        try:
            with self._checker.implementation.settings_kept():
                return function(call)
        except raised_by_target() as error:
            return error
        finally:
            self._watch.announce(None)

    def _compared(
        self, got: Any, expected: Expected, call: Call, names: tuple[str, ...], of: str = ""
    ) -> tuple[ArrayOutcome, ...]:
        """Every array of the results; the worse comparison of those that were compared before. None of an exception."""
        if not isinstance(got, dict):
            return ()
        checker = self._checker
        checker.agree({name: x for name, x in got.items() if x is not None}, expected, call.steps, of=of, only=names)
        for broken in checker.breaks:
            if broken.nature == "missing":
                checker.arrays[broken.where] = ArrayOutcome(
                    where=broken.where, nature="missing", worst=math.inf, error=math.inf, wrong=1.0
                )
        return tuple(checker.arrays[of + name] for name in names)


def _status(got: Any, arrays: Sequence[ArrayOutcome]) -> str:
    if isinstance(got, RefusedError):
        return NOT_SERVED
    if isinstance(got, BaseException) or any(array.nature is not None for array in arrays):
        return WRONG
    return RIGHT


def _said(got: Any) -> str:
    if isinstance(got, RefusedError | ProcessEndedError):
        return str(got)
    if isinstance(got, WrongResultError):
        return str(got).removeprefix(f"{got.function} ")
    return raised(got, 200) if isinstance(got, BaseException) else ""
