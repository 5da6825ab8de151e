"""Preactivations of the mLSTM's gates, in regimes: ordinary, saturated, with hard resets, with large stabilisers.

A regime starts after a first part of each sequence in which the gates keep the memory, so that the initial stabiliser
attains m for a while and its gradient is more than that of the first step.
"""

from collections.abc import Iterable

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
    "changing",
    "mixed",
)
_CHANGING = ("remembering", "ordinary", "resets", "saturated")


SHUT = "shut"
"""A regime of experiments alone: finite forget gates that empty the memory, of -1e30, among ordinary ones."""


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
        # A reset is followed by a write; "closed" empties the memory and leaves it empty.
        f = np.where(rng.random(shape) < 0.15, -np.inf, np.where(rng.random(shape) < 0.2, np.inf, 1 + f))
        return np.where((rng.random(shape) < 0.2) & ~np.isneginf(f), -np.inf, i), f
    if regime == "closed":
        closed = rng.random(shape) < 0.7
        return np.where(closed, -np.inf, i), np.where(closed & (rng.random(shape) < 0.1), -np.inf, 1 + f)
    if regime == "large m":
        return 70 + 2 * i, 4 + f
    if regime == "low m":
        return i - 25, f - 4
    if regime == SHUT:
        return i, np.where(rng.random(shape) < 0.25, -1e30, 1 + f)
    if regime == "extreme":
        values = np.array([1e4, -1e4, 0.0, 1.0, -30.0, 30.0])
        with_infinities = np.array([1e4, -1e4, np.inf, -np.inf, 2.0, 8.0])
        # No two values are equal: candidates for m would tie, and then the gradient of either side passes.
        apart = 1 + 0.2 * rng.random(shape)
        return apart * rng.choice(values, shape) + 0.1 * i, rng.choice(with_infinities, shape)
    return i, 1 + f


def gates(rng: np.random.Generator, regime: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Preactivations; ``changing`` goes through four regimes, ``mixed`` draws one for each head of each sequence."""
    i, f = np.empty(shape), np.empty(shape)
    if regime == "changing":
        parts = np.array_split(np.arange(shape[1]), len(_CHANGING))
        for part, name in zip(parts, rng.permutation(_CHANGING), strict=True):
            i[:, part], f[:, part] = _gates(rng, str(name), (shape[0], len(part), shape[2]))
        return i, f
    if regime != "mixed":
        return _gates(rng, regime, shape)
    for b, n in np.ndindex(shape[0], shape[2]):
        lane = GATES[int(rng.integers(len(GATES) - 2))]
        i[b, :, n], f[b, :, n] = (gate[0, :, 0] for gate in _gates(rng, lane, (1, shape[1], 1)))
    return i, f


def hold(rng: np.random.Generator, i: np.ndarray, f: np.ndarray, steps: Iterable[slice]) -> None:
    """Make the gates keep the memory in ``steps``, in place: almost nothing is written and almost nothing decays."""
    for part in steps:
        i[:, part] = rng.normal(size=i[:, part].shape) - 8
        f[:, part] = rng.normal(size=f[:, part].shape) + 7
