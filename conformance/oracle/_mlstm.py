"""The mLSTM on its inputs and on perturbed copies of them, stacked along B."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import reference
from conformance.oracle._common import Values, counted, total, without_warnings
from conformance.oracle._magnitudes import Magnitudes, gradient_magnitudes, magnitudes_of
from conformance.tolerance import budget
from conformance.tolerance.budget import DRAWS, Expected, Precision
from reference.arguments import MLSTMState

COPIES = DRAWS + 2


def _largest_m(i: np.ndarray, f: np.ndarray, m0: np.ndarray) -> np.ndarray:
    """The largest finite |m| of each head of each sequence, ``(B, 1, N)``."""
    a = -np.logaddexp(0.0, -f)
    m, largest = m0, np.where(np.isfinite(m0), np.abs(m0), 0.0)
    for t in range(i.shape[1]):
        m = np.maximum(a[:, t] + m, i[:, t])
        largest = np.maximum(largest, np.where(np.isfinite(m), np.abs(m), 0.0))
    return largest[:, None]


def _beside_the_floor(terms: Magnitudes, precision: Precision) -> np.ndarray:
    """The factor by which q is scaled up and down, ``(B, S, N, 1)``; near the floor, so that |n·q̂| lies on both sides.

    |n·q̂| is near its floor if the two are within its own budget of each other.
    """
    nu, floor, magnitude, drift = terms.nu
    own = precision.operand * nu + precision.cancellation * magnitude + precision.drift * drift
    beside = np.abs(nu - floor) <= own
    across = np.divide(1.5 * own, nu, out=np.zeros(nu.shape), where=nu > 0)
    return np.where(beside, np.maximum(across, precision.operand), precision.operand)[..., None]


def copies_of(arrays: Values, cotangents: Values, terms: Magnitudes, precision: Precision) -> tuple[Values, Values]:
    """The inputs and their perturbed copies, stacked along B: copy 0 is exact, the last two scale q."""
    scale = _beside_the_floor(terms, precision)
    rng = np.random.default_rng(0)
    largest = _largest_m(arrays["i"], arrays["f"], arrays["m0"])
    scales: dict[str, np.ndarray | float] = {"i": largest, "f": 0.0, "m0": largest[:, 0], "m": 0.0}

    def copies(name: str, x: np.ndarray, is_gate: bool) -> np.ndarray:
        if is_gate:
            draws = budget.perturbed_gates(x, precision, rng, scales[name])
        else:
            draws = budget.perturbed_operands(x, precision, rng)
        scaled = [x * (1 + sign * scale) if name == "q" else x for sign in (1, -1)]
        return np.concatenate([x, *draws, *scaled])

    stacked = {name: copies(name, x, name in ("i", "f", "m0")) for name, x in arrays.items()}
    dstacked = {name: copies(name, x, False) for name, x in cotangents.items()}
    if cotangents:
        # C and n are in units of exp(m), and m is accurate to a roundoff of its own size.
        of_m = precision.growth * largest[:, 0] * rng.standard_normal((COPIES, *largest[:, 0].shape))
        factor = 1 + np.concatenate([0 * largest[:, 0], *of_m])
        dstacked["C"] = dstacked["C"] * factor[..., None, None]
        dstacked["n"] = dstacked["n"] * factor[..., None]
    return stacked, dstacked


def _state(arrays: Values) -> MLSTMState:
    return MLSTMState(arrays["C0"], arrays["n0"], arrays["m0"])


def rescaled(part: np.ndarray, m: np.ndarray, reference_m: np.ndarray) -> np.ndarray:
    """``part·exp(m − m*)``, where an empty memory (m = m* = −∞) has weight 0."""
    with np.errstate(invalid="ignore", over="ignore"):
        weight = np.where(np.isneginf(m) & np.isneginf(reference_m), 0.0, np.exp(m - reference_m))
        return part * weight.reshape(*weight.shape, *[1] * (part.ndim - weight.ndim))


def with_state(arrays: Values, sequences: int | None = None) -> Values:
    """The arrays, with zeros for an initial state that is omitted."""
    if "C0" in arrays:
        return arrays
    q, v = arrays["q"], arrays["v"]
    B = q.shape[0] if sequences is None else sequences
    N, K, V = q.shape[-2], q.shape[-1], v.shape[-1]
    return {**arrays, "C0": np.zeros((B, N, K, V)), "n0": np.zeros((B, N, K)), "m0": np.zeros((B, N))}


_POOL: dict[str, dict[str, Any]] = {
    "h": {"steps": 1},
    "C": {},
    "n": {},
    "m": {"last": False},
    "q": {"steps": 1},
    "k": {"steps": 1},
    "v": {"steps": 1},
    "i": {"last": False, "steps": 1},
    "f": {"last": False, "steps": 1},
    "C0": {},
    "n0": {},
    "m0": {"last": False},
}
"""The neighbours of an element that have the same conditioning, by output: see `budget.response`."""


def split(stacked: np.ndarray, B: int) -> tuple[np.ndarray, np.ndarray]:
    copies = stacked.reshape(1 + COPIES, B, *stacked.shape[1:]) if B else np.zeros((1 + COPIES, *stacked.shape))
    return copies[0], copies[1:]


def budgeted(named: Values, B: int, magnitudes: Values, drift: Values, precision: Precision) -> Expected:
    exact, slack = {}, {}
    for name, stacked in named.items():
        exact[name], draws = split(stacked, B)
        rounded = precision.cancellation * magnitudes[name] + precision.drift * drift[name]
        response = budget.response(exact[name], draws, **_POOL[name])
        slack[name] = response + np.where(np.isfinite(rounded), rounded, 0.0)
    return Expected(exact, slack)


def either_side(expected: Expected, arrays: Values, g: np.ndarray, precision: Precision) -> Expected:
    """Widen the tolerance where candidates for m_T tie within rounding.

    g may then reach any of these candidates, and the gates between them. Candidate 0 is m₀, candidate j is the write of
    step j; each decays by the gates after it. If the memory ends empty, all candidates are −∞ and none of them moves m.
    """
    a, i, m0 = -np.logaddexp(0.0, -arrays["f"]), arrays["i"], arrays["m0"]
    if not a.shape[1]:
        return expected
    until = np.flip(np.cumsum(np.flip(a, 1), axis=1), 1)
    after = np.concatenate([until[:, 1:], np.zeros_like(m0)[:, None]], axis=1)
    candidates = np.concatenate([(m0 + a.sum(axis=1))[:, None], i + after], axis=1)
    best = candidates.max(axis=1, keepdims=True)
    rounding = 2 * precision.growth * np.maximum(1.0, _largest_m(i, arrays["f"], m0))
    tied = (candidates >= best - rounding) | np.isneginf(best)
    several = (tied.sum(axis=1) > 1)[:, None]
    later = np.flip(np.logical_or.accumulate(np.flip(tied, 1), axis=1), 1)
    between = np.logical_or.accumulate(tied, axis=1)[:, :-1] & later[:, 1:]
    share = 1.01 * g[:, None]
    gate = np.exp(-np.logaddexp(0.0, arrays["f"]))
    shares = {
        "i": share * (tied[:, 1:] & several),
        "f": share * (between & several) * gate,
        "m0": g * 1.01 * (tied & several)[:, 0],
    }
    slack = {name: x + shares.get(name, 0.0) for name, x in expected.slack.items()}
    empty = np.isneginf(best[:, 0]) & (g > 0)
    return replace(expected, slack=slack, kinks=expected.kinks + int(np.count_nonzero(empty)))


@without_warnings
def mlstm(arrays: Values, options: Mapping[str, Any], precision: Precision) -> Expected:
    """Value of `mlstm`, from its recurrent form. States are in the units of their own m (see `rescaled`)."""
    arrays = with_state(arrays)
    B = arrays["q"].shape[0]
    terms = magnitudes_of(arrays, options.get("eps", 0.0), None)
    copies, _ = copies_of(arrays, {}, terms, precision)
    h, last = reference.mlstm_recurrent(
        *(copies[name] for name in "qkvif"), initial_state=_state(copies), eps=options.get("eps", 0.0)
    )
    m, _ = split(last.m, B)
    m_of_all = np.concatenate([m] * (1 + COPIES)) if B else last.m
    parts = {"C": rescaled(last.C, last.m, m_of_all), "n": rescaled(last.n, last.m, m_of_all), "m": last.m}
    return budgeted({"h": h, **parts}, B, terms.outputs, terms.drift, precision)


@without_warnings
def mlstm_gradient(arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    """Gradient of `mlstm`, states included."""
    arrays = with_state(arrays)
    B = arrays["q"].shape[0]
    terms = magnitudes_of(arrays, options.get("eps", 0.0), cotangents)
    copies, dcopies = copies_of(arrays, cotangents, terms, precision)
    gradients = reference.mlstm_backward(
        *(copies[name] for name in "qkvif"),
        initial_state=_state(copies),
        dh=dcopies["h"],
        dstate=MLSTMState(*(dcopies[name] for name in "Cnm")),
        eps=options.get("eps", 0.0),
    )
    dstate = gradients.pop("initial_state")
    named = {**gradients, **dict(zip(("C0", "n0", "m0"), dstate, strict=True))}
    exact = {name: split(stacked, B)[0] for name, stacked in named.items()}
    expected = budgeted(named, B, *gradient_magnitudes(terms, exact), precision)
    ones = np.ones((*copies["v"].shape[:-1], 1))
    unit = MLSTMState(copies["n0"][..., None], copies["n0"], copies["m0"])
    nu_over_floor, _ = reference.mlstm_recurrent(
        copies["q"], copies["k"], ones, copies["i"], copies["f"], initial_state=unit
    )
    expected = counted(expected, copies, nu_over_floor[..., 0])
    expected = replace(expected, carried=precision.growth * terms.gradients["carried"])
    return either_side(expected, arrays, terms.g, precision)


def each_sequence(arrays: Values, cotangents: Values, lengths: tuple[int, ...]) -> list[tuple[Values, Values]]:
    """A packed mLSTM call as dense calls of one sequence each."""
    arrays = with_state({name: x for name, x in arrays.items() if name != "cu_seqlens"}, len(lengths))
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(int)
    calls = []
    for b in range(len(lengths)):

        def part(
            name: str, x: np.ndarray, b: int = b, per_sequence: tuple = ("C0", "n0", "m0", "C", "n", "m")
        ) -> np.ndarray:
            return x[b : b + 1] if name in per_sequence else x[None, bounds[b] : bounds[b + 1]]

        calls.append(
            (
                {name: part(name, x) for name, x in arrays.items()},
                {name: part(name, x) for name, x in cotangents.items()},
            )
        )
    return calls


_PER_SEQUENCE = ("C0", "n0", "m0", "C", "n", "m")


def joined(parts: list[Expected]) -> Expected:
    """Dense results of one sequence each as one packed result."""

    def join(arrays: list[Values], name: str) -> np.ndarray:
        if name in _PER_SEQUENCE:
            return np.concatenate([a[name] for a in arrays])
        return np.concatenate([a[name][0] for a in arrays])

    names = parts[0].values
    return Expected(
        {name: join([p.values for p in parts], name) for name in names},
        {name: join([p.slack for p in parts], name) for name in names},
        sum(p.kinks for p in parts),
        sum(p.elements for p in parts),
        total([p.spread for p in parts]),
    )
