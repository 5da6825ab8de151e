"""The reference's answers for a case, with the budget of every element.

The reference is evaluated in float64 on the exact inputs and on `budget.DRAWS` (plus two) perturbed copies, all in one
call that stacks the copies along an axis over which the operation is independent.
"""

from conformance.oracle._any_design import widened
from conformance.oracle._common import Values, remember, values
from conformance.oracle._fwbw import unstabilised
from conformance.oracle._gru import gru, gru_gradient
from conformance.oracle._large import (
    dtilde_gradient,
    fwbw,
    fwbw_gradient,
    mlstm,
    mlstm_gradient,
)
from conformance.oracle._mlstm import each_sequence, joined, rescaled, with_state
from conformance.oracle._recurrence import PRECISE, by_tape, gradient_of, value_of
from conformance.oracle._slstm import slstm, slstm_gradient
from conformance.oracle._sums import dtilde, sums, sums_gradient

__all__ = [
    "PRECISE",
    "Values",
    "by_tape",
    "dtilde",
    "dtilde_gradient",
    "each_sequence",
    "fwbw",
    "fwbw_gradient",
    "gradient_of",
    "gru",
    "gru_gradient",
    "joined",
    "mlstm",
    "mlstm_gradient",
    "remember",
    "rescaled",
    "slstm",
    "slstm_gradient",
    "sums",
    "sums_gradient",
    "unstabilised",
    "value_of",
    "values",
    "widened",
    "with_state",
]
