"""Σ|terms| of an mLSTM, and the roundings that its memory collects.

They are computed by the recurrence and its transpose with the magnitude of every factor.
"""

from dataclasses import dataclass

import numpy as np

from conformance.oracle._common import Values
from conformance.oracle._stabiliser_paths import candidates_for_m, stabiliser_paths
from conformance.tolerance.budget import NEAR_FLOOR


@dataclass(frozen=True)
class Magnitudes:
    """All rounding in every output and gradient of an mLSTM, whether or not its exact value responds to anything.

    The response to perturbed inputs does not show an identity that holds for all inputs. With one step h does not
    depend on q, so dq is 0 for any perturbation, but it is computed as a difference of two terms, each of which is
    rounded.

    Attributes:
        outputs, gradients: Σ|terms| of what is summed, before anything cancels.
        drift, gradient_drift: the root of the sum of squares of a memory's sizes when it was rounded, step by step; for
            an old memory that is √age times its size.
        nu: |ν| = |n·q̂|, its floor, its Σ|terms| and its drift, each ``(B, S, N)``.
        g: |dm_T − ⟨C_T, dC_T⟩ − ⟨n_T, dn_T⟩| of each head of each sequence.
    """

    outputs: Values
    gradients: Values
    drift: Values
    gradient_drift: Values
    nu: tuple[np.ndarray, ...]
    g: np.ndarray


class _Held:
    """A quantity carried from step to step, ``(B, N, K, V+1)``: C with n as the last column, or their cotangents.

    Attributes:
        size: Σ|terms|.
        folds: Σ|terms|·Λ, where exp(−Λ) is the weight to which a term has decayed. A kernel that computes the weight
            from a sum of logarithms rounds that sum at each step, relative to Λ, however small the weight is by then.
        drift: rounding in units of roundoff. Nothing is squared that could leave the range of float64.
    """

    def __init__(self, size: np.ndarray):
        self.size, self.folds, self.drift = size, np.zeros(size.shape), np.zeros(size.shape)

    def decay(self, weight: np.ndarray, folds: np.ndarray) -> None:
        self.folds = weight * (self.folds + folds * self.size)
        self.size, self.drift = weight * self.size, weight * self.drift

    def add(self, terms: np.ndarray, folds: np.ndarray | float = 0.0) -> None:
        self.size, self.folds = self.size + terms, self.folds + folds * terms
        self.drift = np.hypot(self.drift, np.hypot(self.size, self.folds))


