"""The backward pass of the mLSTM, for each form of `variants_mlstm`.

With δ = dh/Y and dν = −⟨δ, h⟩ sign ν above the floor. What the final state's cotangents weigh, ``g``, reaches what
attained the final m: the write of step j and every forget gate since, or m₀.
"""

import numpy as np

from tests.suite.calibration.arithmetic import Arithmetic, log_sigmoid, sigmoid
from tests.suite.calibration.variants_mlstm import PLAIN, Chunk, Lanes, Results, Style


def _reads(
    x: Lanes, nu: np.ndarray, Y: np.ndarray, h: np.ndarray, m: np.ndarray, dh: np.ndarray, A: Arithmetic, style: Style
) -> tuple[np.ndarray, np.ndarray]:
    """δ and dν of some steps. A kernel keeps h as it was stored, in the dtype of the values."""
    delta = A.operand(style.over(dh, Y[..., None]))
    above = np.abs(nu) > x.floor(m)
    return delta, np.where(above, -A.dot(delta, A.operand(h)) * np.sign(nu), A.type(0))


def _attained(x: Lanes) -> np.ndarray:
    """The step (from 1) whose write attains the final m; 0 for m₀."""
    a, m = log_sigmoid(x.f), x.m
    at = np.zeros(m.shape, int)
    for t in range(x.steps):
        carried = a[:, t] + m
        at = np.where(x.i[:, t] > carried, t + 1, at)
        m = np.maximum(carried, x.i[:, t])
    return at


def _with_g(x: Lanes, di: np.ndarray, da: np.ndarray, dm: np.ndarray, g: np.ndarray) -> tuple:
    at, steps = _attained(x)[:, None], np.arange(1, x.steps + 1)
    of_g, none = g[:, None], g.dtype.type(0)
    di = di + np.where(steps == at, of_g, none)
    da = da + np.where(steps > at, of_g, none)
    return di, da, dm + np.where(at[:, 0] == 0, g, none)


def _held(A: Arithmetic, C: np.ndarray, n: np.ndarray, dC: np.ndarray, dn: np.ndarray) -> np.ndarray:
    """``⟨C, dC⟩ + ⟨n, dn⟩``."""
    return A.dot(C.reshape(len(C), -1), dC.reshape(len(C), -1)) + A.dot(n, dn)


def recurrent_backward(
    x: Lanes, states: list[tuple], d: Results, arithmetic: Arithmetic, style: Style = PLAIN
) -> Results:
    """One step after the other, from the last; every memory was kept."""
    A, S = arithmetic, x.steps
    of_q, of_k, of_scores = style.scales(x.q.shape[-1], A.type)
    q_hat = x.q * of_q * of_k * of_scores
    dq, dk, dv, di, da = (np.zeros_like(y) for y in (x.q, x.k, x.v, x.i, x.f))
    dC, dn = d["C"], d["n"]
    g = d["m"] - _held(A, states[S][0], states[S][1], dC, dn)
    for t in reversed(range(S)):
        C, n, m, decay, gain = states[t + 1]
        nu = A.dot(n, q_hat[:, t])
        Y = np.maximum(np.abs(nu), x.floor(m)) + A.type(x.eps)
        h = style.over(A.dot(C, q_hat[:, t, :, None], 1), Y[:, None])
        delta, dnu = _reads(x, nu, Y, h, m, d["h"][:, t], A, style)
        dC = dC + q_hat[:, t, :, None] * delta[:, None, :]
        dn = dn + dnu[:, None] * q_hat[:, t]
        dq[:, t] = (A.dot(A.operand(C), delta[:, None, :]) + dnu[:, None] * n) * (of_q * of_k * of_scores)
        gain = gain[:, None]
        dk[:, t] = gain * (A.dot(A.operand(dC), x.v[:, t, None, :]) + dn)
        dv[:, t] = gain * A.dot(A.operand(dC), x.k[:, t, :, None], 1)
        di[:, t] = A.dot(x.k[:, t], dk[:, t])
        dC, dn = decay[:, None, None] * dC, decay[:, None] * dn
        da[:, t] = _held(A, states[t][0], states[t][1], dC, dn)
    di, da, dm = _with_g(x, di, da, _held(A, x.C, x.n, dC, dn), g)
    return {"q": dq, "k": dk, "v": dv, "i": di, "f": da * sigmoid(-x.f), "C0": dC, "n0": dn, "m0": dm}


