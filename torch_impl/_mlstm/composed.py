"""The mLSTM composed of PyTorch's own operators, on any device: `torch_impl._mlstm.chunkwise` over segments of chunks.

On a CPU a sequence is cut into segments of a few chunks, each computed from start to end. The intermediate results of a
segment take about ten megabytes, which the next segment reuses. The memory passes from segment to segment, its gradient
in the opposite direction. The value does not depend on the segments. What the backward pass needs at the start of a
segment is either a residual or recomputed.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from reference.backends import Row
from torch_impl._arrays import ACCUMULATION
from torch_impl._chunk_layout import ChunkLayout, DenseChunkLayout, PackedChunkLayout, Ranks
from torch_impl._differentiable import Implementation, NoResiduals
from torch_impl._mlstm import chunkwise
from torch_impl._mlstm.arguments import Arguments, Cotangents, Result, StepArguments, StepResult
from torch_impl._mlstm.chunkwise import ChunkGates, ChunkResiduals, ChunkTokens, GateWeights, Stabilisers
from torch_impl._mlstm.normaliser import LARGEST_M, Normaliser
from torch_impl._operators import packing
from torch_impl._records import ACCUMULATED, Axes
from torch_impl._sequence_groups import LongestChunk, chunk_length, groups, longest_chunk
from torch_impl._threads import reconsider_threads, threads

_SEGMENT = 1 << 21
"""Elements of a segment's tokens, memories and scores together: few, so that the next segment reuses their memory."""

_PART = 0.6
"""The part of `_SEGMENT` that packed sequences have at once: a single one, not much longer, may have twice as much."""

_LARGE = 1 << 22
"""Number of multiplications inside the chunks of a call from which all threads compute it."""

_SHORT = 256
"""Maximum number of steps for which the backward pass recomputes the memory between segments instead of saving it."""


