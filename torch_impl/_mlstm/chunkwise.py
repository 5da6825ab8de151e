"""The chunkwise mLSTM, forward and backward, on tensors in chunk layout (`torch_impl._chunk_layout`).

It uses the parallel form inside chunks of L steps, for all chunks at once, and the recurrent form between them, which
is the only sequential part. Source: Beck et al., arXiv:2503.14376, with the normaliser differentiated. In a chunk that
starts from the memory (C, n, m), with ``a = log σ(f)`` and ``q̂ = q/√K``::

    b_t = Σ_{s≤t} a_s        m_t = max(b_t + m, max_{j≤t} Σ_{j<s≤t} a_s + i_j)        (m₀ = m)
    α_t = a_t + m_{t−1} − m_t        ι_j = i_j − m_j
    E[t,j] = exp(Σ_{j<s≤t} α_s + ι_j)        e_t = exp(Σ_{s≤t} α_s)
    G = (q̂ kᵀ) ⊙ E        ν_t = Σ_j G[t,j] + e_t q̂_t·n        Y_t = max(|ν_t|, floor_t) + eps
    h_t = (Σ_j G[t,j] v_j + e_t Cᵀq̂_t) / Y_t

α and ι are the gates in units of the stabiliser. None is above 0 except by rounding, so no sum of them cancels, and
weights are exact to roundoff however large the gates are; sums of a and i would be rounded at the size of m. Where that
adds up, the unit is exp(m + drift) instead: see `_in_larger_units`. The chunk passes on ``C' = e_L C + Σ_j E[L,j] k_j
v_jᵀ``, ``n'`` likewise, and ``m_L``. The backward pass treats the stabiliser m as a constant: h does not depend on it,
apart from the stated exceptions. With δ = dh/Y::

    dν = −(δ·num)/Y · [|ν| > floor] sign(ν)        dG = δ vᵀ + dν        W = G ⊙ dG        dS = E ⊙ dG
    dq̂ = dS k + ρ        ρ_t = e_t (C δ_t + n dν_t)        r_t = q̂_t·ρ_t
    dk = dSᵀq̂ + ω        ω_j = E[L,j] (dC' v_j + dn')        w_j = k_j·ω_j        dv = Gᵀδ + E[L,j] dC'ᵀk_j
    da_t = Σ_{s≥t, j<t} W[s,j] + Σ_{s≥t} r_s + Σ_{j<t} w_j + e_L (⟨C, dC'⟩ + ⟨n, dn'⟩)
    di_j = Σ_s W[s,j] + w_j        dC = e_L dC' + Σ_t e_t q̂_t δ_tᵀ        dn = e_L dn' + Σ_t e_t dν_t q̂_t

A decay's gradient contains only the paths that cross its step, so that after a hard reset it is exactly 0. The
cotangent of the final m, less the contribution of C and n, goes to the step that attained m: ``g = dm_T − ⟨C_T, dC_T⟩ −
⟨n_T, dn_T⟩``.

Everything is in the accumulation dtype. A row is one chunk of one head, ``rows = chunks·N``, in the order of
`torch_impl._chunk_layout`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from torch_impl._chunk_layout import Ranks
from torch_impl._mlstm.normaliser import Normaliser
from torch_impl._mlstm.state_scans import (
    accumulate,
    accumulate_back,
    at_ends,
    at_first,
    at_last,
    at_starts,
    scan_stabilisers,
)
from torch_impl._threads import reconsider_threads

_LOG2_E = math.log2(math.e)
"""``exp(x) = exp2(x log₂ e)``. In PyTorch on a CPU, exp takes 3 to 15 times as long as exp2, most where it is 0."""

_LITTLE = 2.0**-14
"""The largest log weight of a memory in its unit that counts as roundoff: a million of them stay finite."""

_LARGEST_EXACT = 10.0
"""The size of an m, in inverse machine epsilons, from which its rounding alone may put a memory out of range."""

_FAR = 40.0
"""The log of n in its unit, in size, from which a single step rounds its m to the other side."""

_LONG = 32
"""Minimum number of steps at which a chunk is cut into two tiles."""


class ChunkTokens(NamedTuple):
    """q, k ``(rows, L, K)``; v with a column of ones, ``(rows, L, V+1)``."""

    q: Tensor
    k: Tensor
    v: Tensor


class ChunkGates(NamedTuple):
    """Log decay of every step, and its sums from the start of the step's tile, ``(rows, L)`` each."""

    a: Tensor
    b: Tensor


