"""Calls of the mLSTM whose gates are large, and whose result is nevertheless known to the last digits.

Scores and values are positive, so that h is a mean of values and no sum in it cancels: whatever an answer is off by
comes from the weights. Gates are such that sums of them are exact in float32, or nearly so.
"""

import numpy as np


def inputs(kind: str, size: float, dtype: type = np.float32, S: int = 70) -> tuple[np.ndarray, ...]:
    """q, k, v, i and f, ``(2, S, 2, ·)``, in which the floor is not active."""
    rng = np.random.default_rng(3)
    q, k, v = (1 + rng.random((2, S, 2, 4)) for _ in range(3))
    i, f = 8 + rng.normal(size=(2, S, 2)), 3 + rng.normal(size=(2, S, 2))
    if kind == "shifted":
        i = np.round(8 * i) / 8 + size
    elif kind == "cancelling":
        # What an even step writes, the odd step after it reads with weight 1.
        i[:, 0::2], i[:, 1::2] = size, 0.0
        f[:, 1::2] = -size
    else:
        # m falls from step to step by what is no sum in float32, and writes follow it down.
        f = -size * rng.random(f.shape)
        i = np.cumsum(f, axis=1) + rng.normal(size=f.shape) + size * S
    return tuple(x.astype(dtype) for x in (q, k, v, i, f))


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest error of an element, by its size."""
    return float((np.abs(np.asarray(found, np.float64) - expected) / np.abs(expected)).max())


HUGE = {np.float16: (6e4,), np.float32: (1e7, 7e7, 3e9, 1e20, 1e35), np.float64: (4e15, 1e17, 1e100, 1e300)}
"""Sizes of gates at which the roundoff of m adds up to more than any weight, or the largest that there are."""


def huge(size: float, dtype: type = np.float32, S: int = 70) -> tuple[np.ndarray, ...]:
    """Scores of both signs, and gates as large as ``size``: in the first sequence a write, then decays and nothing
    else; in the second gates of both signs, with an empty memory in between."""
    rng = np.random.default_rng(7)
    q, k, v = (rng.normal(size=(2, S, 2, 4)) for _ in range(3))
    i, f = size * rng.uniform(-1, 1, (2, S, 2)), size * rng.uniform(-1, 1, (2, S, 2))
    i[0], f[0] = -min(S * size, float(np.finfo(dtype).max)), -size * rng.random((S, 2))
    i[0, 0] = 0.0
    i[1, S // 2], f[1, S // 2] = -np.inf, -np.inf
    return tuple(x.astype(dtype) for x in (q, k, v, i, f))


STEADY = ((5.0, 7e7), (3.0, 7e7), (0.6, 2.0**23), (5.0, 1e8), (3.0, 1e8), (90.0, 3e9))
"""Decays and sizes for `steadily_falling`."""


def steadily_falling(decay: float = 5.0, size: float = 1e8, S: int = 70) -> tuple[np.ndarray, ...]:
    """A write, then equal decays, each of which float32 rounds in the same way. At 10⁸ it makes 8 of 5, and 0 of 3:
    what that takes or adds sums up."""
    rng = np.random.default_rng(7)
    q, k, v = (1 + rng.random((2, S, 2, 4)) for _ in range(3))
    i, f = np.full((2, S, 2), -1e30), np.full((2, S, 2), -decay)
    i[:, 0] = size
    return tuple(x.astype(np.float32) for x in (q, k, v, i, f))