def segments_backward(
    x: Lanes, states: list[tuple], d: Results, arithmetic: Arithmetic, style: Style = PLAIN
) -> Results:
    """The cotangents of all memories by a tree of segments, then every step at once."""
    A, S = arithmetic, x.steps
    scale = A.type(1) / np.sqrt(A.type(x.q.shape[-1]))
    C, n, m = (np.stack([state[part] for state in states], axis=1) for part in range(3))
    g = d["m"] - _held(A, C[:, S], n[:, S], d["C"], d["n"])
    if not S:
        return {**{name: getattr(x, name) for name in "qkvif"}, "C0": d["C"], "n0": d["n"], "m0": d["m"]}
    q_hat, a = x.q * scale, log_sigmoid(x.f)
    nu = A.dot(n[:, 1:], q_hat)
    Y = np.maximum(np.abs(nu), x.floor(m[:, 1:])) + A.type(x.eps)
    h = style.over(A.dot(C[:, 1:], q_hat[..., None], 2), Y[..., None])
    delta, dnu = _reads(x, nu, Y, h, m[:, 1:], d["h"], A, style)
    decay, gain = style.weight(a + m[:, :-1], m[:, 1:]), style.weight(x.i, m[:, 1:])
    dC = np.concatenate([q_hat[..., None] * delta[:, :, None, :], d["C"][:, None]], axis=1)
    dn = np.concatenate([dnu[..., None] * q_hat, d["n"][:, None]], axis=1)
    # Element t holds what reaches the memory after step t+1; what comes from later decays by the gate between.
    kept = np.concatenate([decay[:, 1:], np.ones_like(decay[:, :1])], axis=1)
    shift = 1
    while shift <= S:
        late, early, tail = np.s_[:, shift:], np.s_[:, :-shift], np.s_[:, S + 1 - shift :]
        w = kept[:, : S + 1 - shift]
        dC = np.concatenate([dC[early] + w[..., None, None] * dC[late], dC[tail]], axis=1)
        dn = np.concatenate([dn[early] + w[..., None] * dn[late], dn[tail]], axis=1)
        longer = max(0, S + 1 - 2 * shift)
        kept = kept[:, :longer] * kept[:, shift : shift + longer]
        shift *= 2
    dC, dn = dC[:, :S], dn[:, :S]
    dq = (A.dot(A.operand(C[:, 1:]), delta[:, :, None, :]) + dnu[..., None] * n[:, 1:]) * scale
    dk = gain[..., None] * (A.dot(A.operand(dC), x.v[:, :, None, :]) + dn)
    dv = gain[..., None] * A.dot(A.operand(dC), x.k[..., None], 2)
    before_C, before_n = decay[..., None, None] * dC, decay[..., None] * dn
    flat = (*a.shape, -1)
    da = A.dot(C[:, :-1].reshape(flat), before_C.reshape(flat)) + A.dot(n[:, :-1], before_n)
    dm = _held(A, x.C, x.n, before_C[:, 0], before_n[:, 0])
    di, da, dm = _with_g(x, A.dot(x.k, dk), da, dm, g)
    d0 = {"C0": before_C[:, 0], "n0": before_n[:, 0], "m0": dm}
    return {"q": dq, "k": dk, "v": dv, "i": di, "f": da * sigmoid(-x.f), **d0}


def _corner(W: np.ndarray, A: Arithmetic) -> np.ndarray:
    """``Σ_{t≥s} Σ_{j<s} W[t,j]`` of products that are summed as they are, so that nothing cancels which W holds not."""
    L = W.shape[1]
    before = np.concatenate([np.zeros_like(W[..., :1]), np.cumsum(W, axis=2, dtype=W.dtype)[..., :-1]], axis=2)
    return A.add(np.where(np.tri(L, L, 0, dtype=bool), before, W.dtype.type(0)), 1)