class ChunkResiduals(NamedTuple):
    """Residuals of a forward pass; the backward pass recomputes those that are None.

    Attributes:
        G: decayed scores, ``(rows, L, L)``.
        gates: log decay.
        M: stabiliser of every step, ``(rows, L)``.
        C, m: memory at the start of every chunk, ``(rows, K, V+1)``, and its stabiliser, ``(chunks, N)``.
    """

    G: Tensor | None = None
    gates: ChunkGates | None = None
    M: Tensor | None = None
    C: Tensor | None = None
    m: Tensor | None = None

    def rows(self, rows: slice, chunks: slice) -> "ChunkResiduals":
        """The residuals of some rows, which belong to the given chunks."""
        if self is NO_RESIDUALS:
            return self
        gates = None if self.gates is None else ChunkGates(*(part[rows] for part in self.gates))
        G, M, C = (None if part is None else part[rows] for part in (self.G, self.M, self.C))
        return ChunkResiduals(G, gates, M, C, None if self.m is None else self.m[chunks])


NO_RESIDUALS = ChunkResiduals()


class ChunkGradients(NamedTuple):
    """Gradients by rows: q, k ``(rows, L, K)``, v ``(rows, L, V)``, i and the log decay a ``(rows, L)``."""

    q: Tensor
    k: Tensor
    v: Tensor
    i: Tensor
    a: Tensor


class GateWeights(NamedTuple):
    """Weights of every step that depend on the gates alone, ``(rows, L)``, with names as in this module's head.

    Chunks of even length are cut into two tiles. A weight that crosses the cut is the product of a weight up to the cut
    and a weight from it, both at most 1, so that exponentials are taken of only a quarter of E, twice.

    Attributes:
        alpha, iota: log decay and log input in units of the stabiliser ``m``.
        e: the fraction of the memory at the chunk's start that is left at each step; ``decay`` is that at the last
            step, ``(rows,)``.
        y: ``E[L,j]``, the fraction of the write of step j that the chunk passes on.
        inner_e, inner_y: the same for every tile, ``(rows, tiles, l)``.
        floor: the floor of the normaliser.
    """

    alpha: Tensor
    iota: Tensor
    m: Tensor
    e: Tensor
    y: Tensor
    inner_e: Tensor
    inner_y: Tensor
    floor: Tensor

    @property
    def decay(self) -> Tensor:
        return self.e[:, -1]

    def rows(self, rows: slice | Tensor) -> "GateWeights":
        """The weights of some rows."""
        return GateWeights(*(part[rows] for part in self))

    def matrix(self) -> Tensor:
        """E ``(rows, L, L)``."""
        rows, tiles, width = self.inner_e.shape
        E = self.alpha.new_empty((rows, tiles, width, tiles, width))
        D = _log_decay(self.alpha.view(rows, tiles, width) * _LOG2_E)
        D += (self.iota * _LOG2_E).view(rows, tiles, 1, width)
        torch.exp2(D, out=E.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2))
        if tiles == 2:
            E[:, 0, :, 1] = 0.0
            torch.mul(self.inner_e[:, 1, :, None], self.inner_y[:, 0, None, :], out=E[:, 1, :, 0])
        return E.view(rows, tiles * width, tiles * width)


class Stabilisers(NamedTuple):
    """The values that determine the final m: a, i and the m before every step, ``(rows, L)``; m at the start of every
    chunk, ``(chunks, N)``; the final m, and the weight in units of it of the final memory, ``(sequences, N)``. That is
    None if the memory is in these units."""

    a: Tensor
    i: Tensor
    before: Tensor
    start: Tensor
    last: Tensor
    last_weight: Tensor | None


def _finite(m: Tensor) -> Tensor:
    """m with −∞ replaced by a finite number, so that an empty memory's log weights minus m are −∞, and not NaN."""
    return m.clamp(min=torch.finfo(m.dtype).min)


def stabilised_decay(a: Tensor, m_before: Tensor, finite: Tensor, large: bool) -> Tensor:
    """``a + m_before − m``: the log of what is left of a memory held in units of exp(m) before and after the step.

    What rounding takes from the sum counts. Of two float32 that are not ``large`` (see `rounds_up`), float64 holds the
    sum; of others it is added again (Knuth's two-sum gives it exactly). ``finite`` is m, or for −∞ the least finite
    number.
    """
    if a.dtype is not torch.float64 and not large:
        return (a.double() + m_before).sub_(finite).to(a.dtype)
    total = a + m_before
    rest = total - a
    lost = (a - (total - rest)).add_(m_before - rest)
    # Where the sum is infinite nothing is lost.
    return (total - finite).add_(lost.nan_to_num_(0.0))