def magnitudes_of(arrays: Values, eps: float, cotangents: Values | None, floor_is_one: bool = False) -> Magnitudes:
    """Magnitudes from the recurrence and its transpose, with the magnitude of every factor, at the exact stabilisers.

    The relative error of ν is larger than that of its terms if they cancel: Σ|q̂||n| / Y times as large, and it
    multiplies everything that is divided by Y. On the floor, the error of m takes its place, u·|m| at each step, added
    as squares; near the floor, either. With m above 64 it does not cancel between C and exp(−min(m, 64)), and it never
    cancels between C and eps.
    """
    steps = {name: np.moveaxis(arrays[name], 1, 0) for name in "qkvif"}
    i, a = steps["i"], -np.logaddexp(0.0, -steps["f"])
    S, K = len(i), steps["q"].shape[-1]
    exact_q, exact_k, exact_v = steps["q"] / np.sqrt(K), steps["k"], _beside(steps["v"], np.ones((*i.shape, 1)))
    q, k, v = np.abs(exact_q), np.abs(exact_k), np.abs(exact_v)
    m = np.zeros((S + 1, *arrays["m0"].shape))
    m[0] = arrays["m0"]
    for t in range(S):
        m[t + 1] = np.maximum(a[t] + m[t], i[t])
    decay, lost = _weight(a + m[:-1] - m[1:])
    gain, shy = _weight(i - m[1:])
    exact = _beside(arrays["C0"], arrays["n0"][..., None])
    held, sizes, drifts, exacts = _Held(np.abs(exact)), [np.abs(exact)], [np.zeros(exact.shape)], []
    written, wide = gain[..., None] * exact_k, (*gain.shape, 1, 1)
    for t in range(S):
        terms = written[t][..., None] * exact_v[t][..., None, :]
        exact = decay[t].reshape(wide[1:]) * exact + terms
        held.decay(decay[t].reshape(wide[1:]), lost[t].reshape(wide[1:]))
        held.add(np.abs(terms), shy[t].reshape(wide[1:]))
        exacts.append(exact)
        sizes.append(held.size)
        drifts.append(held.drift)
    size, drifted = np.stack(sizes), np.stack(drifts)
    after, after_drift = size[1:], drifted[1:]
    read = np.einsum("tbnkv,tbnk->tbnv", np.stack(exacts) if S else after, exact_q)
    floor = np.ones(i.shape) if floor_is_one else _floor(m[1:])
    Y = np.maximum(np.abs(read[..., -1]), floor) + eps
    above = np.abs(read[..., -1]) >= floor * (1 - NEAR_FLOOR)
    size_of_m = np.where(np.isfinite(m), np.abs(m), 0.0)
    largest_m, of_m = np.maximum.accumulate(size_of_m)[1:], np.sqrt(np.cumsum(size_of_m**2, axis=0))[1:]
    term = np.einsum("tbnkv,tbnk->tbnv", after, q) / Y[..., None]
    below = np.abs(read[..., -1]) <= floor * (1 + NEAR_FLOOR)
    of_divisor = np.maximum(np.where(above, term[..., -1], 0.0), np.where(below, of_m, 0.0))
    amplified = np.maximum(1.0, of_divisor + of_m * eps / Y)[..., None]
    exact_h = np.abs(read[..., :-1]) / Y[..., None]
    h = term[..., :-1] + amplified * exact_h
    root = _root("tbnkv,tbnk->tbnv", after_drift, q) / Y[..., None]
    of_nu = (np.abs(read[..., -1]), floor, term[..., -1] * Y, root[..., -1] * Y)
    nu = tuple(np.moveaxis(x, 0, 1) for x in of_nu)
    of_h = root[..., :-1] + np.where(above, root[..., -1], 0.0)[..., None] * exact_h
    last, last_drift = size[-1], drifted[-1]
    none = np.zeros(m[0].shape)
    outputs = {"h": np.moveaxis(h, 0, 1), "C": last[..., :-1], "n": last[..., -1], "m": none}
    drift = {"h": np.moveaxis(of_h, 0, 1), "C": last_drift[..., :-1], "n": last_drift[..., -1], "m": none}
    if cotangents is None:
        return Magnitudes(outputs, {}, drift, {}, nu, none)

    d = _Held(_beside(np.abs(cotangents["C"]), np.abs(cotangents["n"])[..., None]))
    g = np.abs(cotangents["m"]) + _dot(last, d.size)
    exact_g = cotangents["m"] - _dot(exact, _beside(cotangents["C"], cotangents["n"][..., None]))
    of_g = _dot(drifted[-1], d.size)
    delta = np.abs(np.moveaxis(cotangents["h"], 1, 0)) / Y[..., None] * amplified
    dnu = np.where(above, np.einsum("tbnv,tbnv->tbn", delta, h), 0.0)
    of_normaliser = np.einsum("tbnv,tbnv->tbn", delta, h) * Y
    delta = _beside(delta, dnu[..., None])
    at_step, at_step_drift = np.zeros(after.shape), np.zeros(after.shape)
    before, before_drift = np.zeros(after.shape), np.zeros(after.shape)
    for t in reversed(range(S)):
        d.add(q[t][..., None] * delta[t][..., None, :])
        at_step[t], at_step_drift[t] = d.size, d.drift
        d.decay(decay[t].reshape(wide[1:]), lost[t].reshape(wide[1:]))
        before[t], before_drift[t] = d.size, d.drift
    gate = np.exp(-np.logaddexp(0.0, steps["f"]))
    # A log weight −Λ is a difference of log weights of size m, which is itself rounded at each step.
    gain, shy = gain[..., None], (1 + shy + largest_m)[..., None]
    dk = gain * shy * np.einsum("tbnkv,tbnv->tbnk", at_step, v)
    of_dk = gain * _root("tbnkv,tbnv->tbnk", at_step_drift, v)
    da, dy = _dot(size[:-1], before), np.einsum("tbnk,tbnv,tbnkv->tbn", k, v, at_step) * gain[..., 0]
    of_reads = _dot(after, q[..., None] * delta[..., None, :]) + of_normaliser
    following = np.concatenate([da[1:], none[None]]) if S else da
    candidates = candidates_for_m(a, i, m)
    dm = np.abs(cotangents["m"])
    reads = stabiliser_paths(of_reads, dm, *candidates)
    paths = stabiliser_paths(of_reads + da + dy + following, dm, *candidates)
    found = {
        "q": np.einsum("tbnkv,tbnv->tbnk", after, delta) / np.sqrt(K),
        "k": dk,
        "v": gain * shy * np.einsum("tbnkv,tbnk->tbnv", at_step[..., :-1], k),
        "i": np.einsum("tbnk,tbnk->tbn", k, dk) + reads.write,
        "f": (da + reads.log_forget) * gate,
    }
    of = {
        "q": _root("tbnkv,tbnv->tbnk", after_drift, delta) / np.sqrt(K),
        "k": of_dk,
        "v": gain * _root("tbnkv,tbnk->tbnv", at_step_drift[..., :-1], k),
        "i": np.hypot(np.einsum("tbnk,tbnk->tbn", k, of_dk), paths.write),
        "f": np.hypot(np.hypot(_dot(drifted[:-1], before), _dot(size[:-1], before_drift)), paths.log_forget) * gate,
    }
    found, of = ({name: np.moveaxis(x, 0, 1) for name, x in each.items()} for each in (found, of))
    root, initial = d.drift, size[0]
    # The log weight with which a step reads the initial memory is such a difference of log weights, too.
    read_later = d.size * (1 + largest_m[-1] if S else 1 + none)[..., None, None]
    of_m0 = _dot(initial, read_later) + reads.m0 if S else none
    found |= {"C0": read_later[..., :-1], "n0": read_later[..., -1], "m0": of_m0, "g": g}
    of |= {"C0": root[..., :-1], "n0": root[..., -1], "m0": np.hypot(_dot(initial, root), paths.m0), "g": of_g}
    carried = np.maximum(g, da.max(axis=0, initial=0.0))
    return Magnitudes(
        outputs, {**found, "gate": np.moveaxis(gate, 0, 1), "carried": carried}, drift, of, nu, np.abs(exact_g)
    )


