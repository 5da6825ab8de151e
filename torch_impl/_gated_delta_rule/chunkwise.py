"""The chunkwise gated delta rule, forward and backward, on tensors in chunk layout (`torch_impl._chunk_layout`).

Source: Yang et al., arXiv:2412.06464, the WY representation of section 3.3. In a chunk of L steps that starts from the
state S, with row vectors and q̂ = scale · q::

    D[t,j] = exp(Σ_{j<s≤t} g_s)  (j ≤ t)        e_t = exp(Σ_{s≤t} g_s)        y_j = D[L,j]
    M[t,j] = D[t,j] k_t·k_j  (j < t)        G[t,j] = D[t,j] q̂_t·k_j  (j ≤ t)        P = (1 + M diag(β))⁻¹
    r = P (v − e ⊙ (k S))        u = β r        o = e ⊙ (q̂ S) + G u        S' = e_L S + (y ⊙ k)ᵀ u

r_t is ``v_t − exp(g_t) k_t S_{t−1}``, by which the state misses the value. Backward, given do and dS'::

    du = Gᵀ do + (y ⊙ k) dS'        w = Pᵀ (β du)        dv = w        dS = e_L dS' + (e ⊙ q̂)ᵀ do − (e ⊙ k)ᵀ w
    dG = do uᵀ        dM = −w uᵀ        dβ_j = r_j·du_j − Σ_t M[t,j] w_t·r_j
    dq̂ = (D ⊙ dG) k + ρ        ρ_t = e_t do_t Sᵀ
    dk = (D ⊙ dG)ᵀ q̂ + (D ⊙ dM) k + (D ⊙ dM)ᵀ k + ω − κ        ω_j = y_j u_j dS'ᵀ        κ_t = e_t w_t Sᵀ
    dg_s = Σ_{t≥s, j<s} (G ⊙ dG + M ⊙ dM)[t,j] + Σ_{t≥s} (q̂_t·ρ_t − k_t·κ_t) + Σ_{j<s} k_j·ω_j + e_L ⟨S, dS'⟩

Decays are exponentials of sums over the steps that they cross, never of differences of sums: they lose no digits where
gates are strong, and a hard reset, g = −∞, is 0 in all that cross it. A decay's gradient contains only the paths that
cross its step, so that at a hard reset it is exactly 0.

Everything is in the accumulation dtype. A row is one chunk of one head, in the order of `torch_impl._chunk_layout`.
Matrices of steps are stored transposed, ``(rows, j, t)``, because the sums run over the last axis.
"""

from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from torch_impl._chunk_layout import Ranks
from torch_impl._threads import reconsider_threads


class Tokens(NamedTuple):
    """Of every row: k, then q, ``(rows, 2L, K)``, so that one product reads both; v ``(rows, L, V)``; g, β ``(rows,
    L)``."""

    kq: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor

    @property
    def k(self) -> Tensor:
        return self.kq[:, : self.g.shape[1]]

    @property
    def q(self) -> Tensor:
        return self.kq[:, self.g.shape[1] :]


class _Weights(NamedTuple):
    """What the tokens of a chunk determine, with names as in this module's head: D, M, G without the scale and P, all
    transposed, ``(rows, L, L)``; y, e and scale · e, ``(rows, L, 1)``. M also has elements on its diagonal, which count
    for nothing."""

    D: Tensor
    M: Tensor
    G: Tensor
    P: Tensor
    y: Tensor
    e: Tensor
    e_q: Tensor

    @property
    def decay(self) -> Tensor:
        """e_L, ``(rows, 1, 1)``."""
        return self.e[:, -1:]


def _weights(x: Tokens, scale: float) -> _Weights:
    rows, L = x.g.shape
    D = x.g[:, None, :].expand(rows, L, L).triu(1).cumsum_(-1).exp_()
    y = D[:, :, -1:].clone()
    e = x.g.cumsum(-1).exp_()[:, :, None]
    D.triu_()
    reconsider_threads()
    M, G = torch.bmm(x.k, x.kq.mT).view(rows, L, 2, L).mul_(D[:, :, None]).unbind(2)
    return _Weights(D, M, G, _inverse(M * x.beta[:, :, None]), y, e, e * scale)


def _inverse(M: Tensor) -> Tensor:
    """``(1 + M)⁻¹`` for the part of M above its diagonal."""
    one = torch.eye(M.shape[-1], dtype=M.dtype, device=M.device).expand_as(M)
    # On a CPU twice as fast as with the unknown on the right.
    return torch.linalg.solve_triangular(M, one, upper=True, left=False, unitriangular=True)


