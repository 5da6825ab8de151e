"""The chunkwise mLSTM, forward and backward, on tensors that lie in chunks (`torch_impl._chunks`).

The parallel form inside chunks of L steps, all chunks at once; the recurrent form between them, the only sequential
part. Source: Beck et al., arXiv:2503.14376, with the normaliser differentiated. In a chunk that starts from the memory
(C, n, m), with ``a = log σ(f)`` and ``q̂ = q/√K``::

    b_t = Σ_{s≤t} a_s        F[t,j] = Σ_{j<s≤t} a_s        D = F + i_j
    m_t = max(b_t + m, max_{j≤t} D[t,j])        E = exp(D − m_t)        e_t = exp(b_t + m − m_t)
    G = (q̂ kᵀ) ⊙ E        ν_t = Σ_j G[t,j] + e_t q̂_t·n        Y_t = max(|ν_t|, floor_t) + eps
    h_t = (Σ_j G[t,j] v_j + e_t Cᵀq̂_t) / Y_t

and what the chunk hands on is ``C' = e_L C + Σ_j E[L,j] k_j v_jᵀ``, ``n'`` likewise, ``m_L``. The stabiliser m is a
constant on the way back: h does not depend on it, but for the exceptions in which it counts as one. With δ = dh/Y::

    dν = −(δ·num)/Y · [|ν| > floor] sign(ν)        dG = δ vᵀ + dν        W = G ⊙ dG        dS = E ⊙ dG
    dq̂ = dS k + ρ        ρ_t = e_t (C δ_t + n dν_t)        r_t = q̂_t·ρ_t
    dk = dSᵀq̂ + ω        ω_j = E[L,j] (dC' v_j + dn')        w_j = k_j·ω_j        dv = Gᵀδ + E[L,j] dC'ᵀk_j
    da_t = Σ_{s≥t, j<t} W[s,j] + Σ_{s≥t} r_s + Σ_{j<t} w_j + e_L (⟨C, dC'⟩ + ⟨n, dn'⟩)
    di_j = Σ_s W[s,j] + w_j        dC = e_L dC' + Σ_t e_t q̂_t δ_tᵀ        dn = e_L dn' + Σ_t e_t dν_t q̂_t

A decay's gradient holds only the paths that cross its step, so that behind a hard reset it is exactly 0. The cotangent
of the final m, and what C and n owe to it, reach the step that attained it: ``g = dm_T − ⟨C_T, dC_T⟩ − ⟨n_T, dn_T⟩``.

Everything is in the accumulation dtype. Rows: G = chunks·N, in the order of `torch_impl._chunks`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from torch_impl._chunks import Ranks

LARGEST_M = 64.0
"""The stabiliser at which the normaliser's floor exp(−m) stops falling: exp(−64) is still a float32."""


class State(NamedTuple):
    """C ``(·, N, K, V)``, n ``(·, N, K)``, m ``(·, N)``, in lane order."""

    C: Tensor
    n: Tensor
    m: Tensor


class Gates(NamedTuple):
    """Log decay of every chunk: a and b ``(G, L)``, F ``(G, L, L)``."""

    a: Tensor
    b: Tensor
    F: Tensor


class Tokens(NamedTuple):
    """q̂, k ``(G, L, K)``, v ``(G, L, V)``, i, f ``(G, L)``."""

    q_hat: Tensor
    k: Tensor
    v: Tensor
    i: Tensor
    f: Tensor


class Kept(NamedTuple):
    """What a forward pass leaves for the backward pass, None where that computes it anew.

    Attributes:
        G: decayed scores, ``(G, L, L)``.
        gates: log decay.
        M: stabiliser of every step, ``(G, L)``.
        c: memory at the start of every chunk.
    """

    G: Tensor | None = None
    gates: Gates | None = None
    M: Tensor | None = None
    c: State | None = None


NOTHING = Kept()


@dataclass(frozen=True)
class Normaliser:
    """Whether its floor is exp(−min(m, 64)) or 1, and what is added to it."""

    stabilized: bool
    eps: float

    def floor(self, m: Tensor) -> Tensor:
        return m.clamp(max=LARGEST_M).neg_().exp_() if self.stabilized else torch.ones_like(m)


def log_decay(f: Tensor) -> Gates:
    a = logsigmoid(f)
    L = f.shape[-1]
    # As no a is above 0, its larger one with −∞ below the diagonal and 0 elsewhere is the masked a_s, −∞ included.
    below = a.new_full((L, L), -torch.inf).tril_(-1)
    F = torch.maximum(a[:, :, None], below).cumsum_(-2)
    return Gates(a, a.cumsum(-1), F.add_(a.new_full((L, L), -torch.inf).triu_(1)))


