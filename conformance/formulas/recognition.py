"""Recognises what a target computes instead of the definition: whether an answer is that of a known formula."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from conformance import oracle
from conformance.base.dtypes import FLOATING, ROUNDOFF, accumulation
from conformance.formulas.formula import Computed, DoesNotRunError, Formula, Values
from conformance.formulas.judged import GRADIENT, RIGHT, Judged
from conformance.operations import LOG_SCALE, in_units_of
from conformance.tolerance import budget
from conformance.tolerance.budget import allowed, ratios
from conformance.tolerance.compared import dtype_of

COPIES = 3
"""Number of perturbed copies of the inputs from which the tolerance of a formula is derived."""

ROUGHLY = 0.02
"""Difference, as a share of an array's largest value, beyond which a formula is dismissed at once."""

NEAR = 1e-3
"""Largest difference between an answer and a known fault's formula, as a share of the array's largest value."""

APART = 3.0
"""Number of tolerances by which a formula must differ from the definition to count as distinguishable from it."""

CANCELLED = 1e-3
"""Below this share of a call's largest gradient, a gradient may be the remainder of terms that cancel; its roundoff is
that of the larger terms.
"""

ROUNDINGS = 30.0
"""Number of roundoffs of its own dtype that an array may be off by because of anything but a formula that rounds."""

ALIKE = 0.9
"""Minimum cosine between a target's error and that of a formula that rounds, and maximum ratio of their sizes."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One array of a target with the definition's values: the data that a formula is compared with.

    Attributes:
        got, true: the target's values, and the definition's values.
        allow: the definition's tolerance of each element, which takes long to compute.
        largest_gradient: if this is a gradient, the largest value of any gradient of the call, else 0.
        roundoff: unit roundoff of the array's dtype.
    """

    name: str
    got: np.ndarray
    true: np.ndarray
    allow: Callable[[], np.ndarray]
    largest_gradient: float = 0.0
    roundoff: float = math.inf

    @cached_property
    def tolerance(self) -> np.ndarray:
        return self.allow()


def matches(formula: Formula, judged: Judged, *, closely: bool = True, outputs_alone: bool = False) -> bool | None:
    """Whether a target's answer is that of a formula; None if the formula cannot be distinguished from the definition.

    A formula that cannot be computed on a call is not that of the target. If the value is right, a formula that also
    changes the value is compared by its gradient alone: a hand-written backward pass may follow another formula than
    the forward pass.

    Args:
        closely: whether every element must be within its tolerance, which is measured; otherwise the answer must only
            be close, which takes a quarter of the time to check.
        outputs_alone: whether gradients are left out.
    """
    if judged.call is None or judged.problem or not judged.got:
        return False
    if any(array.nature in ("missing", "shape") for array in judged.arrays):
        return False
    try:
        return _compared(formula, judged, closely, outputs_alone)
    except DoesNotRunError:
        return False


def _compared(formula: Formula, judged: Judged, closely: bool, outputs_alone: bool) -> bool | None:
    call = judged.call
    assert call is not None
    outputs = [array.where for array in judged.arrays if not array.where.startswith(GRADIENT)]
    gradients = [array.where for array in judged.arrays if array.where.startswith(GRADIENT) and not outputs_alone]
    values, computing = oracle.values(call.arrays), _computing(judged)
    if judged.value == RIGHT and not gradients and not outputs_alone:
        return None
    if judged.value == RIGHT and formula.changes_value and not formula.rounds and not outputs_alone:
        names = gradients
    elif judged.value == RIGHT:
        names = [*outputs, *gradients]
    elif not formula.changes_value:
        return False
    else:
        names = [*outputs, *gradients]
        forward = formula.compute(values, call.options, None, computing)
        if not formula.rounds and not all(_roughly(answer_of(name, judged, forward), forward) for name in outputs):
            return False
    if formula.rounds and judged.value != RIGHT:
        # Whether the backward pass rounds too is another question.
        names, gradients = outputs, []
    cotangents = oracle.values(call.cotangents) if gradients else None
    plain = formula.compute(values, call.options, cotangents, computing)
    answers = [answer_of(name, judged, plain) for name in names]
    if formula.rounds:
        return _alike(answers, plain, math.sqrt(max(call.steps, 1)), closely)
    if not all(_roughly(answer, plain) for answer in answers):
        return False
    if not closely:
        near = max(NEAR, 30 * math.sqrt(max(call.steps, 1)) * max(ROUNDOFF[x.dtype] for x in judged.got.values()))
        wrong = {array.where for array in judged.wrong_arrays}
        return all(
            _roughly(answer, plain, near) or (answer.name in wrong and _nearer(answer, plain)) for answer in answers
        ) and any(_nearer(answer, plain) for answer in answers if answer.name in wrong)
    slack = _slack(formula, values, cotangents, judged, plain)
    apart, equal = False, True
    for answer in answers:
        alternative = plain[answer.name]
        dtype = dtype_of(judged.got[answer.name], judged.precision)
        own = allowed(alternative, slack[answer.name], judged.precision, dtype)
        equal &= bool((ratios(answer.got, alternative, own, dtype) <= 1).all())
        with np.errstate(invalid="ignore"):
            differs = np.abs(alternative - answer.true) > APART * (own + answer.tolerance)
        apart |= bool(differs.any() or (np.isfinite(alternative) != np.isfinite(answer.true)).any())
    return equal if apart else None


