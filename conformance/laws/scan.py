"""Reverse cumulative sums: `rev_cumsum` and `rev_cumsum_off`."""

from dataclasses import replace

import numpy as np

from conformance import cases, oracle
from conformance.base.call import Call
from conformance.base.dtypes import Array, array
from conformance.cases import SumCase
from conformance.laws import EVERY, SINGLE, UP_TO_BFLOAT16, WIDE, law
from conformance.laws._answers import check_gradient_alone, check_value, expected_value
from conformance.laws.checker import Checker, LawError
from conformance.operations import OPERATIONS
from conformance.operations.scan import REV_CUMSUM

_SCALE = 8.0
EQUATIONS = {"rev_cumsum": "y_t = Σ_{s≥t} x_s", "rev_cumsum_off": "y_t = Σ_{s>t} x_s"}


def _sums(checker: Checker, operation: str, x: Array) -> Array:
    return checker.call(Call(operation=operation, arrays={"x": x}))["y"]


def _register(operation: str, equation: str) -> None:
    record = OPERATIONS[operation]

    @law(operation, "definition", equation=equation, cases=cases.sums, usual=EVERY, quick=True)
    def value(checker: Checker, case: SumCase) -> None:
        """The value is the reference's."""
        check_value(record, checker, case)

    symbols = f"dx_s = Σ_{{t{'≤' if operation == 'rev_cumsum' else '<'}s}} dy_t"

    @law(operation, "definition", equation=symbols, cases=cases.sums, usual=EVERY, gradient=operation, quick=True)
    def gradient(checker: Checker, case: SumCase) -> None:
        """The gradient is the forward running sum, for any cotangent."""
        check_gradient_alone(record, checker, case)

    @law(operation, "relation", compiled_dtypes=None, cases=cases.sums, share=0.5)
    def linearity(checker: Checker, case: SumCase) -> None:
        """The operation is linear.

        Y(x + x') = Y(x) + Y(x')
        """
        x, other = (np.round(8 * np.clip(case.draw(salt), -50, 50)) / 8 for salt in (5, 12))
        y, y_other, y_both = (_sums(checker, operation, array(each, checker.dtype)) for each in (x, other, x + other))
        slack = sum(
            oracle.sums(operation, {"x": each}, checker.precision(case.steps)).slack["y"]
            for each in (np.abs(x), np.abs(other), np.abs(x + other))
        )
        checker.close("y", y_both, y.values + y_other.values, np.asarray(slack), case.steps)

    @law(operation, "relation", cases=cases.sums, dtypes=UP_TO_BFLOAT16, share=0.25)
    def scaling(checker: Checker, case: SumCase) -> None:
        """Scaling by a power of two is exact.

        Y(2^p x) = 2^p Y(x), bit by bit
        """
        x = case.scan(checker.dtype)["x"]
        y, scaled = (_sums(checker, operation, replace(x, values=scale * x.values)).values for scale in (1, _SCALE))
        if not np.array_equal(scaled, _SCALE * y):
            raise LawError("y", f"of {_SCALE}·x is not {_SCALE} times that of x")

    @law(operation, "relation", cases=cases.sums, share=0.25)
    def causality(checker: Checker, case: SumCase) -> None:
        """The first element affects only the first sum.

        Y((x_0, x))_t = Y((x_0′, x))_t for t > 0
        """
        x = case.scan(checker.dtype)["x"]
        changed = x.values.copy()
        changed[..., :1] = 3.0
        y, of_changed = (_sums(checker, operation, replace(x, values=values)).values for values in (x.values, changed))
        if not np.array_equal(y[..., 1:], of_changed[..., 1:]):
            raise LawError("y", "depends on an element before it")


for _operation, _equation in EQUATIONS.items():
    _register(_operation, _equation)


@law(
    "rev_cumsum",
    "relation",
    strata=cases.STRATA,
    compiled_dtypes=None,
    cases=cases.sums,
    needs=("rev_cumsum", "rev_cumsum_off"),
    share=0.5,
)
def offset(checker: Checker, case: SumCase) -> None:
    """The two reverse sums differ by the element itself.

    rev_cumsum(x) − rev_cumsum_off(x) = x
    """
    x = case.scan(checker.dtype)["x"]
    y, off = (_sums(checker, operation, x) for operation in EQUATIONS)
    slack = 2 * expected_value(REV_CUMSUM, checker, case).slack["y"]
    checker.close("y", y, off.values + x.values, slack, case.steps)


@law(
    "rev_cumsum",
    "definition",
    cases=lambda limits: cases.sums(limits).filter(lambda case: case.S > 0),
    dtypes=WIDE,
    compiled_dtypes=SINGLE,
    share=0.25,
)
def total(checker: Checker, case: SumCase) -> None:
    """The first sum is the total, and the last is the last element.

    y_0 = Σ_s x_s, y_{S−1} = x_{S−1}
    """
    x = case.scan(checker.dtype)["x"]
    y = _sums(checker, "rev_cumsum", x)
    first = replace(y, values=y.values[..., 0])
    slack = expected_value(REV_CUMSUM, checker, case).slack["y"][..., 0]
    checker.close("y_0", first, x.values.sum(axis=-1), slack, case.steps)
    if not np.array_equal(y.values[..., -1], x.values[..., -1]):
        raise LawError("y", "the last element is not x's")


@law("rev_cumsum", "definition", cases=cases.sums, dtypes=WIDE, compiled_dtypes=SINGLE, share=0.25)
def flip(checker: Checker, case: SumCase) -> None:
    """A reverse sum is the reversed running sum of the reversed array.

    y = flip(cumsum(flip(x)))
    """
    x = case.scan(checker.dtype)["x"]
    y = _sums(checker, "rev_cumsum", x)
    turned = np.cumsum(x.values[..., ::-1], axis=-1)[..., ::-1]
    checker.close("y", y, turned, expected_value(REV_CUMSUM, checker, case).slack["y"], case.steps)


@law(
    "rev_cumsum_off",
    "relation",
    strata=cases.STRATA,
    cases=cases.sums,
    needs=("rev_cumsum", "rev_cumsum_off"),
    share=0.25,
)
def shift(checker: Checker, case: SumCase) -> None:
    """The sum that excludes its own element is the sum that starts at the next one, and 0 at the end.

    rev_cumsum_off(x)_t = rev_cumsum(x)_{t+1}, rev_cumsum_off(x)_{S−1} = 0
    """
    x = case.scan(checker.dtype)["x"]
    y, off = (_sums(checker, operation, x) for operation in EQUATIONS)
    slack = expected_value(REV_CUMSUM, checker, case).slack["y"]
    early = replace(off, values=off.values[..., :-1])
    checker.close("y", early, y.values[..., 1:], slack[..., 1:], case.steps, times=2)
    if (off.values[..., -1:] != 0).any():
        raise LawError("y", "the last element is not 0")