def _by_rank(ranks: Ranks, N: int) -> list[tuple[slice, int]]:
    """The rows of every rank, and the number of its sequences."""
    ends = accumulate(ranks.running, initial=0)
    return [(slice(a * N, b * N), b - a) for a, b in pairwise(ends)]


def forward(x: Tokens, state: Tensor, starts: Tensor | None, ranks: Ranks, scale: float) -> Tensor:
    """o of some chunks, ``(rows, L, V)``.

    Args:
        state: S of every sequence before these chunks, ``(sequences, N, K, V)``, replaced by that after them.
        starts: room for S at the start of every chunk, ``(chunks, N, K, V)``, which is written.
    """
    w, L = _weights(x, scale), x.g.shape[1]
    beta, u, read = x.beta[:, :, None], torch.empty_like(x.v), x.v.new_empty((*x.kq.shape[:2], x.v.shape[2]))
    for rows, running in _by_rank(ranks, state.shape[1]):
        reconsider_threads()
        S = state[:running].flatten(0, 1)
        if starts is not None:
            starts.flatten(0, 1)[rows] = S
        torch.bmm(x.kq[rows], S, out=read[rows])
        missed = torch.addcmul(x.v[rows], read[rows, :L], w.e[rows], value=-1)
        torch.bmm(w.P[rows].mT, missed, out=u[rows]).mul_(beta[rows])
        S.mul_(w.decay[rows]).baddbmm_(x.k[rows].mT, u[rows] * w.y[rows])
    reconsider_threads()
    return (read[:, L:] * w.e_q).baddbmm_(w.G.mT, u, alpha=scale)


def backward(
    x: Tokens, starts: Tensor, do: Tensor, dstate: Tensor, ranks: Ranks, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the tokens of some chunks, in the order of `Tokens`.

    Args:
        starts: S at the start of every chunk, ``(chunks, N, K, V)``.
        do: cotangent of o, ``(rows, L, V)``.
        dstate: gradient of S of every sequence after these chunks, ``(sequences, N, K, V)``, replaced by that before
            them.
    """
    w, L = _weights(x, scale), x.g.shape[1]
    beta, S = x.beta[:, :, None], starts.flatten(0, 1)
    r = torch.bmm(w.P.mT, torch.bmm(x.k, S).mul_(w.e).neg_().add_(x.v))
    u = r * beta
    u_end = u * w.y
    du, dv = _product(w.G, do, scale), torch.empty_like(do)
    # Cotangents of what k and q read of S.
    dread = torch.cat([dv, do * w.e_q], 1)
    dkq, omega, through = torch.empty_like(x.kq), torch.empty_like(x.k), w.decay.clone()
    for rows, running in reversed(_by_rank(ranks, dstate.shape[1])):
        reconsider_threads()
        dS = dstate[:running].flatten(0, 1)
        du[rows].addcmul_(torch.bmm(x.k[rows], dS), w.y[rows])
        torch.bmm(w.P[rows], du[rows] * beta[rows], out=dv[rows])
        torch.mul(dv[rows], w.e[rows], out=dread[rows, :L]).neg_()
        torch.bmm(u_end[rows], dS.mT, out=omega[rows])
        through[rows] *= (S[rows] * dS).sum((-2, -1), keepdim=True)
        dS.mul_(w.decay[rows]).baddbmm_(x.kq[rows].mT, dread[rows])
        torch.bmm(dread[rows], S[rows].mT, out=dkq[rows])

    reconsider_threads()
    read, written = (x.kq * dkq).sum(-1).unflatten(-1, (2, L)).sum(1), (x.k * omega).sum(-1)
    dG = _product(u, do.mT, scale)
    across = dG * w.G
    scores = dG.mul_(w.D)
    dP = _product(r, dv.mT, -1)
    crossing = (dP * w.M).triu_(1)
    dbeta = (r * du).sum(-1).add_(crossing.sum(-1))
    across.addcmul_(crossing, beta)
    dM = dP.mul_(w.D).mul_(beta).triu_(1)

    reconsider_threads()
    dkq.baddbmm_(torch.cat([dM + dM.mT, scores.mT], 1), x.k)
    dkq[:, :L] += omega.baddbmm_(scores, x.q)

    # Sums over the steps from each on, and over those before it.
    from_step = torch.ones((L, L), dtype=read.dtype, device=read.device).tril_()
    before_step = from_step.mT.triu(1)
    dg = (torch.matmul(across, from_step) * before_step).sum(-2)
    dg += torch.addmm(written @ before_step, read, from_step)
    dg += through[:, 0]
    return dkq, dv, dg, dbeta


def _product(x: Tensor, y: Tensor, scale: float) -> Tensor:
    """``scale · x y``."""
    return torch.baddbmm(x.new_empty((*x.shape[:2], y.shape[2])), x, y, beta=0, alpha=scale)
