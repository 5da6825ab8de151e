"""The mLSTM as kernels compute it, one memory a lane: step by step, by a tree of segments, and in chunks.

A lane is one head of one sequence: q, k ``(G, S, K)``, v ``(G, S, V)``, gates ``(G, S)``, state ``(G, K, V)``,
``(G, K)`` and ``(G,)``. Backward passes are in `variants_mlstm_backward`.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.suite.calibration.arithmetic import Arithmetic, log_sigmoid, two_sum, weight

LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class Lanes:
    """Arguments, all in the accumulation dtype, and what the call says of the normaliser."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    i: np.ndarray
    f: np.ndarray
    C: np.ndarray
    n: np.ndarray
    m: np.ndarray
    eps: float = 0.0
    floor_is_one: bool = False

    def part(self, steps: slice, state: tuple | None = None) -> "Lanes":
        C, n, m = (self.C, self.n, self.m) if state is None else state
        tokens = {name: getattr(self, name)[:, steps] for name in "qkvif"}
        return replace(self, **tokens, C=C, n=n, m=m)

    @property
    def steps(self) -> int:
        return self.q.shape[1]

    def floor(self, m: np.ndarray) -> np.ndarray:
        return np.ones_like(m) if self.floor_is_one else np.exp(-np.minimum(m, 64))