class Residuals(NamedTuple):
    """Residuals of a forward pass, of which packed sequences have only `segments`; the backward pass recomputes those
    that are None.

    Attributes:
        G: decayed scores inside every chunk.
        a, b: log decay of every step, and its sums from the start of the step's tile.
        M: stabiliser of every step.
        C_start, n_start, m_start: memory at the start of every chunk.
        segments: C and n at the start of every segment except the first, with n as the last column. Packed sequences
            have a row for each memory that a call may need; rows that it does not need are not written.
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


def _elements(x: Arguments, states: bool, L: int, several: bool) -> int:
    """The number of elements of a chunk of all heads: its tokens, its scores and, if it has one, its memory."""
    N, K, V = *x.q.shape[-2:], x.v.shape[-1]
    return max(1, N) * (L * (K + V + L) + (K * V if states or several else 0))


def _segment_length(x: Arguments, sequences: int, L: int, part: float = 1.0) -> int:
    """The number of ranks, with a chunk of that many sequences each, in this part of a segment: a power of two, or 0
    for all."""
    if x.q.device.type != "cpu":
        return 0
    fit = int(_SEGMENT * part) // (max(1, sequences) * _elements(x, True, L, True))
    return 1 << (max(1, fit).bit_length() - 1)


def _number_of_segments(x: Arguments, sequences: int, ranks: int, L: int) -> int:
    """The number of segments of dense sequences."""
    return -(-ranks // (_segment_length(x, sequences, L) or max(1, ranks)))


def _cuts(ranks: int, segments: int) -> list[tuple[int, int]]:
    """The first rank of every segment and the rank after its last."""
    length = -(-ranks // max(1, segments))
    return [(first, min(first + length, ranks)) for first in range(0, ranks, length)] if ranks else []


def _longest_chunk(x: Arguments, states: bool = True) -> LongestChunk:
    return longest_chunk(x.q.shape[-1], x.v.shape[-1], states)


def _dense(x: Arguments) -> DenseChunkLayout:
    B, S, N, _ = x.q.shape
    return DenseChunkLayout(B, S, N, chunk_length(S, x.chunk_size, _longest_chunk(x)))


def _span(x: Arguments, saved: Tensor | None = None) -> int:
    """The maximum number of steps of a segment of one packed sequence, or 0 for any number.

    Args:
        saved: the residual `segments` of the forward pass, if there is one. It may be that of a call with fewer heads,
            and so with longer segments, to whose heads a transform has added an axis.
    """
    L = x.chunk_size or _longest_chunk(x).several
    if saved is None:
        return L * _segment_length(x, 1, L, _PART)
    # A span half as long would have more memories, because there is at least one.
    while x.q.shape[0] // L > saved.shape[0]:
        L *= 2
    return L


def _packed(x: Arguments, states: bool, span: int) -> Iterator[tuple["Walk", slice]]:
    """A walk over every group of packed sequences, and its rows of the residual `segments`.

    The groups and rows are the same in both passes, if these have the same ``span``; ``states``, whether any state is
    given or requested or has a cotangent, may differ.
    """
    assert x.cu_seqlens is not None
    bounds = packing("mlstm", "q", x.q, x.cu_seqlens)
    stateful = x.return_state or x.C is not None
    room = int(_SEGMENT * _PART) if x.q.device.type == "cpu" else None
    elements, row = partial(_elements, x, stateful), 0
    for group in groups(np.diff(bounds), x.chunk_size, elements, room, _longest_chunk(x, stateful), span):
        chunks = PackedChunkLayout(bounds, group.sequences, x.q.shape[1], group.L, x.q.device)
        in_batches = len(group.batches) > 1
        segments = _batches(chunks, group.batches) if in_batches else _segments(chunks, group.segments)
        first, row = row, row + group.segments - 1
        yield Walk(x, chunks, states, segments), slice(first, row)


class _Segment(NamedTuple):
    """Chunks that are computed together: those of some ranks of a layout.

    Attributes:
        sequences: their sequences among those of the walk.
        rows: their rows among those of the walk.
    """

    chunks: ChunkLayout
    first: int
    last: int
    sequences: slice
    rows: slice | Tensor

    @property
    def ranks(self) -> Ranks:
        return self.chunks.ranks.between(self.first, self.last)


def _segments(chunks: ChunkLayout, number: int) -> list[_Segment]:
    """Parts of a layout, of equally many ranks."""
    running, N, found = chunks.ranks.running, chunks.N, []
    for first, last in _cuts(len(running), number):
        rows = slice(sum(running[:first]) * N, sum(running[:last]) * N)
        found.append(_Segment(chunks, first, last, slice(running[first]), rows))
    return found


def _batches(chunks: PackedChunkLayout, batches: Sequence[tuple[int, int]]) -> list[_Segment]:
    """Parts of a layout that have all chunks of some sequences each."""
    parts = [(first, last, *chunks.part(first, last)) for first, last in batches]
    return [_Segment(part, 0, len(part.ranks.running), slice(first, last), rows) for first, last, part, rows in parts]


class Walk:
    """Tokens in chunks, and the segments in which they are processed.

    Attributes:
        memory: whether chunks read a memory or pass one on.
        carries: whether segments do. If not, the memory before and after each is 0 or not needed.
    """

    def __init__(self, x: Arguments, chunks: ChunkLayout, states: bool, segments: Sequence[_Segment]):
        self.x = x
        self.dtype = ACCUMULATION[x.v.dtype]
        self.scale = x.q.shape[-1] ** -0.5
        self.normaliser = Normaliser(x.stabilize_correctly, x.eps)
        self.chunks = chunks
        self.ranks = chunks.ranks
        self.count = len(self.ranks.running)
        self.memory = states or self.count > 1
        self.segments = segments
        self.carries = states or any(segment.first for segment in segments)
        self.i = chunks.gather(x.i, 0, self.count, self.dtype, -torch.inf)
        self.f = chunks.gather(x.f, 0, self.count, self.dtype, torch.inf)

    def initial(self) -> tuple[Tensor | None, Tensor]:
        """The memory of every sequence, with n as a column of C, or None without `memory`; and m. New tensors, of which
        the memory may be written if it `carries`."""
        chunks, x = self.chunks, self.x
        B, N, K, V = chunks.ranks.sequences, chunks.N, x.q.shape[-1], x.v.shape[-1]
        if x.C is None or x.n is None or x.m is None:
            memory = None
            if self.memory:
                memory = x.v.new_zeros((B if self.carries else 1, N, K, V + 1), dtype=self.dtype).expand(B, -1, -1, -1)
            return memory, x.v.new_zeros((B, N), dtype=self.dtype)
        memory = x.v.new_empty((B, N, K, V + 1), dtype=self.dtype)
        memory[..., :V], memory[..., V] = chunks.select(x.C), chunks.select(x.n)
        return memory, chunks.select(x.m)

    def load(self, segment: _Segment) -> ChunkTokens:
        """The tokens of a segment."""
        k, v = self.writes(segment)
        return ChunkTokens(segment.chunks.gather(self.x.q, segment.first, segment.last, self.dtype), k, v)

    def writes(self, segment: _Segment) -> tuple[Tensor, Tensor]:
        """k and v of a segment, as in `ChunkTokens`."""
        chunks, first, last = segment[:3]
        v = chunks.gather(self.x.v, first, last, self.dtype, more=1)
        v[:, :, -1] = 1.0
        return chunks.gather(self.x.k, first, last, self.dtype), v


def dense_walk(x: Arguments, segments: Tensor | None = None) -> Walk:
    """The walk over dense sequences, with the segments of the residual if there is one."""
    chunks = _dense(x)
    B, count = chunks.B, len(chunks.ranks.running)
    number = _number_of_segments(x, B, count, chunks.L) if segments is None else segments.shape[1] + 1
    return Walk(x, chunks, True, _segments(chunks, number))


class _Forward(NamedTuple):
    """Intermediate results of a forward pass: the final memory, and by segment the residuals that were asked for."""

    memory: Tensor | None
    weights: GateWeights
    stabilisers: Stabilisers
    scores: list[Tensor]
    starts: list[Tensor]
    segments: list[Tensor]


def _forward(walk: Walk, h: Tensor, keep: Sequence[str]) -> _Forward:
    """Write h of all chunks of a walk."""
    memory, m = walk.initial()
    initial_n = None if memory is None else memory[..., -1]
    weights, stabilisers = chunkwise.weights(walk.i, walk.f, m, walk.ranks, walk.normaliser, initial_n=initial_n)
    done = _Forward(memory=memory, weights=weights, stabilisers=stabilisers, scores=[], starts=[], segments=[])
    keeps_starts = not {"C_start", "n_start", "m_start"}.isdisjoint(keep)
    for segment in walk.segments:
        reconsider_threads()
        chunks, first, last, sequences, rows = segment
        if "segments" in keep and first and memory is not None:
            done.segments.append(memory.clone())
        numerator, Y, end, G, start = chunkwise.forward(
            walk.load(segment),
            weights.rows(rows),
            None if memory is None else memory[sequences],
            segment.ranks,
            walk.normaliser,
            walk.scale,
        )
        chunks.scatter(numerator.div_(Y), h, first, last)
        if memory is not None and end is not None and walk.carries:
            memory[sequences] = end
        if "G" in keep:
            done.scores.append(G)
        if keeps_starts and start is not None:
            done.starts.append(start.flatten(0, 1))
    if memory is not None and walk.carries and stabilisers.last_weight is not None:
        memory *= stabilisers.last_weight[:, :, None, None]
    return done


def threads_of(x: Arguments) -> threads:
    """The threads of a call, by the multiplications inside chunks."""
    steps = x.q.shape[0] if x.cu_seqlens is not None else x.q.shape[1]
    L = chunk_length(steps, x.chunk_size, _longest_chunk(x))
    return threads(x.q.device, (x.q.numel() + x.v.numel()) * L >= _LARGE)


def mlstm_forward(x: Arguments, keep: Sequence[str]) -> tuple[Result, Residuals]:
    """h and the final state, with the dtypes of `torch_impl.mlstm`, and the residuals named in ``keep``."""
    with threads_of(x):
        return _whole_forward(x, keep)


def _whole_forward(x: Arguments, keep: Sequence[str]) -> tuple[Result, Residuals]:
    h = torch.empty_like(x.v, memory_format=torch.contiguous_format)
    if x.cu_seqlens is not None:
        return _packed_forward(x, h, keep)
    walk = dense_walk(x)
    done = _forward(walk, h, keep)
    assert done.memory is not None
    results = Result(h, *apart(done.memory), done.stabilisers.last)
    return results, _residuals(walk, done, keep) if keep else NO_RESIDUALS


def _packed_forward(x: Arguments, h: Tensor, keep: Sequence[str]) -> tuple[Result, Residuals]:
    states = x.return_state or x.C is not None
    x, state = _contiguous(x), _states(x, x.return_state, x.C, x.n, x.m)
    N, K, V = *x.q.shape[1:], x.v.shape[-1]
    saved = h.new_empty((_saved(x) if keep else 0, N, K, V + 1), dtype=ACCUMULATION[h.dtype])
    for walk, rows in _packed(x, states, _span(x)):
        done = _forward(walk, h, keep)
        for memory, start in zip(saved[rows], done.segments, strict=False):
            memory.copy_(start[0])
        if x.return_state and done.memory is not None:
            parts = (done.memory[..., :-1], done.memory[..., -1], done.stabilisers.last)
            for part, whole in zip(parts, state, strict=True):
                walk.chunks.place(part, whole)
    return Result(h, *state), Residuals(segments=saved) if keep else NO_RESIDUALS


def _contiguous(x: Arguments) -> Arguments:
    """The call with contiguous tokens, from which any number of groups can be gathered without another copy."""
    return x._replace(**{name: getattr(x, name).contiguous() for name in ("q", "k", "v", "i", "f")})


def _states(
    x: Arguments, wanted: bool, C: Tensor | None, n: Tensor | None, m: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Copies of the states, or of their cotangents, of packed sequences, with zeros for None: the result for empty
    sequences. Of no sequence at all if they are not wanted."""
    N, K, V = *x.q.shape[1:], x.v.shape[-1]
    dtype, B = ACCUMULATION[x.v.dtype], x.cu_seqlens.shape[0] - 1 if wanted and x.cu_seqlens is not None else 0
    shapes = ((B, N, K, V), (B, N, K), (B, N))
    parts = (
        x.v.new_zeros(shape, dtype=dtype)
        if part is None or not wanted
        else part.clone(memory_format=torch.contiguous_format)
        for part, shape in zip((C, n, m), shapes, strict=True)
    )
    C, n, m = parts
    return C, n, m


