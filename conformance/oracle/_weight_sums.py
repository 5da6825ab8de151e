"""The error of an mLSTM whose weights are computed from differences of cumulative sums.

The parallel and the chunkwise form often take the weight of step j at step t from ``D_tj = B_t − B_j + i_j`` with
``B = cumsum(log σ(f))``. Where gates were closed, B is large, and its roundoff is that of the difference, however small
that is: 64 steps of which a fifth forget by exp(−5) and the others keep everything have B = −64, and every weight is
off by 64 roundoffs. `budget` allows each gate its own roundoff alone, which gatespec's own packages keep.

The weights of step t are thus off by a share ``r_t = κ·u·Σ_{s≤t} |log σ(f_s)|``, which reaches all results through each
sum of weighted terms. The gradients are off by the same share of every term, and by what the error of n·q̂ does to the
cotangents ``δ_t = dh_t / Y_t`` and ``−⟨δ_t, h_t⟩`` of what step t reads.

The write of step t itself has the weight exp(i_t − m_t), without a difference. Gates beyond `CLOSED` are as good as
hard resets: sums that hold one have lost the digits of all others, which no correct implementation computes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.oracle import _any_design, _fwbw
from conformance.oracle._common import Values, without_warnings
from conformance.oracle._mlstm import with_state
from conformance.tolerance.budget import NEAR_FLOOR, Expected, Precision
from conformance.tolerance.designs import AnyDesign

CLOSED = 20.0
"""Size of a log gate beyond which it is no part of a sum."""


@dataclass(frozen=True, kw_only=True)
class _Steps:
    """Results of each read of a dense call, and how far off they may be; the step axis comes first.

    Attributes:
        q, k, v: magnitudes; q is divided by √K, and v has a column of ones, for n.
        share: r_t, the relative error of the weights of earlier steps, ``(S, B, N)``.
        decay, gain: the weights of the memory before each step, and of its write.
        sizes: Σ|terms| of C and n after each step, those of the initial memory first.
        earlier: the same without the step's own write.
        Y: the normaliser.
        h: the magnitude of the output.
        of_h: the absolute error of h.
        of_Y: the relative error of Y.
        above: whether |n·q̂| may be above its floor.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    share: np.ndarray
    decay: np.ndarray
    gain: np.ndarray
    sizes: np.ndarray
    earlier: np.ndarray
    Y: np.ndarray
    h: np.ndarray
    of_h: np.ndarray
    of_Y: np.ndarray
    above: np.ndarray


def _steps(arrays: Values, precision: Precision, eps: float, floor_is_one: bool) -> _Steps:
    q, k, v, i, f = (np.moveaxis(arrays[name], 1, 0) for name in "qkvif")
    q, a = q / np.sqrt(q.shape[-1]), -np.logaddexp(0.0, -f)
    v = np.concatenate([v, np.ones((*v.shape[:-1], 1))], axis=-1)
    share = precision.drift * np.cumsum(np.where(np.abs(a) <= CLOSED, np.abs(a), 0.0), axis=0)
    m, memory = arrays["m0"], np.concatenate([arrays["C0"], arrays["n0"][..., None]], axis=-1)
    sizes, earlier, decay, gain, reads, floors = [np.abs(memory)], [], [], [], [], []
    for t in range(len(i)):
        carried, m = a[t] + m, np.maximum(a[t] + m, i[t])
        decay.append(_weight(carried, m))
        gain.append(_weight(i[t], m))
        terms = (gain[t][..., None] * k[t])[..., None] * v[t][..., None, :]
        memory = decay[t][..., None, None] * memory + terms
        earlier.append(decay[t][..., None, None] * sizes[t])
        sizes.append(earlier[t] + np.abs(terms))
        reads.append(np.einsum("bnkv,bnk->bnv", memory, q[t]))
        floors.append(np.ones(m.shape) if floor_is_one else np.exp(-np.minimum(m, 64.0)))
    read, floor = np.stack(reads), np.stack(floors)
    nu = np.abs(read[..., -1])
    Y, above = np.maximum(nu, floor) + eps, nu >= floor * (1 - NEAR_FLOOR)
    h = np.abs(read[..., :-1]) / Y[..., None]
    off = share[..., None] * np.einsum("tbnkv,tbnk->tbnv", np.stack(earlier), np.abs(q)) / Y[..., None]
    of_Y = np.where(above, off[..., -1], 0.0)
    return _Steps(
        q=np.abs(q),
        k=np.abs(k),
        v=np.abs(v),
        share=share,
        decay=np.stack(decay),
        gain=np.stack(gain),
        sizes=np.stack(sizes),
        earlier=np.stack(earlier),
        Y=Y,
        h=h,
        of_h=off[..., :-1] + of_Y[..., None] * h,
        of_Y=of_Y,
        above=above,
    )


@without_warnings
def widened_value(
    expected: Expected, arrays: Values, precision: Precision, *, eps: float = 0.0, floor_is_one: bool = False
) -> Expected:
    """The outputs of a dense call of `mlstm`, with their tolerance widened if ``precision`` is `AnyDesign`."""
    if not isinstance(precision, AnyDesign) or arrays["i"].shape[1] < 2:
        return expected
    steps = _steps(with_state(arrays), precision, eps, floor_is_one)
    last = steps.share[-1][..., None]
    C, n = steps.earlier[-1][..., :-1], steps.earlier[-1][..., -1]
    return _with(expected, {"h": np.moveaxis(steps.of_h, 0, 1), "C": last[..., None] * C, "n": last * n})