def rounds_up(m: Tensor) -> bool:
    """Whether the rounding of any m may add more than `_LITTLE` to a log weight. Only on a CPU is that read from the
    values; another device would have to be synchronised. A NaN does not count: it must not decide for other sequences.
    """
    if m.device.type != "cpu":
        return True
    if m.numel() == 0:
        return False
    limit = _largest_small(m)
    least, most = torch.aminmax(m)
    largest = max(-least.item(), most.item())
    # Both are NaN if any m is. Comparing every element then takes longer, but a comparison with NaN is false.
    return largest > limit if largest == largest else bool((m.abs() > limit).any())


def _largest_small(m: Tensor) -> float:
    """The size of an m up to which its rounding adds no more than `_LITTLE` to a log weight."""
    return 2 * _LITTLE / torch.finfo(m.dtype).eps


def is_large(m: Tensor) -> Tensor:
    """`rounds_up` for each m, on every device: no m has a part in the roundings of another."""
    return m.abs() > _largest_small(m) if m.device.type == "cpu" else torch.ones_like(m, dtype=torch.bool)


def _are_large(m: Tensor, ranks: Ranks, N: int) -> tuple[Tensor, Tensor]:
    """Whether any m of a sequence and head `is_large`: by sequence, ``(sequences, N)``, and by row, ``(rows, 1)``."""
    sequence = torch.from_numpy(ranks.sequence_and_rank()[0]).to(m.device)
    by_chunk = is_large(m).any(-1).unflatten(0, (ranks.chunks, N))
    count = by_chunk.new_zeros((ranks.sequences, N), dtype=torch.int32)
    of_sequences = count.index_add_(0, sequence, by_chunk.int()) > 0
    return of_sequences, of_sequences.index_select(0, sequence).view(-1, 1)


def _rounded_up(m: Tensor, drift: Tensor) -> Tensor:
    """``m + drift`` as one number, the log of the unit of a memory that is passed on.

    If rounding would add more than a little to the memory's log weight, the number is rounded up: a memory stays
    finite, however often its unit is rounded.
    """
    unit = m + drift
    up = (m - unit) + drift > _LITTLE
    return torch.where(up, unit.nextafter(torch.full_like(unit, torch.inf)), unit)


def _is_exact(m: Tensor) -> Tensor:
    """Whether the rounding of each m alone leaves a memory in range."""
    return m.abs() < _LARGEST_EXACT / torch.finfo(m.dtype).eps


def _log_ratio(m: Tensor, drift: Tensor, unit: Tensor) -> Tensor:
    """``m + drift − unit``, or 0 if the unit is so large that its rounding alone would put a memory out of range."""
    return torch.where(_is_exact(unit), (m - unit) + drift, 0.0)


def _after_single_step(m: Tensor, alpha: Tensor, iota: Tensor, n: Tensor) -> Tensor:
    """The m that a single step returns: m, or the next number above or below it where n would leave the range.

    A step cannot pass on what rounding took from its m, as the steps of one call do by a drift. Where that has the same
    sign for many steps, it would add up in the memory.

    Args:
        m, alpha, iota: the rounded stabiliser, log decay and log input in units of it, ``(…)``.
        n: the normaliser's memory before the step, ``(…, K)``.
    """
    left = n.abs().amax(-1).log_().add_(alpha)
    towards = torch.where(left > _FAR, torch.inf, -torch.inf)
    rounds = (left.abs() > _FAR) & left.isfinite() & (alpha >= iota) & _is_exact(m)
    return torch.where(rounds, m.nextafter(towards), m)


