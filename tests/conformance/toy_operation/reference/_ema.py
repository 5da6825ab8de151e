"""Exponential moving average, the plainest recurrence."""

import numpy as np

from reference._arrays import NUMPY, float64
from reference.arguments import check_ema


def ema(x: np.ndarray, decay: np.ndarray, initial: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Moving average with a decay per head: ``y_t = a·y_{t−1} + (1 − a)·x_t``.

    Args:
        x: ``(B, S, N)``, floating.
        decay: a, ``(N,)``, like `x`.
        initial: y₀, ``(B, N)``, in the accumulation dtype; zeros where it is left out.

    Returns:
        ``(y, last)``: ``(B, S, N)`` and the last average ``(B, N)``, float64.

    Raises:
        TypeError: an array of another dtype.
        ValueError: an array of another shape.
    """
    check_ema(NUMPY, x, decay, initial)
    x, a = float64(x), float64(decay)
    last = np.zeros((x.shape[0], x.shape[2])) if initial is None else float64(initial)
    y = np.empty(x.shape)
    for t in range(x.shape[1]):
        last = y[:, t] = a * last + (1 - a) * x[:, t]
    return y, last.copy()


def ema_backward(
    x: np.ndarray, decay: np.ndarray, initial: np.ndarray | None = None, *, dy: np.ndarray, dlast: np.ndarray
) -> dict[str, np.ndarray]:
    """Gradient of `ema`: the same loop, walked back."""
    y, _ = ema(x, decay, initial)
    x, a, g = float64(x), float64(decay), float64(dlast)
    start = np.zeros(g.shape) if initial is None else float64(initial)
    dx, da = np.zeros(x.shape), np.zeros(a.shape)
    for t in reversed(range(x.shape[1])):
        g = g + dy[:, t]
        before = y[:, t - 1] if t else start
        dx[:, t] = (1 - a) * g
        da += (g * (before - x[:, t])).sum(axis=0)
        g = a * g
    return {"x": dx, "decay": da, "initial": g}
