"""How far two computations of one function may be apart that differ in the order of their roundings."""

from typing import Any

import numpy as np

# Errors of the layers and models compared here, over the largest magnitude of an array, were at most 12 units.
UNITS = 64


def assert_rounding(actual: Any, truth: Any, what: str, units: float = UNITS) -> None:
    """The largest difference is at most `units` of the last place of the largest element, in the dtype of `actual`."""
    actual, truth = np.asarray(actual), np.asarray(truth)
    assert actual.shape == truth.shape, f"{what}: {actual.shape} and {truth.shape}"
    assert np.isfinite(actual).all() and np.isfinite(truth).all(), f"{what} is not finite"
    scale = max(np.abs(truth).max(initial=0.0), np.finfo(np.float32).tiny)
    error = np.abs(actual.astype(np.float64) - truth).max(initial=0.0) / (np.finfo(actual.dtype).eps * scale)
    assert error <= units, f"{what}: {error:.1f} units in the last place; at most {units}"
