"""Reverse cumulative sums, which carry the gradient of a decay back in time (xlstm_jax, fwbw backend)."""

import numpy as np

from reference._arrays import NUMPY, float64
from reference.arguments import check_scan


def rev_cumsum(x: np.ndarray) -> np.ndarray:
    """Sum of each element and all elements after it: ``y_t = Σ_{s≥t} x_s``.

    Args:
        x: ``(..., S)``, floating-point.

    Returns:
        ``(..., S)``, float64.

    Raises:
        TypeError: `x` is not a floating-point array.
        ValueError: `x` has no axis.
    """
    check_scan(NUMPY, x, "rev_cumsum")
    y = float64(x)
    for t in reversed(range(y.shape[-1] - 1)):
        y[..., t] += y[..., t + 1]
    return y


def rev_cumsum_backward(x: np.ndarray, *, dy: np.ndarray) -> dict[str, np.ndarray]:
    """Gradient of `rev_cumsum`: ``dx_s = Σ_{t≤s} dy_t``.

    Args:
        x: the argument of `rev_cumsum`.
        dy: cotangent of the output, ``(..., S)``.

    Returns:
        ``{"x": dx}``, float64.
    """
    return {"x": np.cumsum(float64(dy), axis=-1)}


def rev_cumsum_off(x: np.ndarray) -> np.ndarray:
    """Sum of all elements after each element: ``y_t = Σ_{s>t} x_s``; the last output is 0.

    Arguments, result and errors are those of `rev_cumsum`.
    """
    check_scan(NUMPY, x, "rev_cumsum_off")
    y = np.zeros(x.shape)
    y[..., :-1] = rev_cumsum(x)[..., 1:]
    return y


def rev_cumsum_off_backward(x: np.ndarray, *, dy: np.ndarray) -> dict[str, np.ndarray]:
    """Gradient of `rev_cumsum_off`: ``dx_s = Σ_{t<s} dy_t``.

    Arguments and result are those of `rev_cumsum_backward`.
    """
    dx = np.zeros(x.shape)
    dx[..., 1:] = np.cumsum(float64(dy), axis=-1)[..., :-1]
    return {"x": dx}
