"""The mLSTM composed of PyTorch's own operators, on any device: `torch_impl._mlstm.chunkwise` over segments of chunks.

On a CPU a sequence is cut into segments of a few chunks, each computed from start to end. The intermediate results of a
segment take about ten megabytes, which the next segment reuses. The memory passes from segment to segment, its gradient
in the opposite direction. The value does not depend on the segments. What the backward pass needs at the start of a
segment is either a residual or recomputed.
"""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from reference.backends import Row
from torch_impl._arrays import ACCUMULATION
from torch_impl._differentiable import Implementation, NoResiduals
from torch_impl._mlstm import chunkwise
from torch_impl._mlstm.arguments import Arguments, Cotangents, Result, StepArguments, StepResult
from torch_impl._mlstm.chunk_layout import ChunkLayout, DenseChunkLayout, PackedChunkLayout
from torch_impl._mlstm.chunkwise import ChunkGates, ChunkResiduals, ChunkTokens, GateWeights
from torch_impl._mlstm.normaliser import LARGEST_M, Normaliser
from torch_impl._operators import packing
from torch_impl._records import ACCUMULATED, Axes

_CHUNK = 64
_SEGMENT = 1 << 21
"""Elements of a segment's tokens, memories and scores together: few, so that the next segment reuses their memory."""

_SHORT = 256
"""Maximum number of steps for which the backward pass recomputes the memory between segments instead of saving it."""


class Residuals(NamedTuple):
    """Residuals of a forward pass over dense sequences; the backward pass recomputes those that are None.

    Attributes:
        G: decayed scores inside every chunk.
        a, b: log decay of every step, and its sums from the start of the step's tile.
        M: stabiliser of every step.
        C_start, n_start, m_start: memory at the start of every chunk.
        segments: C and n at the start of every segment except the first, with n as the last column.
    """

    G: Annotated[Tensor | None, Axes("B chunks N L L", ACCUMULATED, "chunks B N L L", "keep_G")] = None
    a: Annotated[Tensor | None, Axes("B chunks N L", ACCUMULATED, "chunks B N L", "keep_gates")] = None
    b: Annotated[Tensor | None, Axes("B chunks N L", ACCUMULATED, "chunks B N L", "keep_gates")] = None
    M: Annotated[Tensor | None, Axes("B chunks N L", ACCUMULATED, "chunks B N L", "keep_M")] = None
    C_start: Annotated[Tensor | None, Axes("B chunks N K V", ACCUMULATED, "chunks B N K V", "keep_c")] = None
    n_start: Annotated[Tensor | None, Axes("B chunks N K", ACCUMULATED, "chunks B N K", "keep_c")] = None
    m_start: Annotated[Tensor | None, Axes("B chunks N", ACCUMULATED, "chunks B N", "keep_c")] = None
    segments: Annotated[Tensor | None, Axes("B segments N K V+1", ACCUMULATED)] = None


NO_RESIDUALS = Residuals()


