"""The reference's answers for a case, with the tolerance of every element."""

from conformance.oracle._common import Values, remember, values
from conformance.oracle._fwbw import fwbw, fwbw_gradient
from conformance.oracle._large import each_sequence
from conformance.oracle._mlstm import mlstm, mlstm_gradient, rescaled, with_state
from conformance.oracle._recurrence import PRECISE, by_tape, gradient_of, value_of
from conformance.oracle._sums import dtilde, dtilde_gradient, sums, sums_gradient

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
    "mlstm",
    "mlstm_gradient",
    "remember",
    "rescaled",
    "sums",
    "sums_gradient",
    "value_of",
    "values",
    "with_state",
]
