"""Gate functions that stay exact and finite for preactivations from −∞ to +∞."""

import numpy as np


def log_sigmoid(x: np.ndarray) -> np.ndarray:
    """``log σ(x) = min(x, 0) − log(1 + exp(−|x|))``; −∞ at −∞, 0 at +∞."""
    return np.minimum(x, 0.0) - np.log1p(np.exp(-np.abs(x)))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """``σ(x)``, with full relative precision even where it is close to 0."""
    return np.exp(log_sigmoid(x))


def exp_difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """``exp(x − y)`` for log weights below +∞; ``exp(−∞ − (−∞))`` counts as 0, since an empty memory has no weight."""
    x, y = np.broadcast_arrays(x, y)
    difference = np.full(x.shape, -np.inf)
    np.subtract(x, y, out=difference, where=~np.isneginf(x))
    return np.exp(difference)
