"""The tolerance of every element, here called its *budget*, and the only module that defines it.

An output element y is compared with the float64 reference, evaluated on the very same (rounded) inputs. It may be off
by

    allowed(y) = u_out·|y|  +  what rounding every operation at random does to y  +  least

**u_out·|y|**: the answer is rounded once to the output dtype (unit roundoff u_out).

**Rounding at random**: no line is derived for any recurrence. The specification runs on copies in which every operation
is off by about a roundoff with a random sign (`specification.rounded`): as it is written, with rows of it that are
right, too (`rows.correct`), in chunks, and on a tape, as automatic differentiation computes its gradient. An element
may be off by a few times what that does to it, in the way in which it does most (`oracle._deviations`, which holds the
constants).
A result below the smallest normal number is 0 in half of the copies, because frameworks flush it.
16-bit operands of products are rounded once more, because an *intermediate* (scores, r⊙h, dh/Y) may be rounded to the
operands' dtype, as tensor cores do; carried states are not. An exact 0 is required where every copy is 0, as after a
hard reset.

Where |n·q̂| is close to its floor, or candidates for m tie, some copies take one side and some the other, so that the
gradient of either side passes.

**Scans and decays** are linear: an element may be off by γ = κ·√n·u (κ = `KAPPA`, n steps, u the unit roundoff of the
accumulation dtype) times the sum of the magnitudes of its terms (`oracle._sums`).

**least** is the smallest normal number of the accumulation dtype (frameworks flush anything smaller) per step, and that
of the output dtype.

A NaN passes only where the reference has a NaN. An infinity passes only where the reference has the same infinity, or a
number that, with its budget, is beyond the largest number of the output dtype (a decay of 97 gates of −1e4 in float16).

**Measured** by ``make calibration``, seed 0: correct variants of each operation, 10,000 cases each of scans and decays
and 1,000 of the recurrences, value and gradient, written by hand, differentiated by PyTorch and by JAX, and compiled.
None was refused. The largest error over its tolerance is close to 1 everywhere, because a tolerance is computed only as
far as a result needs it; half of the cases of the mLSTM in float32 are below 0.2. The measurements are in
``tests/suite/calibration/results.json`` with a hash of this formula; a test compares the two.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import NormalDist

import numpy as np

from conformance.base.dtypes import HALF, LARGEST, ROUNDOFF, SMALLEST, Array, accumulation
from conformance.tolerance.staged import Staged

KAPPA = 3.0
OMEGA = 1.5
DRAWS = 8
DIFFERENCES = 1e-10
"""Roundoff of a gradient that is computed by central differences of a float64 loss: about 1e-16 over their step."""
_MAGNITUDES = np.array([NormalDist().inv_cdf((1 + (at + 0.5) / DRAWS) / 2) for at in range(DRAWS)])


@dataclass(frozen=True)
class Precision:
    """The dtypes in which a result was computed, and its number of steps.

    Attributes:
        dtype: the dtype of the input values.
        steps: the number of steps of the longest sequence.
        upcasts: whether the implementation computes and answers in float64 for every input dtype.
    """

    dtype: str
    steps: int = 1
    upcasts: bool = False

    @property
    def roundoff(self) -> float:
        """Unit roundoff of the accumulation dtype."""
        return ROUNDOFF["float64" if self.upcasts else accumulation(self.dtype)]

    @property
    def growth(self) -> float:
        """γ: `KAPPA` roundings of a running sum of ``steps`` terms."""
        return KAPPA * math.sqrt(max(self.steps, 1)) * self.roundoff

    @property
    def operand(self) -> float:
        """Relative perturbation of an operand of a product."""
        rounds = self.dtype in HALF and not self.upcasts
        return self.growth + (OMEGA * ROUNDOFF[self.dtype] if rounds else 0.0)

    @property
    def cancellation(self) -> float:
        """Error of a term of a sum, relative to it: `KAPPA` roundings, and `OMEGA` of a 16-bit factor."""
        rounds = self.dtype in HALF and not self.upcasts
        return KAPPA * self.roundoff + (OMEGA * ROUNDOFF[self.dtype] if rounds else 0.0)

    @property
    def drift(self) -> float:
        """`KAPPA` roundings for each step over which a memory was carried."""
        return KAPPA * self.roundoff

    @property
    def smallest(self) -> float:
        """The smallest normal number of the accumulation dtype."""
        return SMALLEST["float64" if self.upcasts else accumulation(self.dtype)]

    @property
    def least(self) -> float:
        return max(self.steps, 1) * 16 * self.smallest


def normal_draws(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """``(DRAWS, *shape)`` of nearly normal numbers, spread so that every element is far from 0 in one of them.

    The magnitudes of an element are the centres of `DRAWS` equally likely parts of a normal distribution, in random
    order and with random signs.
    """
    order = rng.random((DRAWS, *shape)).argsort(axis=0)
    signs = rng.integers(0, 2, order.shape) * 2.0 - 1.0
    return signs * _MAGNITUDES[order]


def perturbed_operands(x: np.ndarray, precision: Precision, rng: np.random.Generator) -> np.ndarray:
    """`DRAWS` copies of an operand of a product, along a new first axis."""
    return x * (1 + precision.operand * normal_draws(x.shape, rng))


def perturbed_gates(
    x: np.ndarray, precision: Precision, rng: np.random.Generator, scale: np.ndarray | float
) -> np.ndarray:
    """`DRAWS` copies of a preactivation or a stabiliser, off by γ·max(1, |x|, scale); infinities are not changed."""
    finite = np.where(np.isfinite(x), x, 0.0)
    size = np.maximum(np.maximum(1.0, np.abs(finite)), scale)
    return x + precision.growth * size * normal_draws(x.shape, rng)


def response(exact: np.ndarray, draws: np.ndarray, *, last: bool = True, steps: int | None = None) -> np.ndarray:
    """The error that each element of ``exact`` may have, given the oracle's answers to perturbed inputs.

    Args:
        exact: the oracle's answer to the exact inputs.
        draws: its answers to perturbed inputs, ``(draws, *exact.shape)``.
        last: whether neighbours along the last axis have the same conditioning.
        steps: the axis of ``exact`` along which two neighbours in each direction have the same conditioning, if any.
    """
    with np.errstate(invalid="ignore"):
        change = np.abs(draws - exact)
    change = np.where(np.isfinite(change), change, 0.0)
    if not change.size:
        return np.zeros(exact.shape)
    own = change.max(axis=0)
    mean_square = np.square(change).mean(axis=0)
    if last and exact.ndim:
        mean_square = np.broadcast_to(mean_square.mean(axis=-1, keepdims=True), exact.shape)
    if steps is not None:
        mean_square = _window(mean_square, steps)
    return np.where(own > 0, np.maximum(own, np.sqrt(mean_square)), 0.0)


def _window(x: np.ndarray, axis: int) -> np.ndarray:
    """Mean over up to five neighbours along ``axis``."""
    size = x.shape[axis]
    x = np.moveaxis(x, axis, 0)
    total, count = np.zeros(x.shape), np.zeros((size, *[1] * (x.ndim - 1)))
    for shift in range(-2, 3):
        to = slice(max(0, shift), max(0, size + min(0, shift)))
        of = slice(max(0, -shift), max(0, size + min(0, -shift)))
        total[to] += x[of]
        count[to] += 1
    return np.moveaxis(total / np.maximum(count, 1), 0, axis)


@dataclass(frozen=True)
class Expected:
    """The oracle's answer for one call.

    Attributes:
        values: the answers by name.
        slack: the error that each element may have before its last rounding.
        kinks: number of elements at which the gradient of either side passes.
        elements: number of elements that were checked for kinks.
        spread: number of these elements that took each branch.
    """

    values: dict[str, np.ndarray]
    slack: dict[str, np.ndarray]
    kinks: int = 0
    elements: int = 0
    spread: dict[str, float] = field(default_factory=dict)

    def mapped(self, change: Callable[[str, np.ndarray], np.ndarray]) -> "Expected":
        """Every array changed, given its name, and its tolerance likewise."""
        values = {name: change(name, x) for name, x in self.values.items()}
        slack = {
            name: x.map(partial(change, name)) if isinstance(x, Staged) else change(name, x)
            for name, x in self.slack.items()
        }
        return replace(self, values=values, slack=slack)


@dataclass(frozen=True)
class Verdict:
    """The result of comparing one array.

    Attributes:
        worst: largest error over its budget; above 1 the law is broken.
        index: the first element over budget (or of the wrong kind); None if all elements pass.
        got, expected, allowed: the values at that element.
        ulp: its error in units of roundoff of the expected value.
        reason: what is wrong, if it is not a number: a shape.
    """

    worst: float
    index: tuple[int, ...] | None = None
    got: float | None = None
    expected: float | None = None
    allowed: float | None = None
    ulp: float | None = None
    reason: str | None = None


def allowed(
    expected: np.ndarray, slack: np.ndarray, precision: Precision, output_dtype: str, times: float = 1.0
) -> np.ndarray:
    """The error that each element may have, including the last rounding.

    Args:
        expected: the oracle's answer; where it is not finite, only the same value passes, and the returned number is
            not used.
        slack: the error that an element may have before its last rounding (`Expected.slack`).
        output_dtype: the dtype of the answer.
        times: how many budgets the comparison spans (2 between two results of one target).
    """
    magnitude = np.where(np.isfinite(expected), np.abs(expected), 0.0)
    last = ROUNDOFF[output_dtype] * 1.01 * magnitude
    return times * (last + slack + precision.least + SMALLEST[output_dtype])


def ratios(got: np.ndarray, expected: np.ndarray, budget: np.ndarray, output_dtype: str) -> np.ndarray:
    """Error over budget, element by element: 0 where both are the same infinity (or NaN), ∞ where only one is.

    A number beyond the largest number of the output dtype rounds to an infinity, and may do so if its budget reaches
    it.
    """
    finite = np.isfinite(expected)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        ratio = np.abs(got - np.where(finite, expected, 0.0)) / budget
        ratio = np.where(np.isnan(ratio), math.inf, ratio)
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        same |= np.isinf(got) & (np.sign(got) * expected + budget > LARGEST[output_dtype])
        return np.where(same, 0.0, np.where(finite, ratio, math.inf))


def compare(got: Array, expected: np.ndarray, budget: np.ndarray, output_dtype: str) -> Verdict:
    """Compare ``got`` element by element with ``expected`` ± ``budget`` (see `allowed`).

    Args:
        output_dtype: the dtype whose range bounds the answer, and whose roundoff is the unit of `Verdict.ulp`.
    """
    if got.shape != expected.shape:
        return Verdict(math.inf, reason=f"shape {list(got.shape)}, expected {list(expected.shape)}")
    if not expected.size:
        return Verdict(0.0)
    values = got.values.astype(np.float64)
    ratio = ratios(values, expected, budget, output_dtype)
    worst = float(ratio.max())
    if worst <= 1:
        return Verdict(worst)
    index = tuple(int(at) for at in np.argwhere(ratio > 1)[0])
    value, wanted = float(values[index]), float(expected[index])
    unit = ROUNDOFF[output_dtype] * abs(wanted)
    ulp = abs(value - wanted) / unit if math.isfinite(wanted) and unit else None
    return Verdict(worst, index, value, wanted, float(budget[index]), ulp)


def judge(got: Array, expected: np.ndarray, slack: np.ndarray, precision: Precision, times: float = 1.0) -> Verdict:
    """Compare ``got`` element by element with the oracle's answer and budget.

    Args:
        times: how many budgets the comparison spans (2 between two results of one target).
    """
    output = "float64" if precision.upcasts or got.dtype not in ROUNDOFF else got.dtype
    return compare(got, expected, allowed(expected, slack, precision, output, times), output)