def recognised(
    formula: Formula, trials: Sequence[Judged], *, closely: bool = True, outputs_alone: bool = False
) -> bool:
    """Whether a target equals a formula in every trial in which it can be distinguished from the definition.

    Args:
        trials: wrong answers. The formula must be distinguishable from the definition in at least one of them, or in
            two if there are several.
    """
    told = 0
    for judged in trials:
        same = matches(formula, judged, closely=closely, outputs_alone=outputs_alone)
        if same is False:
            return False
        told += same is True
    return told >= min(2, len(trials))


def _computing(judged: Judged) -> str:
    """The dtype in which a target computes."""
    return "float64" if judged.precision.upcasts else accumulation(judged.dtype)


def answer_of(name: str, judged: Judged, computed: Computed) -> Answer:
    assert judged.expected is not None
    got, true = judged.got[name], judged.expected.values[name]
    scale = LOG_SCALE.get(name)
    if scale is not None and scale in judged.got:
        got = in_units_of(computed[scale], name, judged.got)
        with np.errstate(invalid="ignore", over="ignore"):
            true = oracle.rescaled(true, judged.expected.values[scale], computed[scale])
    dtype, slack = dtype_of(judged.got[name], judged.precision), judged.expected.slack[name]
    return Answer(
        name=name,
        got=got.values.astype(np.float64),
        true=true,
        allow=lambda: allowed(true, np.asarray(slack), judged.precision, dtype),
        largest_gradient=_largest_gradient(judged) if name.startswith(GRADIENT) else 0.0,
        roundoff=ROUNDOFF[dtype],
    )


def _largest_gradient(judged: Judged) -> float:
    assert judged.expected is not None
    gradients = [x for name, x in judged.expected.values.items() if name.startswith(GRADIENT)]
    return max((float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) for x in gradients), default=0.0)


def _roughly(answer: Answer, computed: Computed, share: float = ROUGHLY) -> bool:
    got, alternative = answer.got, computed[answer.name]
    if got.shape != alternative.shape:
        return False
    finite = np.isfinite(alternative)
    if not np.array_equal(finite, np.isfinite(got)):
        return False
    # What a formula cancels to 0 is compared with the size of what the definition leaves there.
    true = answer.true[np.isfinite(answer.true)]
    largest = max(
        np.abs(alternative[finite]).max(initial=0.0), np.abs(true).max(initial=0.0), CANCELLED * answer.largest_gradient
    )
    return bool(np.abs(got[finite] - alternative[finite]).max(initial=0.0) <= share * largest)


def _nearer(answer: Answer, computed: Computed) -> bool:
    """Whether a target's answer is much closer to a formula's than to the definition's."""
    with np.errstate(invalid="ignore", over="ignore"):
        distance = float(np.linalg.norm(answer.got - computed[answer.name]))
        return distance < 0.05 * float(np.linalg.norm(answer.got - answer.true))