def _residuals(walk: Walk, done: _Forward, keep: Sequence[str]) -> Residuals:
    """The residuals named in ``keep``, of dense sequences."""
    memory, by_row = done.memory, {"M": done.weights.m}
    assert memory is not None
    if "G" in keep:
        L = walk.chunks.L
        by_row["G"] = torch.cat(done.scores) if done.scores else walk.i.new_empty((0, L, L))
    if {"a", "b"}.intersection(keep):
        by_row |= chunkwise.gates(walk.f)._asdict()
    if not {"C_start", "n_start", "m_start"}.isdisjoint(keep):
        joined = torch.cat(done.starts) if done.starts else memory.new_empty((0, *memory.shape[2:]))
        by_row["C_start"], by_row["n_start"] = apart(joined)
        by_row["m_start"] = done.stabilisers.start.flatten()
    residuals = {name: _by_sequence(by_row[name], walk) for name in keep if name != "segments"}
    if "segments" in keep:
        B, N, K, V = memory.shape
        residuals["segments"] = torch.stack(done.segments, 1) if done.segments else memory.new_empty((B, 0, N, K, V))
    return Residuals(**residuals)


def _by_sequence(rows: Tensor, walk: Walk) -> Tensor:
    """Rows of dense chunks as ``(B, chunks, N, ...)``."""
    return rows.reshape(walk.count, walk.ranks.sequences, walk.chunks.N, *rows.shape[1:]).transpose(0, 1)


