"""The tolerance of every element, here called its *budget*, and its derivation: the only module that defines it.

An output element y is compared with the float64 reference, evaluated on the very same (rounded) inputs. It may be off
by

    allowed(y) = u_out·|y|  +  max_d |y(x + δ_d) − y(x)|  +  κ·u·Σ|terms|  +  κ·u·drift  +  least

**u_out·|y|**: the answer is rounded once to the output dtype (unit roundoff u_out).

**The response** is the measured conditioning of this very element. The reference is evaluated again, `DRAWS` times, on
inputs perturbed by as much as a backward-stable computation may be considered to perturb them, and the largest change
counts. The draws are nearly normal (with ±1, two log weights whose difference alone matters change in the same
direction in all of six draws once in 32 times) and spread evenly: with eight normal draws the largest is below half a
standard deviation for one element in 2000, and in 320 GRU cases that made a correct result fail. Where the response is
small for one element by chance, the root mean square over its neighbours (the last axis; two steps either way) counts
instead, but only if the element responds at all: after a hard reset, a gradient that is exactly 0 has no budget.
Perturbations, with u the unit roundoff of the accumulation dtype (float32, or float64 for float64 values), n the number
of steps, κ = `KAPPA` and γ = κ·√n·u:

- an operand of a product (q, k, v, weights, states, cotangents): relative γ, because n roundings of random sign, each
  relative to the running sum, grow like √n. A 16-bit operand: relative γ + `OMEGA`·u_in, because a product of 16-bit
  operands may also take an *intermediate* (scores, r⊙h, dh/Y) rounded to the operands' dtype, as tensor cores do. A
  carried state may not: no term contains n·u_in, so a state that is rounded to 16 bits at each step exceeds the budget
  wherever it remembers, and the laws named ``accumulation`` leave no operand rounding that could hide this.
- a gate's preactivation or a stabiliser: absolute γ·max(1, |x|, M), with M the largest |m| of the same head and
  sequence. Log weights are sums of size M before they are subtracted, for values of any dtype, because gates are in the
  accumulation dtype. The cotangents of C and n: relative γ·M for the same reason, as C and n are in units of exp(m).

**κ·u·Σ|terms|**: an identity that holds for all inputs (with one step, h does not depend on q at all) leaves no
response, but the computed value is still a difference of rounded terms. The oracle gives the sum of the magnitudes of
all terms (`oracle._magnitudes`), and the possible rounding of a 16-bit operand among them.
For scans and decays this is the whole condition, with γ.

These terms include those that automatic differentiation of the definition sums although they cancel exactly: every path
of h's gradient through the stabiliser m, which ends at the gates that attained m. The roundings of each step are
independent, so the squares of its terms add up along the steps at which m was carried (`oracle._stabiliser_paths`). An
exact 0 is required only where all of them are 0, as after a hard reset.

**κ·u·drift**: what is carried is rounded at every step. An error of u·|C_t| made at step t has decayed like the memory
itself when it is read, and errors of different steps are independent, so that their squares add up:

    drift² ← decay²·drift² + |C_t|² + (|C_t|·Λ)²

A memory of age a is off by √a·u·|C|, with different errors in C and n. Where h = Cᵀq̂/(n·q̂) does not respond because
one write dominates both, this is the only term: without it, the recurrent form in float32 reached 1.4 budgets, and the
parallel form 1.25, after a few hundred steps. exp(−Λ) is the weight to which the memory has decayed: computed from a
sum of logarithms, it has the roundings of that sum.

**Kinks**: where |n·q̂| is within its own budget of its floor, two of the perturbed copies scale q across the floor, one
in each direction, so that the gradient of either side passes. Where candidates for the final m tie within rounding,
2γ·M, the contribution of dm may reach any of them and the gates between them. Elements whose branch differs between
copies are counted.

**The GRU and the sLSTM** have neither response nor magnitudes, and no line is derived for them: the specification runs
on copies in which every operation is rounded at random (`specification.rounded`), as it is written, with rows of it
that are right, too (`rows.correct`), and the sLSTM on a tape, as automatic differentiation computes its gradient. An
element may be off by a few times what that does to it, in the way in which it does most (`oracle._deviations`, which
holds the constants).

**least** is the smallest normal number of the accumulation dtype (frameworks flush anything smaller) per step, and that
of the output dtype.

A NaN passes only where the reference has a NaN. An infinity passes only where the reference has the same infinity, or a
number that, with its budget, is beyond the largest number of the output dtype (a decay of 97 gates of −1e4 in float16).

**Measured** by ``make calibration`` with κ = 3 and Ω = 1.5 (`OMEGA`), seed 0: correct variants of each operation, at
least 10,000 cases each (of `slstm` 1,000; the sLSTM with seed 4), value and gradient. Worst error over its budget, of
those written by hand, before the last rounding (in 16 bits the last rounding may take up all of its own share, and
does):

    rev_cumsum, rev_cumsum_off 0.40    causal_forget_matrix 0.49    dtilde_matrix 0.66
    mlstm 0.96    mlstm_step 0.51    mlstm_fwbw_custom_grad 0.86    gru 0.81
    slstm 0.88    slstm_step 0.81

Many definitions of the mLSTM that PyTorch and JAX differentiate reach 0.99, probably at ties for m, where the tolerance
is 1.01 of the whole term. No result was refused.

With κ = 2 an error of 0.88 would be about 1.3; with Ω = 1 an intermediate that had been rounded twice reached 1.01. The
measurements are in ``tests/suite/calibration/results.json`` with a hash of this formula; a test compares the two.
"""

import math
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from conformance.base.dtypes import HALF, LARGEST, ROUNDOFF, SMALLEST, Array, accumulation

KAPPA = 3.0
OMEGA = 1.5
DRAWS = 8
NEAR_FLOOR = 1e-2
"""Relative distance from the floor up to which the computed |n·q̂| may lie on its other side."""
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
    def least(self) -> float:
        return max(self.steps, 1) * 16 * SMALLEST["float64" if self.upcasts else accumulation(self.dtype)]


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
        carried: the error that ⟨C, dC⟩ + ⟨n, dn⟩ may have at any step, ``(B, N)``; where a sequence is cut, it is added
            as part of dm and subtracted again.
    """

    values: dict[str, np.ndarray]
    slack: dict[str, np.ndarray]
    kinks: int = 0
    elements: int = 0
    spread: dict[str, float] = field(default_factory=dict)
    carried: np.ndarray | None = None


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
        beyond = np.abs(expected) + budget > LARGEST[output_dtype]
        same |= beyond & np.isinf(got) & (np.sign(got) == np.sign(expected))
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