def _stabilisers(decays: Tensor, writes: Tensor, initial: Tensor, ranks: Ranks) -> Tensor:
    """``m' = max(b_L + m, max_j D[L,j])`` over chunks: ``[initial | end of every chunk]``, ``(lanes + chunks, N)``."""
    N = initial.shape[1]
    states = initial.new_empty((ranks.lanes + ranks.chunks, N))
    previous, *ends = states.split((ranks.lanes, *ranks.running))
    previous.copy_(initial)
    by_rank = (x.unflatten(0, (ranks.chunks, N)).split(ranks.running) for x in (decays, writes))
    for end, decay, write in zip(ends, *by_rank, strict=True):
        torch.add(previous[: len(end)], decay, out=end)
        torch.maximum(end, write, out=end)
        previous = end
    return states


def _at_starts(states: Tensor, ranks: Ranks) -> Tensor:
    """Of ``[initial | end of every chunk]``, what every chunk starts from."""
    if ranks.uniform:
        return states[: ranks.chunks]
    return states.index_select(0, torch.from_numpy(ranks.forward_rows()[0]).to(states.device))


def _at_ends(gradients: Tensor, ranks: Ranks) -> Tensor:
    """Of ``[start of every chunk | final]``, what every chunk ends with."""
    if ranks.uniform:
        return gradients[ranks.lanes :]
    return gradients.index_select(0, torch.from_numpy(ranks.backward_rows()[0]).to(gradients.device))


def _at_last(states: Tensor, ranks: Ranks) -> Tensor:
    """Of ``[initial | end of every chunk]``, a copy of every lane's last."""
    return states.index_select(0, torch.from_numpy(ranks.forward_rows()[1]).to(states.device))


def _at_first(gradients: Tensor, ranks: Ranks) -> Tensor:
    """Of ``[start of every chunk | final]``, a copy of every lane's first."""
    return gradients.index_select(0, torch.from_numpy(ranks.backward_rows()[1]).to(gradients.device))


def _accumulate(states: Tensor, decay: Tensor, ranks: Ranks) -> None:
    """Turn ``[initial | what every chunk writes]`` into ``[initial | end of every chunk]``; decay ``(chunks, N)``."""
    decay = decay.reshape(*decay.shape, *(1,) * (states.ndim - 2))
    previous, *ends = states.split((ranks.lanes, *ranks.running))
    for end, factor in zip(ends, decay.split(ranks.running), strict=True):
        end.addcmul_(previous[: len(end)], factor)
        previous = end


def _accumulate_back(gradients: Tensor, decay: Tensor, ranks: Ranks) -> None:
    """Turn ``[what every chunk reads | final]`` into ``[gradient at the start of every chunk | final]``."""
    decay = decay.reshape(*decay.shape, *(1,) * (gradients.ndim - 2))
    *starts, final = gradients.split((*ranks.running, ranks.lanes))
    following = final[:0]
    for start, factor in zip(reversed(starts), reversed(decay.split(ranks.running)), strict=True):
        still = len(following)
        start[:still].addcmul_(following, factor[:still])
        if still < len(start):
            start[still:].addcmul_(final[still : len(start)], factor[still:])
        following = start


class _Pieces(NamedTuple):
    """What both directions compute; the names stand at the head of this module."""

    gates: Gates | None
    D_last: Tensor
    b_last: Tensor
    m: Tensor
    E: Tensor
    e: Tensor
    k_weighted: Tensor
    start: State
    last: State | None


