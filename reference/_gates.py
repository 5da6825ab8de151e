"""Gate functions that stay exact and finite for preactivations from −∞ to +∞.

A sum of log weights below the least finite number is −∞, the log of 0.
"""

import numpy as np

LARGEST_EXACT = 2.0**40
"""Below this |m|, the rounding of m adds less than 10⁻⁴ per step to the log weight of a memory."""


def log_sigmoid(x: np.ndarray) -> np.ndarray:
    """``log σ(x) = min(x, 0) − log(1 + exp(−|x|))``; −∞ at −∞, 0 at +∞."""
    return np.minimum(x, 0.0) - np.log1p(np.exp(-np.abs(x)))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """``σ(x)``, with full relative precision even where it is close to 0."""
    return np.exp(log_sigmoid(x))


@np.errstate(over="ignore")
def exp_difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """``exp(x − y)`` for log weights below +∞; ``exp(−∞ − (−∞))`` counts as 0, since an empty memory has no weight."""
    x, y = np.broadcast_arrays(x, y)
    difference = np.full(x.shape, -np.inf)
    np.subtract(x, y, out=difference, where=~np.isneginf(x))
    return np.exp(difference)


@np.errstate(over="ignore")
def stabilised_decay(a: np.ndarray, m: np.ndarray, m_new: np.ndarray) -> np.ndarray:
    """``a + m − m_new``, the log of what a step leaves of a memory in units of exp(m); −∞ where ``a + m`` is.

    Where a or m is large, the sum's rounding is added again (Knuth's two-sum gives it exactly): otherwise the memory
    would be off by that part of itself. From `LARGEST_EXACT` on the result is at most 0, as it is without rounding.
    """
    a, m, m_new = np.broadcast_arrays(a, m, m_new)
    empty = np.isneginf(a + m)
    # For a memory that is emptied the sum is omitted, because −∞ − (−∞) is NaN.
    a, m, m_new = (np.where(empty, 0.0, x) for x in (a, m, m_new))
    total = a + m
    rest = total - a
    lost = (a - (total - rest)) + (m - rest)
    decay = np.where(empty, -np.inf, (total - m_new) + lost)
    # The rounding of a large m adds up over the steps, and exp of it would overflow.
    return np.where(np.abs(m_new) < LARGEST_EXACT, decay, np.minimum(decay, 0.0))
