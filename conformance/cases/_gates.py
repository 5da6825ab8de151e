"""Preactivations of the mLSTM's gates, in regimes: ordinary, saturated, with hard resets, with large stabilisers."""

import numpy as np

GATES = (
    "ordinary",
    "small",
    "remembering",
    "saturated",
    "resets",
    "closed",
    "large m",
    "low m",
    "extreme",
    "mixed",
)


def _gates(rng: np.random.Generator, regime: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Input and forget preactivations ``(B, S, N)`` of one regime."""
    i, f = rng.normal(size=shape), rng.normal(size=shape)
    if regime == "small":
        return 1e-3 * i, 1e-3 * f
    if regime == "remembering":
        return i - 1, 5 + f
    if regime == "saturated":
        return 8 * i, 15 * f
    if regime == "resets":
        f = np.where(rng.random(shape) < 0.15, -np.inf, np.where(rng.random(shape) < 0.2, np.inf, 1 + f))
        return np.where(rng.random(shape) < 0.2, -np.inf, i), f
    if regime == "closed":
        closed = rng.random(shape) < 0.7
        return np.where(closed, -np.inf, i), np.where(closed & (rng.random(shape) < 0.3), -np.inf, 1 + f)
    if regime == "large m":
        return 70 + 2 * i, 4 + f
    if regime == "low m":
        return i - 25, f - 4
    if regime == "extreme":
        values = np.array([1e4, -1e4, 0.0, 1.0, -30.0, 30.0])
        with_infinities = np.array([1e4, -1e4, np.inf, -np.inf, 2.0, 8.0])
        return rng.choice(values, shape), rng.choice(with_infinities, shape)
    return i, 1 + f


def gates(rng: np.random.Generator, regime: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Preactivations; ``mixed`` gives every lane (b, n) a regime of its own."""
    if regime != "mixed":
        return _gates(rng, regime, shape)
    i, f = np.empty(shape), np.empty(shape)
    for b, n in np.ndindex(shape[0], shape[2]):
        lane = GATES[int(rng.integers(len(GATES) - 1))]
        i[b, :, n], f[b, :, n] = (gate[0, :, 0] for gate in _gates(rng, lane, (1, shape[1], 1)))
    return i, f