def _chunk_backward(
    chunk: Chunk, dh: np.ndarray, dC: np.ndarray, dn: np.ndarray, A: Arithmetic, style: Style
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    x = chunk.x
    of_q, of_k, of_scores = style.scales(x.q.shape[-1], A.type)
    q_hat = x.q * of_q * of_k * of_scores
    delta, dnu = _reads(x, chunk.nu, chunk.Y, chunk.h, chunk.m, dh, A, style)
    E, e = chunk.E, chunk.e
    dP = delta @ np.swapaxes(x.v, 1, 2) + dnu[..., None]
    dS = A.operand(E * dP)
    read = delta @ np.swapaxes(A.operand(x.C), 1, 2) + dnu[..., None] * x.n[:, None, :]
    dq = (dS @ x.k + e[..., None] * read) * (of_q * of_k * of_scores)
    last = E[:, -1, :, None]
    back = last * (x.v @ np.swapaxes(A.operand(dC), 1, 2) + dn[:, None, :])
    dk = np.swapaxes(dS, 1, 2) @ q_hat + back
    dv = np.swapaxes(A.operand(chunk.P), 1, 2) @ delta + last * (x.k @ A.operand(dC))
    di = A.dot(x.k, dk)
    reads, writes = e * A.dot(q_hat, read), A.dot(x.k, back)
    through = e[:, -1] * _held(A, x.C, x.n, dC, dn)
    later = np.cumsum(reads[:, ::-1], axis=1, dtype=reads.dtype)[:, ::-1]
    da = _corner(chunk.P * dP, A) + later + _exclusive(writes) + through[:, None]
    weighed = e[..., None] * q_hat
    dC = np.swapaxes(weighed, 1, 2) @ delta + e[:, -1, None, None] * dC
    dn = A.add(dnu[..., None] * weighed, 1) + e[:, -1, None] * dn
    return [dq, dk, dv, di, da], dC, dn


def _exclusive(x: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros_like(x[:, :1]), np.cumsum(x, axis=1, dtype=x.dtype)[:, :-1]], axis=1)


def chunkwise_backward(
    x: Lanes, outputs: Results, chunks: list[Chunk], d: Results, arithmetic: Arithmetic, style: Style = PLAIN
) -> Results:
    """Chunk by chunk from the last; inside each, gate gradients come from W = P⊙dP."""
    A = arithmetic
    dC, dn = d["C"], d["n"]
    g = d["m"] - _held(A, outputs["C"], outputs["n"], dC, dn)
    parts, end = [], x.steps
    for chunk in reversed(chunks):
        start = end - chunk.x.steps
        part, dC, dn = _chunk_backward(chunk, d["h"][:, start:end], dC, dn, A, style)
        parts.append(part)
        end = start
    empty = [y[:, :0] for y in (x.q, x.k, x.v, x.i, x.f)]
    dq, dk, dv, di, da = (np.concatenate(pieces, axis=1) for pieces in zip(empty, *parts[::-1], strict=True))
    di, da, dm = _with_g(x, di, da, _held(A, x.C, x.n, dC, dn), g)
    return {"q": dq, "k": dk, "v": dv, "i": di, "f": da * sigmoid(-x.f), "C0": dC, "n0": dn, "m0": dm}


def closed_form(x: Lanes, outputs: Results, gradients: Results, d: Results, arithmetic: Arithmetic) -> Results:
    """The forget gates' gradients from those of q and k: ``σ(−f_s) (Σ_{t≥s} (q_t·dq_t − k_t·dk_t) + what ends)``.

    16-bit operands stand for a kernel that reads dq and dk as they were stored.
    """
    A = arithmetic
    held = _held(A, outputs["C"], outputs["n"], d["C"], d["n"])
    flow = A.dot(x.q, A.operand(gradients["q"])) - A.dot(x.k, A.operand(gradients["k"]))
    later = np.cumsum(flow[:, ::-1], axis=1, dtype=flow.dtype)[:, ::-1]
    none = np.zeros_like(flow)
    _, da, _ = _with_g(x, none, later + held[:, None], none[:, :1].sum(axis=1), d["m"] - held)
    return {**gradients, "f": da * sigmoid(-x.f)}