def _beside(x: np.ndarray, column: np.ndarray) -> np.ndarray:
    return np.concatenate([x, column], axis=-1)


def _weight(log_weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``exp(−Λ)`` and Λ, both 0 for the weight of nothing (−∞, or −∞ − (−∞))."""
    none = ~np.isfinite(log_weight)
    return np.where(none, 0.0, np.exp(log_weight)), np.where(none, 0.0, -log_weight)


def _root(subscripts: str, drift: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """The root of the sum of squares of ``drift·factor``, each scaled by its largest element before it is squared."""
    largest, of_factor = drift.max(axis=(-2, -1), initial=0.0), factor.max(axis=-1, initial=0.0)
    scaled = drift / np.where(largest > 0, largest, 1.0)[..., None, None]
    factor = factor / np.where(of_factor > 0, of_factor, 1.0)[..., None]
    return np.sqrt(np.einsum(subscripts, scaled**2, factor**2)) * (largest * of_factor)[..., None]


def _dot(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.einsum("...kv,...kv->...", x, y)


def _floor(m: np.ndarray) -> np.ndarray:
    return np.exp(-np.minimum(m, 64.0))


def gradient_magnitudes(magnitudes: Magnitudes, exact: Values) -> tuple[Values, Values]:
    """The magnitudes of the gradients and their drift, including those of g where the exact gradient may contain g.

    These are the write that attained the final m and every decay since.
    """
    gate = magnitudes.gradients["gate"]
    reached, wrote = np.abs(exact["f"]) > 0, np.abs(exact["i"]) > 0

    def with_g(found: Values) -> Values:
        g = found["g"]
        shares = {"i": g[:, None] * wrote, "f": g[:, None] * gate * reached, "m0": g}
        return {name: found[name] + shares.get(name, 0.0) for name in exact}

    return with_g(magnitudes.gradients), with_g(magnitudes.gradient_drift)