@dataclass(frozen=True)
class Style:
    """Choices that change the order of operations and no meaning.

    Attributes:
        base_two: weights as powers of two of logarithms that were multiplied by log₂ e, as GPUs take them.
        reciprocal: one division for each normaliser, its result multiplied.
        scaled: what bears 1/√K: ``q``, ``k``, or the ``scores``.
        compensated: the memory and the stabiliser carry their roundings along.
    """

    base_two: bool = False
    reciprocal: bool = False
    scaled: str = "q"
    compensated: bool = False

    def weight(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if not self.base_two:
            return weight(x, y)
        none = np.isneginf(x)
        log2 = x.dtype.type(LOG2_E)
        return np.where(none, x.dtype.type(0), np.exp2(np.where(none, x.dtype.type(0), (x - y) * log2)))

    def scales(self, K: int, kind: Any) -> tuple[Any, Any, Any]:
        """The factors of q, of k, and of what is made of them."""
        scale, one = kind(1) / np.sqrt(kind(K)), kind(1)
        return tuple(scale if self.scaled == name else one for name in ("q", "k", "scores"))

    def over(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x * (y.dtype.type(1) / y) if self.reciprocal else x / y


PLAIN = Style()
Results = dict[str, np.ndarray]


def recurrent(x: Lanes, arithmetic: Arithmetic, style: Style = PLAIN) -> tuple[Results, list[tuple]]:
    """One step after the other; also every memory with its decay and gain, for the backward pass.

    Whatever bears 1/√K, memories do not.
    """
    A, S = arithmetic, x.steps
    of_q, of_k, of_scores = style.scales(x.q.shape[-1], A.type)
    a = log_sigmoid(x.f)
    C, n, m = x.C, x.n, x.m
    lost_C, lost_n, lost_m = np.zeros_like(C), np.zeros_like(n), np.zeros_like(m)
    h = np.zeros_like(x.v)
    states = [(C, n, m, np.ones_like(m), np.ones_like(m))]
    q_hat = x.q * of_q * of_k
    for t in range(S):
        carried = a[:, t] + m
        if style.compensated:
            carried, error = two_sum(a[:, t], m)
            lost_m = lost_m + error
        m_new = np.maximum(carried, x.i[:, t])
        kept = carried >= x.i[:, t]
        decay, gain = style.weight(carried, m_new), style.weight(x.i[:, t], m_new)
        if style.compensated:
            # What m lost is in units of the carried weight: it belongs to the decay where the write attains m.
            decay = decay * np.where(kept, A.type(1), np.exp(lost_m))
            gain = gain * np.where(kept, np.exp(-lost_m), A.type(1))
            lost_m = np.where(kept, lost_m, A.type(0))
        written = A.operand(gain[:, None] * x.k[:, t])
        wide = written[..., None] * x.v[:, t, None, :]
        old_C, old_n = decay[:, None, None] * C, decay[:, None] * n
        if style.compensated:
            lost_C, lost_n = decay[:, None, None] * lost_C, decay[:, None] * lost_n
            C, error_C = two_sum(old_C, wide)
            n, error_n = two_sum(old_n, written)
            lost_C, lost_n = lost_C + error_C, lost_n + error_n
        else:
            C, n = old_C + wide, old_n + written
        m = m_new
        full_C, full_n = (C + lost_C, n + lost_n) if style.compensated else (C, n)
        states.append((full_C, full_n, m + lost_m, decay, gain))
        numerator = A.dot(A.operand(full_C), q_hat[:, t, :, None], 1) * of_scores
        nu = A.dot(full_n, q_hat[:, t]) * of_scores
        Y = np.maximum(np.abs(nu), x.floor(m)) + A.type(x.eps)
        h[:, t] = style.over(numerator, Y[:, None])
    return {"h": h, **dict(zip("Cnm", states[-1][:3], strict=True))}, states


def segments(x: Lanes, arithmetic: Arithmetic, style: Style = PLAIN) -> tuple[Results, list[tuple]]:
    """Stabilisers by a tree of (max, +) segments, then memories by a tree of decays; each step read from its own.

    Both ways use the decays that follow from the stabilisers. A memory whose weights come from other sums than its
    gradient's is not in their units: at m = 1e4 it is off by 1e4 roundoffs where nothing depends on m.
    """
    A, S = arithmetic, x.steps
    of_q, of_k, of_scores = style.scales(x.q.shape[-1], A.type)
    a = log_sigmoid(x.f)
    # Element 0 is the initial state. A segment is (Σ a, the largest log weight that it holds).
    held, m = np.concatenate([np.zeros_like(x.m)[:, None], a], axis=1), np.concatenate([x.m[:, None], x.i], axis=1)
    for shift in _shifts(S):
        late, early, head = np.s_[:, shift:], np.s_[:, :-shift], np.s_[:, :shift]
        m = np.concatenate([m[head], np.maximum(held[late] + m[early], m[late])], axis=1)
        held = np.concatenate([held[head], held[late] + held[early]], axis=1)
    decay, gain = style.weight(a + m[:, :-1], m[:, 1:]), style.weight(x.i, m[:, 1:])
    w = np.concatenate([np.ones_like(x.m)[:, None], decay], axis=1)
    n = np.concatenate([x.n[:, None], gain[..., None] * x.k], axis=1)
    C = np.concatenate([x.C[:, None], (gain[..., None] * x.k)[..., None] * x.v[..., None, :]], axis=1)
    for shift in _shifts(S):
        late, early, head = np.s_[:, shift:], np.s_[:, :-shift], np.s_[:, :shift]
        C = np.concatenate([C[head], w[late][..., None, None] * C[early] + C[late]], axis=1)
        n = np.concatenate([n[head], w[late][..., None] * n[early] + n[late]], axis=1)
        w = np.concatenate([w[head], w[late] * w[early]], axis=1)
    q_hat = x.q * of_q * of_k
    numerator = A.dot(A.operand(C[:, 1:]), q_hat[..., None], 2) * of_scores
    nu = A.dot(n[:, 1:], q_hat) * of_scores
    Y = np.maximum(np.abs(nu), x.floor(m[:, 1:])) + A.type(x.eps)
    states = [(C[:, t], n[:, t], m[:, t]) for t in range(S + 1)]
    return {"h": style.over(numerator, Y[..., None]), **dict(zip("Cnm", states[-1], strict=True))}, states


def _shifts(S: int) -> list[int]:
    """1, 2, 4, … up to the length of a tree over S + 1 elements."""
    return [1 << level for level in range(S.bit_length())]


@dataclass(frozen=True)
class Chunk:
    """The residuals of one chunk: scores, weights, normalisers, and the incoming state."""

    x: Lanes
    E: np.ndarray
    e: np.ndarray
    P: np.ndarray
    nu: np.ndarray
    Y: np.ndarray
    h: np.ndarray
    m: np.ndarray


def decay_matrix(a: np.ndarray) -> np.ndarray:
    """``Σ_{j<s≤t} a_s`` by running sums down the columns, −∞ above the diagonal."""
    L = a.shape[1]
    F = np.cumsum(np.where(np.tri(L, L, -1, dtype=bool), a[:, :, None], a.dtype.type(0)), axis=1, dtype=a.dtype)
    return np.where(np.tri(L, L, 0, dtype=bool), F, a.dtype.type(-np.inf))


def one_chunk(x: Lanes, arithmetic: Arithmetic, style: Style = PLAIN) -> tuple[Chunk, tuple]:
    """All steps of a chunk at once, as attention with a decay, and the state after it."""
    A = arithmetic
    of_q, of_k, of_scores = style.scales(x.q.shape[-1], A.type)
    a = log_sigmoid(x.f)
    D = decay_matrix(a) + x.i[:, None, :]
    carried = np.cumsum(a, axis=1, dtype=a.dtype) + x.m[:, None]
    m = np.maximum(carried, D.max(axis=2))
    E, e = style.weight(D, m[..., None]), style.weight(carried, m)
    q_hat = x.q * of_q
    P = (q_hat @ np.swapaxes(x.k * of_k, 1, 2)) * of_scores * E
    read = (q_hat * of_k) @ A.operand(x.C) * of_scores
    numerator = A.operand(P) @ x.v + e[..., None] * read
    nu = A.add(P, 2) + e * (A.dot(q_hat * of_k, x.n[:, None, :]) * of_scores)
    Y = np.maximum(np.abs(nu), x.floor(m)) + A.type(x.eps)
    h = style.over(numerator, Y[..., None])
    written = A.operand(E[:, -1, :, None] * x.k)
    C = e[:, -1, None, None] * x.C + np.swapaxes(written, 1, 2) @ x.v
    n = e[:, -1, None] * x.n + A.add(E[:, -1, :, None] * x.k, 1)
    return Chunk(x, E, e, P, nu, Y, h, m), (C, n, m[:, -1])


def chunkwise(x: Lanes, arithmetic: Arithmetic, L: int | None, style: Style = PLAIN) -> tuple[Results, list[Chunk]]:
    """Chunks of L steps (None: all steps in one), the state carried between them."""
    state, chunks, h = (x.C, x.n, x.m), [], [x.v[:, :0]]
    for start in range(0, x.steps, L or max(x.steps, 1)):
        chunk, state = one_chunk(x.part(slice(start, start + (L or x.steps)), state), arithmetic, style)
        chunks.append(chunk)
        h.append(chunk.h)
    return {"h": np.concatenate(h, axis=1), **dict(zip("Cnm", state, strict=True))}, chunks