def single_step(m: Tensor, alpha: Tensor, iota: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """m after a single step whose m is large, and the log decay and log input in units of it.

    If m is so large that its rounding alone would put a memory out of range, the larger of the two counts as 0.
    """
    largest = _finite(torch.maximum(alpha, iota))
    unit = _after_single_step(m, alpha, iota, n)
    change = _log_ratio(m, largest, unit).sub_(largest)
    return unit, alpha + change, iota + change


def _log_decay(a: Tensor) -> Tensor:
    """F of log gates ``(..., L)``."""
    L = a.shape[-1]
    # Bounds of ∓∞ below the diagonal let a_s through, −∞ included; elsewhere they make it 0.
    least = a.new_full((L, L), -torch.inf).tril_(-1)
    F = torch.clamp(a[..., None], least, -least).cumsum_(-2)
    return F.add_(a.new_full((L, L), -torch.inf).triu_(1))


def _tiles(L: int) -> int:
    """Into how many tiles a chunk of L steps is cut."""
    return 2 if L % 2 == 0 and L >= _LONG else 1


def gates(f: Tensor) -> ChunkGates:
    """Log decay from forget gate preactivations ``(rows, L)``."""
    a, tiles = logsigmoid(f), _tiles(f.shape[1])
    return ChunkGates(a, a.view(len(a), tiles, a.shape[1] // tiles).cumsum(-1).view_as(a))


def _running_max(a: Tensor, i: Tensor) -> Tensor:
    """``max_{j≤t} F[t,j] + i_j`` in tiles ``(..., l)``, in log₂ l passes."""
    reach = 1
    while reach < a.shape[-1]:
        carried = i[..., :-reach] + a[..., reach:]
        i = torch.cat([i[..., :reach], torch.maximum(carried, i[..., reach:])], -1)
        a = torch.cat([a[..., :reach], a[..., reach:] + a[..., :-reach]], -1)
        reach *= 2
    return i


def weights(
    i: Tensor,
    f: Tensor,
    initial_m: Tensor,
    ranks: Ranks,
    normaliser: Normaliser,
    kept: ChunkResiduals = NO_RESIDUALS,
    initial_n: Tensor | None = None,
) -> tuple[GateWeights, Stabilisers]:
    """All weights except E, from gate preactivations ``(rows, L)`` and the initial m ``(sequences, N)``.

    ``initial_n`` ``(sequences, N, K)`` counts only in a single step, which returns the m of `single_step`.
    """
    (rows, L), N = i.shape, initial_m.shape[1]
    tiles = _tiles(L)
    a, b = gates(f) if kept.gates is None else kept.gates
    if kept.M is None:
        m, states = _largest(a, b, i, initial_m, ranks, kept.m)
    else:
        m, states = kept.M, torch.cat([initial_m, kept.M[:, -1].unflatten(0, (ranks.chunks, N))])
    start = at_starts(states, ranks) if kept.m is None else kept.m
    finite = _finite(m)
    before = torch.cat([start.reshape(rows, 1), m[:, :-1]], -1)
    large = rounds_up(m)
    alpha, iota = stabilised_decay(a, before, finite, False), i - finite
    last, last_weight, unit = at_last(states, ranks), None, m
    if large:
        of_sequences, of_rows = _are_large(m, ranks, N)
        exact = stabilised_decay(a, before, finite, True)
        *in_units, drift, last_drift = _in_larger_units(exact, iota, initial_m, ranks)
        unrounded, alpha_step, iota_step = last, exact, iota
        alpha, iota = (torch.where(of_rows, x, y) for x, y in zip(in_units, (alpha, iota), strict=True))
        unit = torch.where(of_rows, m + drift, m)
        if L != 1 or len(ranks.running) != 1:
            last = _rounded_up(last, last_drift)
        elif initial_n is not None:
            last = _after_single_step(last, alpha_step.view_as(last), iota_step.view_as(last), initial_n)
        last_weight = torch.where(of_sequences, _log_ratio(unrounded, last_drift, last).exp_(), 1.0)
        last = torch.where(of_sequences, last, unrounded)
    shape = rows, tiles, L // tiles
    alpha_tiles = alpha.view(shape)
    inner_e = alpha_tiles.cumsum(-1).exp_()
    inner_y = _sums_after(alpha_tiles).add_(iota.view(shape)).exp_()
    e, y = inner_e, inner_y
    if tiles == 2:
        e, y = inner_e.clone(), inner_y.clone()
        e[:, 1] *= inner_e[:, 0, -1:]
        y[:, 0] *= inner_e[:, 1, -1:]
    e, y = (part.view(rows, L) for part in (e, y))
    found = GateWeights(alpha, iota, m, e, y, inner_e, inner_y, normaliser.floor(unit))
    return found, Stabilisers(a, i, before, start, last, last_weight)


def _largest(
    a: Tensor, b: Tensor, i: Tensor, initial: Tensor, ranks: Ranks, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The stabiliser of every step ``(rows, L)``, and the states ``[initial | end of every chunk]`` with N heads each.

    Args:
        a, b, i: log decay, its sums from the start of the step's tile, and log input, ``(rows, L)``.
        initial: of every sequence, ``(sequences, N)``.
        start: stabiliser at the start of every chunk, ``(chunks, N)``, if it is known.
    """
    rows, L = i.shape
    tiles = _tiles(L)
    shape = rows, tiles, L // tiles
    b = b.view(shape)
    largest = _running_max(a.view(shape), i.view(shape))
    end = largest[:, -1, -1]
    if tiles == 2:
        end = torch.maximum(largest[:, 0, -1] + b[:, 1, -1], end)
    states = scan_stabilisers(b[..., -1].sum(-1), end, initial, ranks)
    before = b.new_empty((rows, tiles, 1))
    before[:, 0, 0] = (at_starts(states, ranks) if start is None else start).flatten()
    if tiles == 2:
        torch.maximum(before[:, 0] + b[:, 0, -1:], largest[:, 0, -1:], out=before[:, 1])
    m = torch.maximum(b + before, largest)
    # This makes it equal, bit for bit, to the m from which the next chunk starts.
    m[:, -1, -1] = states[ranks.sequences :].flatten()
    return m.view(rows, L), states


def _in_larger_units(
    alpha: Tensor, iota: Tensor, initial: Tensor, ranks: Ranks
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log decay and log input in units of exp(m + drift), in which no weight is above 1; the drift of every step and
    the last one of every sequence.

    The drift is what the rounding of m adds up to: the stabiliser of log gates in units of exp(m). At each step the
    larger of decay and input counts as 0, so that no roundoff of the drift itself adds up.
    """
    rows = len(alpha)
    b = alpha.view(rows, _tiles(alpha.shape[1]), -1).cumsum(-1).view_as(alpha)
    drift, states = _largest(alpha, b, iota, torch.zeros_like(initial), ranks)
    alpha = alpha + torch.cat([at_starts(states, ranks).reshape(rows, 1), drift[:, :-1]], -1)
    largest = _finite(torch.maximum(alpha, iota))
    return alpha - largest, iota - largest, drift, at_last(states, ranks)


def _sums_after(a: Tensor) -> Tensor:
    """``Σ_{s>t} a_s`` over the last axis."""
    sums = torch.zeros_like(a)
    sums[..., :-1] = a[..., 1:].flip(-1).cumsum(-1).flip(-1)
    return sums


def _memories(k: Tensor, v: Tensor, w: GateWeights, initial: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor, Tensor]:
    """``y⊙k``; the memory at the start of every chunk, ``(chunks, N, K, V+1)``; the final memory of every sequence."""
    reconsider_threads()
    k_weighted = k * w.y[:, :, None]
    states = initial.new_empty((ranks.sequences + ranks.chunks, *initial.shape[1:]))
    states[: ranks.sequences] = initial
    torch.bmm(k_weighted.mT, v, out=states[ranks.sequences :].flatten(0, 1))
    accumulate(states, w.decay.unflatten(0, (ranks.chunks, initial.shape[1])), ranks)
    return k_weighted, at_starts(states, ranks), at_last(states, ranks)


def advance(k: Tensor, v: Tensor, w: GateWeights, initial: Tensor, ranks: Ranks) -> Tensor:
    """The memory of every sequence after some chunks, given the memory before them, ``(sequences, N, K, V+1)``."""
    return _memories(k, v, w, initial, ranks)[2]


def advance_backward(
    k: Tensor, v: Tensor, w: GateWeights, dC_last: Tensor, ranks: Ranks
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of k, v and of the log input of some chunks, given that of the memory after them; and that of the
    memory before them.

    These are ω, E[L,j] dC'ᵀk_j and w in this module's head, for writes that nothing reads before the end.
    """
    dC = dC_last.new_zeros((ranks.chunks + ranks.sequences, *dC_last.shape[1:]))
    dC[ranks.chunks :] = dC_last
    accumulate_back(dC, w.decay.unflatten(0, (ranks.chunks, dC_last.shape[1])), ranks)
    dC_end = at_ends(dC, ranks).flatten(0, 1)
    dk = torch.bmm(v, dC_end.mT).mul_(w.y[:, :, None])
    dv = torch.bmm(k * w.y[:, :, None], dC_end[:, :, :-1])
    return dk, dv, (k * dk).sum(-1), at_first(dC, ranks)


def forward(
    x: ChunkTokens, w: GateWeights, initial: Tensor | None, ranks: Ranks, normaliser: Normaliser, scale: float
) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor | None]:
    """The forward pass of some chunks; ``scale`` is 1/√K.

    Without an ``initial`` memory it is 0, and no chunk passes one on: every sequence is a single chunk.

    Returns:
        The numerator of h, ``(rows, L, V)``; its denominator Y, ``(rows, L, 1)``; the memory after the chunks; G; and
        C.
    """
    start, last = None, None
    if initial is not None:
        _, start, last = _memories(x.k, x.v, w, initial, ranks)
    G = _scores(x, scale).mul_(w.matrix())
    reconsider_threads()
    sums = torch.bmm(G, x.v)
    if start is not None:
        sums.baddbmm_(x.q * (w.e * scale)[:, :, None], start.flatten(0, 1))
    Y = torch.maximum(sums[:, :, -1:].abs(), w.floor[:, :, None]).add_(normaliser.eps)
    return sums[:, :, :-1], Y, last, G, start


def _scores(x: ChunkTokens, scale: float) -> Tensor:
    reconsider_threads()
    rows, L, _ = x.q.shape
    return torch.baddbmm(x.q.new_empty((rows, L, L)), x.q, x.k.mT, beta=0, alpha=scale)


def backward(
    x: ChunkTokens,
    w: GateWeights,
    initial: Tensor,
    dh: Tensor,
    dC_last: Tensor,
    ranks: Ranks,
    normaliser: Normaliser,
    scale: float,
    kept: ChunkResiduals = NO_RESIDUALS,
) -> tuple[ChunkGradients, Tensor, Tensor]:
    """The gradients of some chunks, the gradient of the memory before them, and ``⟨C', dC'⟩`` ``(rows,)``.

    Args:
        dh: cotangent of h, ``(rows, L, V+1)``, overwritten; its last column is not read.
        dC_last: gradient of the memory after the chunks, ``(sequences, N, K, V+1)``.
        scale: 1/√K, by which q is multiplied; the gradient is with respect to q.
    """
    if kept.C is None:
        k_weighted, start, _ = _memories(x.k, x.v, w, initial, ranks)
        C = start.flatten(0, 1)
    else:
        k_weighted, C = x.k * w.y[:, :, None], kept.C
    E = w.matrix()
    e = (w.e * scale)[:, :, None]

    G = _scores(x, scale).mul_(E) if kept.G is None else kept.G
    q_weighted = x.q * e
    products = q_weighted * C[:, None, :, -1]
    nu_start = products.sum(-1)
    nu = G.sum(-1).add_(nu_start)
    values, W, dG, Y, above = _at_reads(x, dh, G, nu, w.floor, normaliser)
    reconsider_threads()
    rho = torch.bmm(values, C[:, :, :-1].mT)
    r = torch.mul(q_weighted, rho, out=products).sum(-1)
    dnu = above.mul_(W.sum(-1).add_(r)).div_(Y).neg_()
    dh[:, :, -1] = dnu
    dnu = dnu[:, :, None]
    dG.add_(dnu)
    W.addcmul_(G, dnu)
    r.addcmul_(nu_start, dnu[:, :, 0])
    reconsider_threads()
    dv = torch.bmm(G.mT, values)
    dscores = dG.mul_(E)
    rho.addcmul_(C[:, None, :, -1], dnu).mul_(e)
    dq = rho.baddbmm_(dscores, x.k, alpha=scale)

    dC = dh.new_empty((ranks.chunks + ranks.sequences, *initial.shape[1:]))
    torch.bmm(q_weighted.mT, dh, out=dC[: ranks.chunks].flatten(0, 1))
    dC[ranks.chunks :] = dC_last
    accumulate_back(dC, w.decay.unflatten(0, (ranks.chunks, initial.shape[1])), ranks)
    dC_end = at_ends(dC, ranks).flatten(0, 1)

    reconsider_threads()
    omega = torch.bmm(x.v, dC_end.mT).mul_(w.y[:, :, None])
    written = torch.mul(x.k, omega, out=products).sum(-1)
    dk = omega.baddbmm_(dscores.mT, x.q, alpha=scale)
    dv.baddbmm_(k_weighted, dC_end[:, :, :-1])
    reconsider_threads()
    through = (C * dC_end).sum((-2, -1)).mul_(w.decay)

    di = W.sum(-2).add_(written)
    da = r.flip(-1).cumsum_(-1).flip(-1).add_(through[:, None])
    across = _across(W)
    da[:, 1:] += across.add_(written.cumsum(-1))[:, :-1]
    return ChunkGradients(q=dq, k=dk, v=dv, i=di, a=da), at_first(dC, ranks), written.sum(-1).add_(through)


def backward_alone(x: ChunkTokens, w: GateWeights, dh: Tensor, normaliser: Normaliser, scale: float) -> ChunkGradients:
    """`backward` of chunks that neither start from a memory nor pass one on."""
    E = w.matrix()
    G = _scores(x, scale).mul_(E)
    values, W, dG, Y, above = _at_reads(x, dh, G, G.sum(-1), w.floor, normaliser)
    dnu = above.mul_(W.sum(-1)).div_(Y).neg_()[:, :, None]
    dG.add_(dnu)
    W.addcmul_(G, dnu)
    dscores = dG.mul_(E)
    dq, dk = (torch.baddbmm(z, s, z, beta=0, alpha=scale) for s, z in ((dscores, x.k), (dscores.mT, x.q)))
    di, da = W.sum(-2), torch.zeros_like(w.alpha)
    da[:, 1:] = _across(W)[:, :-1]
    return ChunkGradients(q=dq, k=dk, v=torch.bmm(G.mT, values), i=di, a=da)


def _at_reads(
    x: ChunkTokens, dh: Tensor, G: Tensor, nu: Tensor, floor: Tensor, normaliser: Normaliser
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """δ, in place of dh; W and dG, both without dν; Y; and ``[|ν| > floor] sign(ν)``, for which ν is overwritten."""
    reconsider_threads()
    size = nu.abs()
    Y = torch.maximum(size, floor).add_(normaliser.eps)
    dh[:, :, :-1].div_(Y[:, :, None])
    values = dh[:, :, :-1]
    dG = torch.bmm(values, x.v[:, :, :-1].mT)
    return values, G * dG, dG, Y, torch.where(size > floor, nu.sign_(), 0.0)


def _across(W: Tensor) -> Tensor:
    """``Σ_{t≥s} Σ_{j<s} W[t,j]`` at s−1, the contributions that cross each step's decay; W is overwritten."""
    return W.cumsum_(-1).tril_(-1).sum(-2)


def add_final_m_gradient(
    stabilisers: Stabilisers, ranks: Ranks, dm: Tensor, written: Tensor, idle: Tensor, di: Tensor, da: Tensor
) -> Tensor:
    """Add, in place, the gradient that reaches the gates through the final m; return the initial m's part of it.

    Args:
        dm: cotangent of the final m, ``(sequences, N)``.
        written: ``⟨C', dC'⟩`` at the end of every chunk, ``(chunks, N)``. If two steps attain m, the earlier one
            counts.
        idle: the same for sequences without chunks, ``(sequences, N)``.
        di, da: ``(rows, L)``.
    """
    sequences, N = dm.shape
    L = di.shape[1]
    sequence, rank = (torch.from_numpy(index).to(dm.device) for index in ranks.sequence_and_rank())
    number = torch.arange(1, L + 1, device=dm.device)
    writes = stabilisers.i > stabilisers.a + stabilisers.before
    step = torch.where(writes, number, 0).amax(-1).unflatten(0, (ranks.chunks, N))
    step += (step > 0) * (rank * L)[:, None]
    argmax_step = step.new_zeros((sequences, N)).scatter_reduce_(0, sequence[:, None].expand(-1, N), step, "amax")

    last = torch.from_numpy(ranks.forward_rows()[1]).to(dm.device) - sequences
    c = torch.cat([written, idle]).index_select(0, last.remainder(ranks.chunks + sequences))
    g = dm - c
    before = torch.where(argmax_step == 0, g, 0.0)
    g, argmax_step = (x.index_select(0, sequence).flatten()[:, None] for x in (g, argmax_step))
    steps = (rank * L).repeat_interleave(N)[:, None] + number
    di += torch.where(steps == argmax_step, g, 0.0)
    da += torch.where(steps > argmax_step, g, 0.0)
    return before
