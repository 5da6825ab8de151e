"""Exponential moving average with a gate, the plainest recurrence."""

import numpy as np

from reference._arrays import NUMPY, float64
from reference.arguments import check_ema


def _sigmoid(f: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -f))


def ema(x: np.ndarray, f: np.ndarray, initial: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Moving average with a forget gate: ``y_t = a_t·y_{t−1} + (1 − a_t)·x_t``, ``a = σ(f)``.

    Args:
        x: ``(B, S, N)``, floating.
        f: preactivations of the gate, ``(B, S, N)``, like `x` or float32.
        initial: y₀, ``(B, N)``, in the accumulation dtype; zeros where it is left out.

    Returns:
        ``(y, last)``: ``(B, S, N)`` and the last average ``(B, N)``, float64.

    Raises:
        TypeError: an array of another dtype.
        ValueError: an array of another shape.
    """
    check_ema(NUMPY, x, f, initial)
    x, a, shut = float64(x), _sigmoid(float64(f)), _sigmoid(-float64(f))
    last = np.zeros((x.shape[0], x.shape[2])) if initial is None else float64(initial)
    y = np.empty(x.shape)
    for t in range(x.shape[1]):
        last = y[:, t] = a[:, t] * last + shut[:, t] * x[:, t]
    return y, last.copy()


def ema_backward(
    x: np.ndarray, f: np.ndarray, initial: np.ndarray | None = None, *, dy: np.ndarray, dlast: np.ndarray
) -> dict[str, np.ndarray]:
    """Gradient of `ema`: the same loop, walked back."""
    y, _ = ema(x, f, initial)
    x, a, shut, g = float64(x), _sigmoid(float64(f)), _sigmoid(-float64(f)), float64(dlast)
    start = np.zeros(g.shape) if initial is None else float64(initial)
    dx, df = np.zeros(x.shape), np.zeros(x.shape)
    for t in reversed(range(x.shape[1])):
        g = g + dy[:, t]
        before = y[:, t - 1] if t else start
        dx[:, t] = shut[:, t] * g
        df[:, t] = a[:, t] * shut[:, t] * g * (before - x[:, t])
        g = a[:, t] * g
    return {"x": dx, "f": df, "initial": g}