@without_warnings
def widened_gradient(
    expected: Expected,
    arrays: Values,
    cotangents: Values,
    precision: Precision,
    *,
    eps: float = 0.0,
    floor_is_one: bool = False,
) -> Expected:
    """The gradients of a dense call of `mlstm`, with their tolerance widened if ``precision`` is `AnyDesign`."""
    if not isinstance(precision, AnyDesign) or arrays["i"].shape[1] < 2:
        return expected
    steps = _steps(with_state(arrays), precision, eps, floor_is_one)
    of_h = np.abs(np.moveaxis(cotangents["h"], 1, 0)) / steps.Y[..., None]
    of_nu = np.where(steps.above, (of_h * steps.h).sum(axis=-1), 0.0)
    delta = np.concatenate([of_h, of_nu[..., None]], axis=-1)
    of_off = np.where(steps.above, (of_h * steps.of_h).sum(axis=-1), 0.0)
    of_delta = delta * steps.of_Y[..., None] + np.concatenate([0 * of_h, of_off[..., None]], axis=-1)
    final = np.abs(np.concatenate([cotangents["C"], cotangents["n"][..., None]], axis=-1))
    # The error of dC with dn: of the weights between two steps, and of the cotangents of what was read.
    weighted, read = steps.share[-1][..., None, None] * final, np.zeros(final.shape)
    at_step, before = np.zeros(steps.earlier.shape), np.zeros(steps.earlier.shape)
    S = len(delta)
    for t in reversed(range(S)):
        read = read + steps.q[t][..., None] * of_delta[t][..., None, :]
        at_step[t] = read + (weighted if t < S - 1 else 0.0)
        weighted = weighted + (steps.share[t][..., None] * steps.q[t])[..., None] * delta[t][..., None, :]
        weighted, read = (steps.decay[t][..., None, None] * x for x in (weighted, read))
        before[t] = weighted + read
    gain = steps.gain[..., None]
    of_q = np.einsum("tbnkv,tbnv->tbnk", steps.earlier, steps.share[..., None] * delta)
    of_q = of_q + np.einsum("tbnkv,tbnv->tbnk", steps.sizes[1:], of_delta)
    of_k = gain * np.einsum("tbnkv,tbnv->tbnk", at_step, steps.v)
    of_steps = {
        "q": of_q / np.sqrt(of_q.shape[-1]),
        "k": of_k,
        "v": gain * np.einsum("tbnkv,tbnk->tbnv", at_step[..., :-1], steps.k),
        "i": (steps.k * of_k).sum(axis=-1),
        "f": np.einsum("tbnkv,tbnkv->tbn", steps.sizes[:-1], before),
    }
    more = {name: np.moveaxis(x, 0, 1) for name, x in of_steps.items()}
    # The sum that reaches whatever attained the final m.
    of_g = steps.share[-1] * np.einsum("bnkv,bnkv->bn", steps.earlier[-1], final)
    reached = {name: np.abs(expected.values[name]).reshape(more[name].shape) > 0 for name in "if"}
    gate = np.exp(-np.logaddexp(0.0, arrays["f"]))
    more["i"] = more["i"] + of_g[:, None] * reached["i"]
    more["f"] = (more["f"] + of_g[:, None] * reached["f"]) * gate
    initial = before[0]
    more |= {"C0": initial[..., :-1], "n0": initial[..., -1]}
    more["m0"] = np.einsum("bnkv,bnkv->bn", steps.sizes[0], initial) + of_g
    return _with(expected, more)


def _with(expected: Expected, more: Values) -> Expected:
    """The tolerances with those of ``more`` added."""
    slack = {
        name: own + np.where(np.isfinite(more[name]), more[name], 0.0).reshape(own.shape) if name in more else own
        for name, own in expected.slack.items()
    }
    return replace(expected, slack=slack)


def _weight(x: np.ndarray, m: np.ndarray) -> np.ndarray:
    """``exp(x − m)``, and 0 where x is −∞."""
    return np.where(np.isneginf(x), 0.0, np.exp(x - m))


def fwbw(arrays: Values, config: Mapping[str, Any], precision: Precision) -> Expected:
    """Value of the fwbw functions, widened in the same way."""
    headed = {name: _fwbw._add_head(name, x) for name, x in arrays.items()}
    expected = _fwbw.fwbw(arrays, config, precision)
    return widened_value(expected, headed, precision, floor_is_one=not config.get("stabilize_correctly"))


def fwbw_gradient(arrays: Values, config: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    """Gradients of the fwbw functions, widened in the same way."""
    full = _fwbw._zero_cotangents(arrays, cotangents)
    headed, dheaded = ({name: _fwbw._add_head(name, x) for name, x in of.items()} for of in (arrays, full))
    expected = _any_design.fwbw_gradient(arrays, config, cotangents, precision)
    return widened_gradient(expected, headed, dheaded, precision, floor_is_one=not config.get("stabilize_correctly"))