def _pieces(x: Tokens, initial: State, ranks: Ranks, kept: Kept, keep_gates: bool) -> _Pieces:
    N, K, V = initial.C.shape[1:]
    gates = log_decay(x.f) if kept.gates is None else kept.gates
    b_last = gates.b[:, -1]
    i = x.i[:, None, :]
    D = gates.F + i
    D_last = D[:, -1].clone()

    inside = D.amax(-1) if kept.M is None else kept.M
    m_states = None
    if kept.c is not None:
        m_start = kept.c.m
    else:
        if kept.M is None:
            m_states = _stabilisers(b_last, inside[:, -1], initial.m, ranks)
        else:
            m_states = torch.cat([initial.m, inside[:, -1].unflatten(0, (ranks.chunks, N))])
        m_start = _at_starts(m_states, ranks)
    m_start_of_row = m_start.flatten()[:, None]
    m = torch.maximum(gates.b + m_start_of_row, inside) if kept.M is None else kept.M
    # A row of an empty memory is −∞ throughout: less a finite number it stays so, and its weights are 0.
    finite = m.clamp(min=torch.finfo(m.dtype).min)
    # i and m first: of a size when they are large, their difference is exact, where F + i would round.
    E = torch.sub(i, finite[:, :, None], out=D).add_(gates.F).exp_()
    e = torch.sub(m_start_of_row, finite).add_(gates.b).exp_()
    k_weighted = x.k * E[:, -1, :, None]
    gates = gates if keep_gates else None
    if kept.c is not None:
        return _Pieces(gates, D_last, b_last, m, E, e, k_weighted, kept.c, None)

    decay = e[:, -1].unflatten(0, (ranks.chunks, N))
    C_states = initial.C.new_empty((ranks.lanes + ranks.chunks, N, K, V))
    C_states[: ranks.lanes] = initial.C
    torch.bmm(k_weighted.mT, x.v, out=C_states[ranks.lanes :].flatten(0, 1))
    _accumulate(C_states, decay, ranks)
    n_states = initial.n.new_empty((ranks.lanes + ranks.chunks, N, K))
    n_states[: ranks.lanes] = initial.n
    torch.sum(k_weighted, 1, out=n_states[ranks.lanes :].flatten(0, 1))
    _accumulate(n_states, decay, ranks)
    assert m_states is not None
    states = State(C_states, n_states, m_states)
    start = State(*(_at_starts(part, ranks) for part in states))
    return _Pieces(gates, D_last, b_last, m, E, e, k_weighted, start, states)


def forward(
    x: Tokens, initial: State, ranks: Ranks, normaliser: Normaliser, keep: tuple[bool, bool, bool, bool]
) -> tuple[Tensor, State, Kept]:
    """h ``(G, L, V)``, the final state of every lane, and what ``keep`` says of (G, gates, M, c)."""
    keep_G, keep_gates, keep_M, keep_c = keep
    p = _pieces(x, initial, ranks, NOTHING, keep_gates)
    C, n = p.start.C.flatten(0, 1), p.start.n.flatten(0, 1)
    G = torch.bmm(x.q_hat, x.k.mT).mul_(p.E)
    q_weighted = x.q_hat * p.e[:, :, None]
    nu = torch.baddbmm(G.sum(-1, keepdim=True), q_weighted, n[:, :, None]).squeeze(-1)
    Y = torch.maximum(nu.abs_(), normaliser.floor(p.m)).add_(normaliser.eps)
    h = torch.bmm(G, x.v).baddbmm_(q_weighted, C).div_(Y[:, :, None])
    assert p.last is not None
    last = State(*(_at_last(part, ranks) for part in p.last))
    kept = Kept(
        G if keep_G else None, p.gates if keep_gates else None, p.m if keep_M else None, p.start if keep_c else None
    )
    return h, last, kept