def _slack(
    formula: Formula,
    values: Values,
    cotangents: Values | None,
    judged: Judged,
    plain: Computed,
) -> Computed:
    """Tolerance of a formula: the spread of its answers to perturbed inputs, and the definition's own tolerance."""
    assert judged.expected is not None and judged.call is not None
    rng, precision = np.random.default_rng(0), judged.precision
    draws = []
    for number in range(COPIES):
        near = {name: _near(name, x, judged, rng) for name, x in values.items()}
        dnear = None
        if cotangents is not None:
            dnear = {name: budget.perturbed_operands(x, precision, rng)[number] for name, x in cotangents.items()}
        draws.append(formula.compute(near, judged.call.options, dnear, _computing(judged)))
    found = {}
    for name in judged.expected.values:
        if name not in plain:
            continue
        scale = LOG_SCALE.get(name)
        with np.errstate(invalid="ignore", over="ignore"):
            changes = [
                draw[name] if scale is None else oracle.rescaled(draw[name], draw[scale], plain[scale])
                for draw in draws
            ]
        response = 2 * budget.response(plain[name], np.stack(changes), last=plain[name].ndim > 0)
        size = np.where(np.isfinite(plain[name]), np.abs(plain[name]), 0.0)
        true = judged.expected.values[name]
        typical = max(_typical(size), _typical(np.where(np.isfinite(true), true, 0.0)))
        found[name] = response + np.asarray(judged.expected.slack[name]) + precision.growth * (size + typical)
    return found


def _typical(size: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(size)))) if size.size else 0.0


def _near(name: str, x: np.ndarray, judged: Judged, rng: np.random.Generator) -> np.ndarray:
    assert judged.call is not None
    if judged.call.arrays[name].dtype not in FLOATING:
        return x
    if name in ("i", "f", "m0", "forget_input", "reset_input"):
        return budget.perturbed_gates(x, judged.precision, rng, 0.0)[0]
    return budget.perturbed_operands(x, judged.precision, rng)[0]


def _alike(answers: Sequence[Answer], computed: Computed, growth: float, closely: bool) -> bool | None:
    """Whether a target's error has the direction and the size of the error of a formula that rounds.

    Where the definition is not NaN, the target must be NaN at the elements at which the formula is, and at no other.

    Args:
        growth: by which roundoff grows over the steps of the call.
        closely: whether numbers must be alike where there is NaN.
    """
    nans, places = (
        [np.isnan(x) & ~np.isnan(answer.true) for answer, x in zip(answers, of, strict=True)]
        for of in ([answer.got for answer in answers], [computed[answer.name] for answer in answers])
    )
    if not all(map(np.array_equal, nans, places)):
        return False
    nan = any(place.any() for place in places)
    if nan and not closely:
        return True
    errors, others, noise = [], [], []
    for answer in answers:
        finite = np.isfinite(answer.true) & np.isfinite(answer.got) & np.isfinite(computed[answer.name])
        unit = max(float(np.abs(answer.true[finite]).max(initial=0.0)), CANCELLED * answer.largest_gradient)
        if unit == 0:
            continue
        error, other = ((x[finite] - answer.true[finite]) / unit for x in (answer.got, computed[answer.name]))
        # The tolerance allows operands of 16 bits, but most targets keep states without such a rounding.
        tolerance = np.minimum(answer.tolerance[finite] / unit, ROUNDINGS * growth * answer.roundoff)
        # Of an array that is right either way, the errors are those of its last rounding.
        if nan or (np.abs(error) > tolerance).any() or (np.abs(other) > APART * tolerance).any():
            errors.append(error)
            others.append(other)
            noise.append(tolerance)
    error, other, tolerance = (np.concatenate(parts) if parts else np.zeros(0) for parts in (errors, others, noise))
    size, other_size, least = (float(np.linalg.norm(x)) for x in (error, other, tolerance))
    if not (np.abs(other) > APART * tolerance).any():
        return True if nan and size <= APART * least else None
    if not size > 0:
        return False
    cosine = float(error @ other) / (size * other_size)
    return cosine > ALIKE and ALIKE < math.sqrt(size / other_size) < 1 / ALIKE
