"""Removes single properties from the arrays of an mLSTM case and leaves everything else as it was drawn.

Shapes and options of a case are fields that can be changed one at a time. The values of its arrays are drawn from a
regime and a seed, so a case lists under ``removed`` the properties that are removed from them afterwards. An experiment
can then tell which single property a failure needs.
"""

from collections.abc import Sequence

import numpy as np

MODERATE = 5.0
"""Magnitude that replaces infinite and large preactivations: σ(±5) is near 0 or 1, but not at it."""

LARGE = 20.0
"""A finite preactivation beyond this magnitude is large: σ is then 1, or 0, to within a float32 roundoff."""

HUGE = 1e6
"""Beyond this magnitude, a sum of log gates loses all digits of the other gates in float32."""

LARGEST_M = 64.0
LARGEST_SCALE = 1e3
"""Queries scaled by more would leave the range of float16."""

HUGE_GATES = "forget gates of -1e30"
INFINITE_GATES = ("forget gates of -inf", "forget gates of +inf", "input gates of -inf")
LARGE_GATES = ("large forget gates", "large input gates")
ABOVE, AT_FLOOR = "normaliser above its floor", "normaliser at its floor"
ABOVE_64 = "m above 64"
REMOVABLE = (HUGE_GATES, *INFINITE_GATES, *LARGE_GATES, ABOVE_64, ABOVE, AT_FLOOR)


def moderate_gates(i: np.ndarray, f: np.ndarray, removed: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Gate preactivations, with the properties listed in ``removed`` replaced by moderate values of the same sign."""
    if "input gates of -inf" in removed:
        i = np.where(np.isneginf(i), -MODERATE, i)
    if "forget gates of -inf" in removed:
        f = np.where(np.isneginf(f), -MODERATE, f)
    if HUGE_GATES in removed:
        f = np.where(huge(f), np.sign(f) * MODERATE, f)
    if "forget gates of +inf" in removed:
        f = np.where(np.isposinf(f), MODERATE, f)
    i = moderate(i) if "large input gates" in removed else i
    i = capped(i) if ABOVE_64 in removed else i
    f = moderate(f) if "large forget gates" in removed else f
    return i, f


def large(x: np.ndarray) -> np.ndarray:
    """Mask of the elements of ``x`` that are large and finite, but not huge."""
    return (np.abs(x) > LARGE) & (np.abs(x) <= HUGE)


def huge(x: np.ndarray) -> np.ndarray:
    return np.isfinite(x) & (np.abs(x) > HUGE)


def moderate(x: np.ndarray) -> np.ndarray:
    """``x`` with large finite elements replaced by ones between 4 and 5 in magnitude.

    The fractional part of the large value is kept, because equal candidates for the stabiliser would tie.
    """
    finite = np.where(large(x), x, 0.0)
    return np.where(large(x), np.sign(finite) * (MODERATE - 1 + np.abs(finite) % 1), x)


def capped(x: np.ndarray) -> np.ndarray:
    """``x`` with finite elements above 62 replaced by ones between 61 and 62: no stabiliser then exceeds 64."""
    above = np.isfinite(x) & (x > LARGEST_M - 2)
    return np.where(above, LARGEST_M - 3 + np.where(above, x, 0.0) % 1, x)


def normaliser(
    q: np.ndarray, k: np.ndarray, i: np.ndarray, f: np.ndarray, n: np.ndarray, m: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """|n·q̂| and its floor exp(−min(m, 64)) at every step, each ``(B, S, N)``; ``n`` and ``m`` are the initial ones."""
    nu, floor = np.zeros(i.shape), np.ones(i.shape)
    with np.errstate(all="ignore"):
        a = np.minimum(f, 0.0) - np.log1p(np.exp(-np.abs(f)))
        for t in range(i.shape[1]):
            carried = a[:, t] + m
            m = np.maximum(carried, i[:, t])
            decay, gain = _weight(carried, m), _weight(i[:, t], m)
            n = decay[..., None] * n + gain[..., None] * k[:, t]
            nu[:, t] = np.abs(np.einsum("bnk,bnk->bn", n, q[:, t])) / np.sqrt(q.shape[-1])
            floor[:, t] = np.exp(-np.minimum(m, LARGEST_M))
    return nu, floor


def _weight(x: np.ndarray, m: np.ndarray) -> np.ndarray:
    """``exp(x − m)``, and 0 where ``x`` is −∞, for any ``m``."""
    return np.where(np.isneginf(x), 0.0, np.exp(x - np.where(np.isneginf(x), 0.0, m)))


def scale_of_queries(nu: np.ndarray, floor: np.ndarray, removed: Sequence[str]) -> np.ndarray:
    """The factor that scales each query so that |n·q̂| is well below or well above its floor, as ``removed`` says.

    No factor brings |n·q̂| above its floor if n·q̂ is 0; such queries are not changed.
    """
    scale = np.ones(nu.shape)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if ABOVE in removed:
            scale = np.where(nu > 0.5 * floor, 0.5 * floor / nu, scale)
        if AT_FLOOR in removed:
            scale = np.where((nu < 2 * floor) & (nu > 0), np.minimum(2 * floor / nu, LARGEST_SCALE), scale)
    return scale