def chunk_length(steps: int, chunk_size: int) -> int:
    """Steps per chunk: ``chunk_size``, or for 0 the most even split into at most 64 steps; at most ``steps``."""
    if steps < 1:
        return 1
    if chunk_size:
        return min(chunk_size, steps)
    return -(-steps // -(-steps // _CHUNK))


def _segment_length(q: Tensor, v: Tensor, rows: int, L: int) -> int:
    """The number of ranks, with ``rows`` chunks each, in a segment: a power of two, or 0 for all ranks."""
    if q.device.type != "cpu":
        return 0
    K, V = q.shape[-1], v.shape[-1]
    return 1 << (max(1, _SEGMENT // (max(1, rows) * (L * (K + V + L) + K * V))).bit_length() - 1)


def _cuts(ranks: int, length: int) -> list[tuple[int, int]]:
    length = length or max(1, ranks)
    return [(first, min(first + length, ranks)) for first in range(0, ranks, length)]


def _length_of(segments: int, ranks: int) -> int:
    """The segment length that divides this number of ranks into this number of segments."""
    length = 1
    while -(-ranks // length) > segments:
        length *= 2
    return length


def _chunks(q: Tensor, cu_seqlens: Tensor | None, chunk_size: int) -> ChunkLayout:
    N = q.shape[-2]
    if cu_seqlens is None:
        B, S = q.shape[:2]
        return DenseChunkLayout(B, S, N, chunk_length(S, chunk_size))
    bounds = packing("mlstm", "q", q, cu_seqlens)
    longest = int((bounds[1:] - bounds[:-1]).max(initial=0))
    return PackedChunkLayout(bounds, N, chunk_length(longest, chunk_size), q.device)


class _Walk:
    """The tokens of a call in chunks, and the segments in which they are processed."""

    def __init__(self, x: Arguments):
        self.x = x
        self.dtype = ACCUMULATION[x.v.dtype]
        self.scale = x.q.shape[-1] ** -0.5
        self.normaliser = Normaliser(x.stabilize_correctly, x.eps)
        self.chunks = _chunks(x.q, x.cu_seqlens, x.chunk_size)
        self.ranks = self.chunks.ranks
        self.count = len(self.ranks.running)
        rows = max(self.ranks.running, default=0) * self.chunks.N
        self.length = _segment_length(x.q, x.v, rows, self.chunks.L)
        self.i = self.chunks.gather(x.i, 0, self.count, self.dtype, -torch.inf)
        self.f = self.chunks.gather(x.f, 0, self.count, self.dtype, torch.inf)

    @property
    def cuts(self) -> list[tuple[int, int]]:
        """The first rank of every segment and the rank after its last."""
        return _cuts(self.count, self.length)

    def initial(self) -> tuple[Tensor, Tensor]:
        """The memory of every sequence, with n as a column of C, and m; new tensors, the longest sequence first."""
        chunks, x = self.chunks, self.x
        B, N, K, V = chunks.ranks.sequences, chunks.N, x.q.shape[-1], x.v.shape[-1]
        if x.C is None or x.n is None or x.m is None:
            return x.v.new_zeros((B, N, K, V + 1), dtype=self.dtype), x.v.new_zeros((B, N), dtype=self.dtype)
        memory = x.v.new_empty((B, N, K, V + 1), dtype=self.dtype)
        memory[..., :V], memory[..., V] = chunks.longest_first(x.C), chunks.longest_first(x.n)
        return memory, chunks.longest_first(x.m)

    def load(self, first: int, last: int) -> ChunkTokens:
        """The tokens of some ranks."""
        x, chunks, dtype = self.x, self.chunks, self.dtype
        v = chunks.gather(x.v, first, last, dtype, more=1)
        v[:, :, -1] = 1.0
        return ChunkTokens(chunks.gather(x.q, first, last, dtype), chunks.gather(x.k, first, last, dtype), v)

    def rows(self, first: int, last: int) -> slice:
        """The rows of some ranks among all rows."""
        running, N = self.ranks.running, self.chunks.N
        start = sum(running[:first]) * N
        return slice(start, start + sum(running[first:last]) * N)


def mlstm_forward(x: Arguments, keep: Sequence[str]) -> tuple[Result, Residuals]:
    """h and the final state, with the dtypes of `torch_impl.mlstm`, and the residuals named in ``keep``."""
    walk = _Walk(x)
    chunks, normaliser = walk.chunks, walk.normaliser
    memory, m = walk.initial()
    h = torch.empty_like(x.v, memory_format=torch.contiguous_format)
    weights, stabilisers = chunkwise.weights(walk.i, walk.f, m, walk.ranks, normaliser)
    keeps_starts = not {"C_start", "n_start", "m_start"}.isdisjoint(keep)
    scores: list[Tensor] = []
    starts: list[Tensor] = []
    segments: list[Tensor] = []
    for first, last in walk.cuts:
        ranks = walk.ranks.between(first, last)
        if "segments" in keep and first:
            segments.append(memory.clone())
        numerator, Y, end, G, start = chunkwise.forward(
            walk.load(first, last),
            weights.rows(walk.rows(first, last)),
            memory[: ranks.sequences],
            ranks,
            normaliser,
            walk.scale,
        )
        chunks.scatter(numerator.div_(Y), h, first, last)
        memory[: ranks.sequences] = end
        if "G" in keep:
            scores.append(G)
        if keeps_starts:
            starts.append(start.flatten(0, 1))
    results = Result(h, *(chunks.original_order(part) for part in (*_apart(memory), stabilisers.last)))
    if not keep:
        return results, NO_RESIDUALS
    by_row: dict[str, Tensor] = {"M": weights.m}
    if "G" in keep:
        by_row["G"] = torch.cat(scores) if scores else walk.i.new_empty((0, chunks.L, chunks.L))
    if {"a", "b"}.intersection(keep):
        by_row |= chunkwise.gates(walk.f)._asdict()
    if keeps_starts:
        joined = torch.cat(starts) if starts else memory.new_empty((0, *memory.shape[2:]))
        by_row["C_start"], by_row["n_start"] = _apart(joined)
        by_row["m_start"] = stabilisers.start.flatten()
    residuals = {name: _by_sequence(by_row[name], walk) for name in keep if name != "segments"}
    if "segments" in keep:
        B, N, K, V = memory.shape
        residuals["segments"] = torch.stack(segments, 1) if segments else memory.new_empty((B, 0, N, K, V))
    return results, Residuals(**residuals)


def _by_sequence(rows: Tensor, walk: _Walk) -> Tensor:
    """Rows of dense chunks as ``(B, chunks, N, ...)``."""
    return rows.reshape(walk.count, walk.ranks.sequences, walk.chunks.N, *rows.shape[1:]).transpose(0, 1)


def _by_row(residual: Tensor) -> Tensor:
    """Undo `_by_sequence`."""
    return residual.transpose(0, 1).flatten(0, 2)


def _apart(memory: Tensor) -> tuple[Tensor, Tensor]:
    """C and n as new tensors."""
    C, n = memory[..., :-1], memory[..., -1]
    return C.clone(memory_format=torch.contiguous_format), n.clone(memory_format=torch.contiguous_format)


def _residual_sizes(x: Arguments) -> dict[str, Any]:
    """The sizes of the letters that only residuals have; their sequences are dense."""
    B, S, N, _ = x.q.shape
    L = chunk_length(S, x.chunk_size)
    count = -(-S // L)
    segments = max(0, len(_cuts(count, _segment_length(x.q, x.v, B * N, L))) - 1)
    return {"L": L, "chunks": count, "segments": segments}


def _worth_keeping(x: Arguments) -> tuple[str, ...]:
    return ("segments",) if x.cu_seqlens is None and x.q.shape[1] > _SHORT else ()


def mlstm_backward(x: Arguments, cotangents: Cotangents, residuals: Residuals) -> list[Tensor]:
    """Gradients of q, k, v, i, f and of the initial C, n, m."""
    walk = _Walk(x)
    chunks, ranks = walk.chunks, walk.ranks
    initial, m = walk.initial()
    kept = _by_rows(residuals)
    if residuals.segments is not None:
        walk.length = _length_of(residuals.segments.shape[1] + 1, walk.count)
    weights, stabilisers = chunkwise.weights(walk.i, walk.f, m, ranks, walk.normaliser, kept)
    starts = _segment_starts(walk, weights, initial, kept, residuals.segments)
    dC, dm = _final(chunks, initial, cotangents)
    dq, dk, dv = (torch.empty_like(part, memory_format=torch.contiguous_format) for part in (x.q, x.k, x.v))
    di, da, written = torch.empty_like(walk.i), torch.empty_like(walk.f), walk.i.new_empty(len(walk.i))
    for (first, last), start in zip(reversed(walk.cuts), reversed(starts), strict=True):
        segment, rows = ranks.between(first, last), walk.rows(first, last)
        tokens, sequences, dh = walk.load(first, last), segment.sequences, cotangents.dh
        upstream = torch.zeros_like(tokens.v) if dh is None else chunks.gather(dh, first, last, walk.dtype, more=1)
        gradients, dC[:sequences], written[rows] = chunkwise.backward(
            tokens, weights.rows(rows), start, upstream, dC[:sequences], segment, walk.normaliser, walk.scale,
            kept.rows(rows, slice(sum(ranks.running[:first]), sum(ranks.running[:last]))),
        )  # fmt: skip
        di[rows], da[rows] = gradients.i, gradients.a
        for dx, out in zip(gradients[:3], (dq, dk, dv), strict=True):
            chunks.scatter(dx, out, first, last)
    dm_initial = (initial * dC).sum((-2, -1))
    if dm is not None:
        by_chunk = written.unflatten(0, (ranks.chunks, chunks.N))
        dm_initial += chunkwise.add_final_m_gradient(stabilisers, ranks, dm, by_chunk, dm_initial, di, da)
    da.mul_(logsigmoid(-walk.f).exp_())
    gradients = [dq, dk, dv]
    for dx, gate in ((di, x.i), (da, x.f)):
        gradients.append(torch.empty_like(gate, memory_format=torch.contiguous_format))
        chunks.scatter(dx, gradients[-1], 0, walk.count)
    return [*gradients, *(chunks.original_order(part) for part in (*_apart(dC), dm_initial))]


def _final(chunks: ChunkLayout, initial: Tensor, cotangents: Cotangents) -> tuple[Tensor, Tensor | None]:
    """Cotangents of the final memory, with that of n as a column of that of C, and of m, or None if it has none."""
    _, dC, dn, dm = cotangents
    memory = torch.zeros_like(initial)
    if dC is not None:
        memory[..., :-1] = chunks.longest_first(dC)
    if dn is not None:
        memory[..., -1] = chunks.longest_first(dn)
    if dm is not None:
        return memory, chunks.longest_first(dm)
    return memory, None if dC is None and dn is None else initial.new_zeros(initial.shape[:2])


def _by_rows(residuals: Residuals) -> ChunkResiduals:
    """The residuals of chunks, by rows."""
    if residuals is NO_RESIDUALS:
        return chunkwise.NO_RESIDUALS
    G, a, b, M, C, n = (None if part is None else _by_row(part) for part in residuals[:6])
    return ChunkResiduals(
        G=G,
        gates=None if a is None or b is None else ChunkGates(a, b),
        M=M,
        C=None if C is None or n is None else torch.cat([C, n[:, :, None]], -1),
        m=None if residuals.m_start is None else residuals.m_start.transpose(0, 1).flatten(0, 1),
    )


def _segment_starts(
    walk: _Walk, weights: GateWeights, initial: Tensor, kept: ChunkResiduals, segments: Tensor | None
) -> list[Tensor]:
    """The memory at the start of every segment; not meaningful if the memory of every chunk is a residual."""
    cuts = walk.cuts
    if segments is not None:
        return [initial, *segments.unbind(1)][: len(cuts)]
    memory, starts = initial, []
    for first, last in cuts:
        segment = walk.ranks.between(first, last)
        starts.append(memory[: segment.sequences])
        if last < walk.count and kept.C is None:
            end = chunkwise.advance(walk.load(first, last), weights.rows(walk.rows(first, last)), starts[-1], segment)
            memory = end if len(end) == len(memory) else torch.cat([end, memory[len(end) :]])
    return starts


def mlstm_step(x: StepArguments, keep: Sequence[str]) -> tuple[StepResult, NoResiduals]:
    """One step, with few operators, all on ``(B·N, ·, ·)``, because on a CPU their fixed cost is the cost of a step."""
    q, k, v, i, f, C, n, m_before, eps, _ = x
    out, dtype = v.dtype, ACCUMULATION[v.dtype]
    if out is not dtype:
        q, k, v = (part.to(dtype) for part in (q, k, v))
    if f.dtype is not dtype:
        i, f = i.to(dtype), f.to(dtype)
    (B, N, K), V = q.shape, v.shape[-1]
    i, m_before = i.contiguous(), m_before.contiguous()
    a = logsigmoid(f.contiguous())
    m = torch.maximum(a + m_before, i)
    finite = m.clamp(min=torch.finfo(dtype).min)
    kept = chunkwise.stabilised_decay(a, m_before, finite).exp_().view(B * N, 1, 1)
    k = k.reshape(B * N, K, 1) * torch.sub(i, finite).exp_().view(B * N, 1, 1)
    C = (C.reshape(B * N, K, V) * kept).addcmul_(k, v.reshape(B * N, 1, V))
    n = torch.addcmul(k, n.reshape(B * N, K, 1), kept)
    q, scale = q.reshape(B * N, 1, K), K**-0.5
    floor = m.clamp(max=LARGEST_M).neg_().exp_().view(B * N, 1, 1)
    Y = torch.maximum(torch.baddbmm(floor, q, n, beta=0, alpha=scale).abs_(), floor)
    h = torch.baddbmm(floor, q, C, beta=0, alpha=scale).div_(Y.add_(eps) if eps else Y).view(B, N, V)
    h = h if out is dtype else h.to(out)
    return StepResult(h, C.view(B, N, K, V), n.reshape(B, N, K), m), NO_STEP_RESIDUALS


NO_STEP_RESIDUALS = NoResiduals()

ROWS = (
    Row(
        backend="torch",
        operation="mlstm",
        implementation=Implementation(
            residuals=Residuals,
            forward=mlstm_forward,
            backward=mlstm_backward,
            sizes=_residual_sizes,
            worth_keeping=_worth_keeping,
        ),
    ),
    Row(
        backend="torch",
        operation="mlstm_step",
        implementation=Implementation(residuals=NoResiduals, forward=mlstm_step),
    ),
)
