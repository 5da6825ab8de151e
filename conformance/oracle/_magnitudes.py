"""Σ|terms| of an mLSTM: the recurrence and its transpose with the magnitude of every factor."""

from dataclasses import dataclass

import numpy as np

from conformance.oracle._common import Values


@dataclass(frozen=True)
class Magnitudes:
    """Σ|terms| of every output and gradient of an mLSTM: what is summed, before anything cancels.

    The response to perturbed inputs does not see an identity that holds for all inputs: with one step h does not depend
    on q, so dq is 0 however the inputs are perturbed, but it is computed as a difference of two terms, each rounded.
    """

    outputs: Values
    gradients: Values


def magnitudes_of(arrays: Values, eps: float, cotangents: Values | None, floor_is_one: bool = False) -> Magnitudes:
    """The recurrence and its transpose with the magnitude of every factor, at the exact stabilisers.

    An error of ν relative to itself is larger than that of its terms where they cancel: Σ|q̂||n| / Y of them, which
    multiplies everything that is divided by Y. On the floor it is the error of m, |m|·u relative, that does: with m
    above 64 it does not cancel between C and exp(−min(m, 64)), and never between C and eps.
    """
    q, k, v = (np.abs(arrays[name]) for name in "qkv")
    i, a = arrays["i"], -np.logaddexp(0.0, -arrays["f"])
    K = q.shape[-1]
    q_hat, exact_q = q / np.sqrt(K), arrays["q"] / np.sqrt(K)
    C, n, m = np.abs(arrays["C0"]), np.abs(arrays["n0"]), arrays["m0"]
    exact_n, exact_C = arrays["n0"], arrays["C0"]
    S = q.shape[1]
    h = np.zeros(v.shape)
    amplified, Y, size = np.zeros(i.shape), np.ones(i.shape), np.zeros(v.shape)
    above, decays, gains, states = np.zeros(i.shape, bool), np.zeros(i.shape), np.zeros(i.shape), [(C, n)]
    for t in range(S):
        m_new = np.maximum(a[:, t] + m, i[:, t])
        decays[:, t] = np.where(np.isneginf(m_new), 0.0, np.exp(a[:, t] + m - m_new))
        gains[:, t] = np.where(np.isneginf(m_new), 0.0, np.exp(i[:, t] - m_new))
        m = m_new
        decay, gain = decays[:, t, :, None], gains[:, t, :, None]
        C = decay[..., None] * C + (gain * k[:, t])[..., None] * v[:, t, :, None]
        n = decay * n + gain * k[:, t]
        exact_C = decay[..., None] * exact_C + (gain * arrays["k"][:, t])[..., None] * arrays["v"][:, t, :, None]
        exact_n = decay * exact_n + gain * arrays["k"][:, t]
        states.append((C, n))
        floor = np.ones_like(m) if floor_is_one else _floor(m)
        nu = np.abs(np.einsum("bnk,bnk->bn", exact_n, exact_q[:, t]))
        Y[:, t] = np.maximum(nu, floor) + eps
        above[:, t] = nu >= floor * (1 - 1e-2)
        exact_h = np.abs(np.einsum("bnkv,bnk->bnv", exact_C, exact_q[:, t])) / Y[:, t, :, None]
        of_nu = np.einsum("bnk,bnk->bn", n, q_hat[:, t]) / Y[:, t]
        of_m = np.where(np.isfinite(m), np.abs(m), 0.0)
        amplified[:, t] = np.maximum(1.0, np.where(above[:, t], of_nu, of_m) + of_m * eps / Y[:, t])
        size[:, t] = exact_h
        h[:, t] = np.einsum("bnkv,bnk->bnv", C, q_hat[:, t]) / Y[:, t, :, None] + amplified[:, t, :, None] * exact_h
    outputs = {"h": h, "C": C, "n": n, "m": np.zeros(m.shape)}
    if cotangents is None:
        return Magnitudes(outputs, {})

    dh, dC, dn = (np.abs(cotangents[name]) for name in "hCn")
    g = np.abs(cotangents["m"]) + _total(C, dC) + _total(n, dn)
    gradients = {name: np.zeros(arrays[name].shape) for name in "qkvif"}
    carried = g
    for t in reversed(range(S)):
        C, n = states[t + 1]
        delta = dh[:, t] / Y[:, t, :, None] * amplified[:, t, :, None]
        dnu = np.where(above[:, t], np.einsum("bnv,bnv->bn", delta, h[:, t]), 0.0)[..., None]
        dC = dC + q_hat[:, t, :, :, None] * delta[:, :, None, :]
        dn = dn + dnu * q_hat[:, t]
        gradients["q"][:, t] = (np.einsum("bnkv,bnv->bnk", C, delta) + dnu * n) / np.sqrt(K)
        gain = gains[:, t, :, None]
        gradients["k"][:, t] = gain * (np.einsum("bnkv,bnv->bnk", dC, v[:, t]) + dn)
        gradients["v"][:, t] = gain * np.einsum("bnkv,bnk->bnv", dC, k[:, t])
        gradients["i"][:, t] = np.einsum("bnk,bnk->bn", k[:, t], gradients["k"][:, t])
        decay = decays[:, t, :, None]
        dC, dn = decay[..., None] * dC, decay * dn
        C, n = states[t]
        gradients["f"][:, t] = _total(C, dC) + _total(n, dn)
        carried = np.maximum(carried, gradients["f"][:, t])
    gate = np.exp(-np.logaddexp(0.0, arrays["f"]))
    zero = np.zeros(g.shape)
    return Magnitudes(
        outputs,
        {
            **gradients,
            "f": gradients["f"] * gate,
            "C0": dC,
            "n0": dn,
            "m0": _total(np.abs(arrays["C0"]), dC) + _total(np.abs(arrays["n0"]), dn) if S else zero,
            "g": g,
            "gate": gate,
            "carried": carried,
        },
    )


def _total(part: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
    return (part * cotangent).sum(axis=tuple(range(2, part.ndim)))


def _floor(m: np.ndarray) -> np.ndarray:
    return np.exp(-np.minimum(m, 64.0))


def gradient_magnitudes(magnitudes: Magnitudes, exact: Values) -> Values:
    """The magnitudes of the gradients, with that of g where the exact gradient may hold it: at the write that attained
    the final m and at every decay since.
    """
    found = dict(magnitudes.gradients)
    g, gate = found.pop("g"), found.pop("gate")
    found.pop("carried")
    reached = np.abs(exact["f"]) > 0
    found["i"] = found["i"] + g[:, None] * (np.abs(exact["i"]) > 0)
    found["f"] = found["f"] + g[:, None] * gate * reached
    found["m0"] = found["m0"] + g
    return found