def backward(
    x: Tokens,
    initial: State,
    dh: Tensor,
    dlast: State | None,
    ranks: Ranks,
    normaliser: Normaliser,
    scale: float,
    kept: Kept = NOTHING,
) -> tuple[Tokens, State]:
    """Gradients of q, k, v, i, f and of the initial state; ``dh`` ``(G, L, V)`` is overwritten; no ``dlast`` is zeros.

    ``scale`` is that of q̂: the gradient is with respect to q.
    """
    N, K, V = initial.C.shape[1:]
    p = _pieces(x, initial, ranks, kept, keep_gates=False)
    C, n = p.start.C.flatten(0, 1), p.start.n.flatten(0, 1)
    e, E_last = p.e[:, :, None], p.E[:, -1, :, None].clone()
    decay = p.e[:, -1].unflatten(0, (ranks.chunks, N))

    G = torch.bmm(x.q_hat, x.k.mT).mul_(p.E) if kept.G is None else kept.G
    q_weighted = x.q_hat * e
    nu_start = torch.bmm(q_weighted, n[:, :, None]).squeeze(-1)
    nu = G.sum(-1).add_(nu_start)
    size, floor = nu.abs(), normaliser.floor(p.m)
    Y = torch.maximum(size, floor).add_(normaliser.eps)
    delta = dh.div_(Y[:, :, None])

    dG = torch.bmm(delta, x.v.mT)
    W = G * dG
    rho = torch.bmm(delta, C.mT)
    r = (q_weighted * rho).sum(-1)
    dnu = torch.where(size > floor, nu.sign_(), 0.0).mul_(W.sum(-1).add_(r)).div_(Y).neg_()
    dG.add_(dnu[:, :, None])
    W.addcmul_(G, dnu[:, :, None])
    r.addcmul_(nu_start, dnu)
    dv = torch.bmm(G.mT, delta)
    del G
    dscores = dG.mul_(p.E)
    rho.addcmul_(n[:, None, :], dnu[:, :, None]).mul_(e)
    dq = rho.baddbmm_(dscores, x.k, beta=scale, alpha=scale)

    dC = delta.new_empty((ranks.chunks + ranks.lanes, N, K, V))
    torch.bmm(q_weighted.mT, delta, out=dC[: ranks.chunks].flatten(0, 1))
    dn = delta.new_empty((ranks.chunks + ranks.lanes, N, K))
    torch.bmm(q_weighted.mT, dnu[:, :, None], out=dn[: ranks.chunks].flatten(0, 1)[:, :, None])
    del q_weighted, delta
    dC[ranks.chunks :] = 0.0 if dlast is None else dlast.C
    dn[ranks.chunks :] = 0.0 if dlast is None else dlast.n
    _accumulate_back(dC, decay, ranks)
    _accumulate_back(dn, decay, ranks)
    dC_end, dn_end = (_at_ends(part, ranks).flatten(0, 1) for part in (dC, dn))

    omega = torch.bmm(x.v, dC_end.mT).add_(dn_end[:, None, :]).mul_(E_last)
    w = (x.k * omega).sum(-1)
    dk = omega.baddbmm_(dscores.mT, x.q_hat)
    dv.baddbmm_(p.k_weighted, dC_end)
    through = _dot(C, dC_end).add_(_dot(n, dn_end)).mul_(decay.flatten())

    di = W.sum(-2).add_(w)
    da = r.flip(-1).cumsum_(-1).flip(-1).add_(through[:, None])
    # across[t, s−1] = Σ_{j<s} W[t,j], wanted where t ≥ s.
    across = W.cumsum_(-1).tril_(-1).sum(-2)
    da[:, 1:] += across.add_(w.cumsum(-1))[:, :-1]

    first = State(_at_first(dC, ranks), _at_first(dn, ranks), initial.m.new_zeros(initial.m.shape))
    dm = first.m
    dm += (initial.C * first.C).sum((-2, -1)) + (initial.n * first.n).sum(-1)
    if dlast is not None:
        _through_m(p, ranks, dlast, w.sum(-1).add_(through), di, da, dm)
    return Tokens(dq, dk, dv, di, da.mul_(logsigmoid(-x.f).exp_())), first


def _dot(x: Tensor, y: Tensor) -> Tensor:
    """Inner product row by row."""
    return torch.bmm(x.flatten(1)[:, None], y.flatten(1)[:, :, None])[:, 0, 0]


def _through_m(p: _Pieces, ranks: Ranks, dlast: State, written: Tensor, di: Tensor, da: Tensor, dm: Tensor) -> None:
    """Add, in place, what reaches the gates and the initial m through the final m.

    ``written`` is ``⟨C', dC'⟩ + ⟨n', dn'⟩`` at the end of every chunk. Where two attain m, the earlier one does.
    """
    lanes, N = dm.shape
    L = di.shape[1]
    lane, rank = (torch.from_numpy(index).to(dm.device) for index in ranks.lane_and_rank())
    best, at = p.D_last.max(-1)
    own = best > p.b_last + p.start.m.flatten()
    step = torch.where(own, at + 1, 0).unflatten(0, (ranks.chunks, N))
    step += (step > 0) * (rank * L)[:, None]
    attained = step.new_zeros((lanes, N)).scatter_reduce_(0, lane[:, None].expand(-1, N), step, "amax")

    last = torch.from_numpy(ranks.forward_rows()[1]).to(dm.device) - lanes
    c = torch.cat([written.unflatten(0, (ranks.chunks, N)), dm]).index_select(0, last.remainder(ranks.chunks + lanes))
    g = dlast.m - c
    dm += torch.where(attained == 0, g, 0.0)
    g, attained = (x.index_select(0, lane).flatten()[:, None] for x in (g, attained))
    steps = (rank * L).repeat_interleave(N)[:, None] + torch.arange(1, L + 1, device=dm.device)
    di += torch.where(steps == attained, g, 0.0)
    da += torch.where(steps > attained, g, 0.0)