def _by_row(residual: Tensor) -> Tensor:
    """Undo `_by_sequence`."""
    return residual.transpose(0, 1).flatten(0, 2)


def apart(memory: Tensor) -> tuple[Tensor, Tensor]:
    """C and n as new tensors."""
    C, n = memory[..., :-1], memory[..., -1]
    return C.clone(memory_format=torch.contiguous_format), n.clone(memory_format=torch.contiguous_format)


def _saved(x: Arguments) -> int:
    """The number of memories that segments of packed sequences may start from, whatever the lengths of sequences."""
    span = _span(x)
    return x.q.shape[0] // span if span else 0


def _residual_sizes(x: Arguments) -> dict[str, Any]:
    """The sizes of the letters that only residuals have."""
    if x.cu_seqlens is not None:
        return {"segments": _saved(x)}
    B, S = x.q.shape[:2]
    L = chunk_length(S, x.chunk_size, _longest_chunk(x))
    count = -(-S // L)
    return {"L": L, "chunks": count, "segments": max(0, len(_cuts(count, _number_of_segments(x, B, count, L))) - 1)}


def _worth_keeping(x: Arguments) -> tuple[str, ...]:
    if x.cu_seqlens is not None:
        return ("segments",) if x.q.shape[0] > _SHORT and _saved(x) else ()
    return ("segments",) if x.q.shape[1] > _SHORT else ()


def mlstm_backward(x: Arguments, cotangents: Cotangents, residuals: Residuals) -> list[Tensor]:
    """Gradients of q, k, v, i, f and of the initial C, n, m."""
    with threads_of(x):
        return _whole_backward(x, cotangents, residuals)


def _whole_backward(x: Arguments, cotangents: Cotangents, residuals: Residuals) -> list[Tensor]:
    gradients = [torch.empty_like(part, memory_format=torch.contiguous_format) for part in (x.q, x.k, x.v, x.i, x.f)]
    if x.cu_seqlens is not None:
        return [*gradients, *_packed_backward(x, cotangents, residuals.segments, gradients)]
    dC, dm = _backward(dense_walk(x, residuals.segments), cotangents, residuals, gradients)
    assert dC is not None
    return [*gradients, *apart(dC), dm]


def _packed_backward(
    x: Arguments, cotangents: Cotangents, saved: Tensor | None, gradients: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Write the gradients of packed tokens; return those of the initial states, of which there are none without any."""
    dh, *dlast = cotangents
    states = any(part is not None for part in (x.C, *dlast))
    x, dstate = _contiguous(x), _states(x, x.C is not None, *dlast)
    cotangents = cotangents._replace(dh=None if dh is None else dh.contiguous())
    for walk, rows in _packed(x, states, _span(x, saved)):
        residuals = NO_RESIDUALS if saved is None else Residuals(segments=saved[None, rows])
        dC, dm = _backward(walk, cotangents, residuals, gradients)
        if x.C is not None and dC is not None:
            for part, whole in zip((dC[..., :-1], dC[..., -1], dm), dstate, strict=True):
                walk.chunks.place(part, whole)
    return dstate


def _backward(
    walk: Walk, cotangents: Cotangents, residuals: Residuals, gradients: Sequence[Tensor]
) -> tuple[Tensor | None, Tensor]:
    """Write the gradients of the tokens of a walk; return those of the initial memory and of its m."""
    chunks, ranks = walk.chunks, walk.ranks
    initial, m = walk.initial()
    kept = _by_rows(residuals)
    initial_n = None if initial is None else initial[..., -1]
    weights, stabilisers = chunkwise.weights(walk.i, walk.f, m, ranks, walk.normaliser, kept, initial_n)
    di, da, written = torch.empty_like(walk.i), torch.empty_like(walk.f), walk.i.new_empty(len(walk.i))
    dC, dm = (initial, None) if initial is None or not walk.carries else _final(chunks, initial, cotangents)
    if dC is not None and walk.carries and stabilisers.last_weight is not None:
        dC *= stabilisers.last_weight[:, :, None, None]
    starts = [] if initial is None else _segment_starts(walk, weights, initial, kept, residuals.segments)
    for number, segment in reversed([*enumerate(walk.segments)]):
        reconsider_threads()
        part, first, last, sequences, rows = segment
        tokens, dh = walk.load(segment), cotangents.dh
        upstream = torch.zeros_like(tokens.v) if dh is None else part.gather(dh, first, last, walk.dtype, more=1)
        if dC is None:
            found = chunkwise.backward_alone(tokens, weights.rows(rows), upstream, walk.normaliser, walk.scale)
        else:
            own = chunkwise.NO_RESIDUALS
            if isinstance(rows, slice):
                own = kept.rows(rows, slice(sum(ranks.running[:first]), sum(ranks.running[:last])))
            found, dC_before, written[rows] = chunkwise.backward(
                tokens, weights.rows(rows), starts[number], upstream, dC[sequences], segment.ranks, walk.normaliser,
                walk.scale, own,
            )  # fmt: skip
            if walk.carries:
                dC[sequences] = dC_before
        di[rows], da[rows] = found.i, found.a
        for dx, out in zip(found[:3], gradients[:3], strict=True):
            part.scatter(dx, out, first, last)
    dm_initial = torch.zeros_like(m)
    if initial is not None and dC is not None and walk.carries:
        dm_initial = (initial * dC).sum((-2, -1))
    if dm is not None:
        by_chunk = written.unflatten(0, (ranks.chunks, chunks.N))
        dm_initial += chunkwise.add_final_m_gradient(stabilisers, ranks, dm, by_chunk, dm_initial, di, da)
    da.mul_(logsigmoid(-walk.f).exp_())
    for dx, out in zip((di, da), gradients[3:], strict=True):
        chunks.scatter(dx, out, 0, walk.count)
    return dC, dm_initial


def _final(chunks: ChunkLayout, initial: Tensor, cotangents: Cotangents) -> tuple[Tensor, Tensor | None]:
    """Cotangents of the final memory, with that of n as a column of that of C, and of m, or None if it has none."""
    _, dC, dn, dm = cotangents
    memory = torch.zeros_like(initial)
    if dC is not None:
        memory[..., :-1] = chunks.select(dC)
    if dn is not None:
        memory[..., -1] = chunks.select(dn)
    if dm is not None:
        return memory, chunks.select(dm)
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
    walk: Walk, weights: GateWeights, initial: Tensor, kept: ChunkResiduals, segments: Tensor | None
) -> list[Tensor]:
    """The memory at the start of every segment; not meaningful if the memory of every chunk is a residual."""
    if segments is not None and segments.shape[1]:
        return [initial, *segments.unbind(1)][: len(walk.segments)]
    memory, starts = initial, []
    for segment in walk.segments:
        starts.append((memory if segment.first else initial)[segment.sequences])
        if segment.last < len(segment.chunks.ranks.running) and kept.C is None:
            k, v = walk.writes(segment)
            memory = chunkwise.advance(k, v, weights.rows(segment.rows), starts[-1], segment.ranks)
    return starts


def mlstm_step(x: StepArguments, keep: Sequence[str]) -> tuple[StepResult, NoResiduals]:
    """One step, with few operators, all on ``(B·N, ·, ·)``, because on a CPU their fixed cost is the cost of a step.

    A small step uses no operator that PyTorch runs on several threads whatever its size: between the operators of a
    step the threads fall asleep, and waking them takes longer than the operator.
    """
    if x.C.numel() <= _ONE_THREAD:
        return _step(x)
    with threads(x.C.device, x.C.numel() >= _LARGE_STATE):
        return _step(x)


def _step(x: StepArguments) -> tuple[StepResult, NoResiduals]:
    q, k, v, i, f, C, n, m_before, eps, _ = x
    out, dtype = v.dtype, ACCUMULATION[v.dtype]
    if out is not dtype:
        q, k, v = (part.to(dtype) for part in (q, k, v))
    if f.dtype is not dtype:
        i, f = i.to(dtype), f.to(dtype)
    (B, N, K), V = q.shape, v.shape[-1]
    i, m_before = i.contiguous(), m_before.contiguous()
    a = softplus(f.contiguous().neg(), threshold=_LINEAR).neg_()
    m = torch.maximum(a + m_before, i)
    large = chunkwise.rounds_up(m)
    # An m that is not large is not infinite.
    finite = m.clamp(min=torch.finfo(dtype).min) if large else m
    kept, written = chunkwise.stabilised_decay(a, m_before, finite, False), torch.sub(i, finite)
    if large:
        exact = chunkwise.single_step(m, chunkwise.stabilised_decay(a, m_before, finite, True), written, n)
        of_large = chunkwise.is_large(m)
        m, kept, written = (torch.where(of_large, x, y) for x, y in zip(exact, (m, kept, written), strict=True))
    kept = kept.exp_().view(B * N, 1, 1)
    k = k.reshape(B * N, K, 1) * written.exp_().view(B * N, 1, 1)
    C = (C.reshape(B * N, K, V) * kept).addcmul_(k, v.reshape(B * N, 1, V))
    n = torch.addcmul(k, n.reshape(B * N, K, 1), kept)
    scale = K**-0.5
    floor = m.clamp(max=LARGEST_M).neg_().exp_().view(B * N, 1, 1)
    if C.device.type == "cpu" and C.numel() <= _ONE_THREAD:
        q = q.reshape(B * N, K, 1) * scale
        denominator, numerator = (q * n).sum(1, keepdim=True), (C * q).sum(1, keepdim=True)
    else:
        q = q.reshape(B * N, 1, K)
        denominator, numerator = (torch.baddbmm(floor, q, x, beta=0, alpha=scale) for x in (n, C))
    Y = torch.maximum(denominator.abs_(), floor)
    h = numerator.div_(Y.add_(eps) if eps else Y).view(B, N, V)
    h = h if out is dtype else h.to(out)
    return StepResult(h, C.view(B, N, K, V), n.reshape(B, N, K), m), NO_STEP_RESIDUALS


NO_STEP_RESIDUALS = NoResiduals()

_ONE_THREAD = 1 << 15
"""Number of elements up to which PyTorch computes elementwise operators and sums on one thread of a CPU."""

_LARGE_STATE = 1 << 18
"""Number of elements of C from which all threads compute a step."""

_LINEAR = 40.0
"""From here on softplus(x) rounds to x in float64 too."""

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
