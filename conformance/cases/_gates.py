"""Preactivations of the mLSTM's gates, in regimes, and the removal of single properties from the arrays of a case.

Regimes are ordinary, saturated, with hard resets, with large stabilisers, … A regime starts after a first part of each
sequence in which the gates keep the memory, so that the initial stabiliser attains m for a while and its gradient is
more than that of the first step.

Shapes and options of a case are fields that can be changed one at a time. The values of its arrays are drawn from a
regime and a seed, so a case lists under ``removed`` the properties that are removed from them afterwards, while
everything else stays as it was drawn. An experiment can then tell which single property a failure needs.
"""

from collections.abc import Iterable, Sequence

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
