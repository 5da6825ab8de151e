"""The mLSTM out of PyTorch's own operators, on any device: `torch_impl._mlstm.chunkwise` over blocks of chunks.

On a CPU a sequence is cut into blocks of a few chunks, each worked on from start to end: what is made of it takes ten
megabytes or so, which the next block uses again. The memory goes from block to block, its gradient back. A block is a
cut like any other and changes no value. What a backward pass needs at a block's start is kept, or walked to once more.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from torch_impl._arrays import ACCUMULATION
from torch_impl._mlstm import chunkwise
from torch_impl._mlstm.chunk_layout import Chunks, DenseChunks, PackedChunks
from torch_impl._mlstm.chunkwise import Gates, Kept, Normaliser, Tokens
from torch_impl._operators import packing

KEPT = (1, 3, 1, 3, 1)
"""How many tensors are kept: G; a, b and F; M; C, n and m at the start of every chunk; C and n of every block."""

_CHUNK = 64
_BLOCK = 1 << 21
"""Elements of a block's tokens, memories and scores together: few, for what is made of them serves the next again."""


class Flags(NamedTuple):
    """What a forward pass keeps."""

    G: bool = False
    gates: bool = False
    M: bool = False
    c: bool = False
    blocks: bool = False


def chunk_length(steps: int, chunk_size: int) -> int:
    """Steps a chunk: as asked, or (0) as even as they come below about 64; never more than there are."""
    if steps < 1:
        return 1
    if chunk_size:
        return min(chunk_size, steps)
    return -(-steps // -(-steps // _CHUNK))


def _block_length(q: Tensor, v: Tensor, rows: int, L: int) -> int:
    """How many ranks of ``rows`` chunks a block has, a power of two; 0 for all of them."""
    if q.device.type != "cpu":
        return 0
    K, V = q.shape[-1], v.shape[-1]
    return 1 << (max(1, _BLOCK // (max(1, rows) * (L * (K + V + L) + K * V))).bit_length() - 1)


def _cuts(ranks: int, length: int) -> list[tuple[int, int]]:
    length = length or max(1, ranks)
    return [(first, min(first + length, ranks)) for first in range(0, ranks, length)]


def _length_of(blocks: int, ranks: int) -> int:
    """The block length that cuts so many ranks into so many blocks."""
    length = 1
    while -(-ranks // length) > blocks:
        length *= 2
    return length


def _chunks(q: Tensor, cu_seqlens: Tensor | None, chunk_size: int) -> Chunks:
    N = q.shape[-2]
    if cu_seqlens is None:
        B, S = q.shape[:2]
        return DenseChunks(B, S, N, chunk_length(S, chunk_size))
    bounds = packing("mlstm", "q", q, cu_seqlens)
    longest = int((bounds[1:] - bounds[:-1]).max(initial=0))
    return PackedChunks(bounds, N, chunk_length(longest, chunk_size), q.device)


class _Walk:
    """A call's tokens in chunks, and the blocks in which they are visited."""

    def __init__(
        self,
        tokens: Tokens,
        gates: tuple[Tensor, Tensor],
        cu_seqlens: Tensor | None,
        chunk_size: int,
        normaliser: Normaliser,
    ):
        q, _, v = self.tokens = tokens
        self.dtype = ACCUMULATION[v.dtype]
        self.scale = q.shape[-1] ** -0.5
        self.normaliser = normaliser
        self.chunks = _chunks(q, cu_seqlens, chunk_size)
        self.ranks = self.chunks.ranks
        self.count = len(self.ranks.running)
        rows = max(self.ranks.running, default=0) * self.chunks.N
        self.length = _block_length(q, v, rows, self.chunks.L)
        i, f = gates
        self.i = self.chunks.gather(i, 0, self.count, self.dtype, -torch.inf)
        self.f = self.chunks.gather(f, 0, self.count, self.dtype, torch.inf)

    @property
    def cuts(self) -> list[tuple[int, int]]:
        return _cuts(self.count, self.length)

    def initial(self, C: Tensor | None, n: Tensor | None, m: Tensor | None) -> tuple[Tensor, Tensor]:
        """The memory of every lane, n beside C, and m; fresh tensors."""
        chunks, (q, _, v) = self.chunks, self.tokens
        B, N, K, V = chunks.ranks.lanes, chunks.N, q.shape[-1], v.shape[-1]
        if C is None or n is None or m is None:
            return v.new_zeros((B, N, K, V + 1), dtype=self.dtype), v.new_zeros((B, N), dtype=self.dtype)
        memory = v.new_empty((B, N, K, V + 1), dtype=self.dtype)
        memory[..., :V], memory[..., V] = chunks.lanes_first(C), chunks.lanes_first(n)
        return memory, chunks.lanes_first(m)

    def load(self, first: int, last: int) -> Tokens:
        q, k, v = self.tokens
        chunks, dtype = self.chunks, self.dtype
        v = chunks.gather(v, first, last, dtype, more=1)
        v[:, :, -1] = 1.0
        return Tokens(chunks.gather(q, first, last, dtype), chunks.gather(k, first, last, dtype), v)

    def rows(self, first: int, last: int) -> slice:
        """The rows of some ranks among all."""
        running, N = self.ranks.running, self.chunks.N
        start = sum(running[:first]) * N
        return slice(start, start + sum(running[first:last]) * N)


def mlstm_forward(
    tokens: Tokens,
    gates: tuple[Tensor, Tensor],
    state: tuple[Tensor | None, Tensor | None, Tensor | None],
    cu_seqlens: Tensor | None,
    chunk_size: int,
    normaliser: Normaliser,
    flags: Flags,
) -> list[Tensor]:
    """h, C, n, m as `torch_impl.mlstm` has them, and what ``flags`` say, with the head axis where h has it."""
    walk = _Walk(tokens, gates, cu_seqlens, chunk_size, normaliser)
    chunks = walk.chunks
    memory, m = walk.initial(*state)
    h = torch.empty_like(tokens.v, memory_format=torch.contiguous_format)
    weights, stabilisers = chunkwise.weights(walk.i, walk.f, m, walk.ranks, normaliser)
    scores: list[Tensor] = []
    starts: list[Tensor] = []
    blocks: list[Tensor] = []
    for first, last in walk.cuts:
        ranks = walk.ranks.between(first, last)
        if flags.blocks and first:
            blocks.append(memory.clone())
        numerator, Y, end, G, start = chunkwise.forward(
            walk.load(first, last),
            weights.rows(walk.rows(first, last)),
            memory[: ranks.lanes],
            ranks,
            normaliser,
            walk.scale,
        )
        chunks.scatter(numerator.div_(Y), h, first, last)
        memory[: ranks.lanes] = end
        if flags.G:
            scores.append(G)
        if flags.c:
            starts.append(start.flatten(0, 1))
    outputs = [h, *(chunks.sequences_first(part) for part in (*_apart(memory), stabilisers.last))]
    kept = [torch.cat(scores) if scores else walk.i.new_empty((0, chunks.L, chunks.L))] if flags.G else []
    if flags.gates:
        kept += chunkwise.gates(walk.f)
    if flags.M:
        kept.append(weights.m)
    if flags.c:
        joined = torch.cat(starts) if starts else memory.new_empty((0, *memory.shape[2:]))
        kept += [*_apart(joined), stabilisers.start.flatten()]
    shape = walk.count, walk.ranks.lanes, chunks.N
    outputs += [part.reshape(*shape, *part.shape[1:]).transpose(0, 1) for part in kept]
    if flags.blocks:
        B, N, K, V = memory.shape
        outputs.append(torch.stack(blocks, 1) if blocks else memory.new_empty((B, 0, N, K, V)))
    return outputs


def _apart(memory: Tensor) -> tuple[Tensor, Tensor]:
    """C and n, fresh tensors."""
    C, n = memory[..., :-1], memory[..., -1]
    return C.clone(memory_format=torch.contiguous_format), n.clone(memory_format=torch.contiguous_format)


def kept_shapes(q: Tensor, v: Tensor, chunk_size: int, flags: Flags) -> list[Tensor]:
    """Empty tensors like those that `mlstm_forward` keeps."""
    dtype = ACCUMULATION[v.dtype]
    B, S, N, K = q.shape
    L = chunk_length(S, chunk_size)
    count, V = -(-S // L), v.shape[-1]
    shapes = [(L, L)] * flags.G + [(L,), (L,), (L, L)] * flags.gates + [(L,)] * flags.M
    shapes += [(K, V), (K,), ()] * flags.c
    kept = [v.new_empty((count, B, N, *shape), dtype=dtype).transpose(0, 1) for shape in shapes]
    if flags.blocks:
        blocks = max(0, len(_cuts(count, _block_length(q, v, B * N, L))) - 1)
        kept.append(v.new_empty((B, blocks, N, K, V + 1), dtype=dtype))
    return kept


def mlstm_backward(
    tokens: Tokens,
    gates: tuple[Tensor, Tensor],
    state: tuple[Tensor | None, Tensor | None, Tensor | None],
    cu_seqlens: Tensor | None,
    dh: Tensor | None,
    dlast: tuple[Tensor | None, Tensor | None, Tensor | None],
    chunk_size: int,
    normaliser: Normaliser,
    kept: Sequence[Tensor],
    flags: Flags,
) -> list[Tensor]:
    """Gradients of q, k, v, i, f and of the initial C, n, m."""
    walk = _Walk(tokens, gates, cu_seqlens, chunk_size, normaliser)
    chunks, ranks = walk.chunks, walk.ranks
    initial, m = walk.initial(*state)
    left, blocks = _left(kept, flags)
    if blocks is not None:
        walk.length = _length_of(blocks.shape[1] + 1, walk.count)
    weights, stabilisers = chunkwise.weights(walk.i, walk.f, m, ranks, normaliser, left)
    starts = _starts(walk, weights, initial, left, blocks)
    dC, dm = _final(chunks, initial, *dlast)
    i, f = gates
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in tokens)
    di, da, written = torch.empty_like(walk.i), torch.empty_like(walk.f), walk.i.new_empty(len(walk.i))
    for (first, last), start in zip(reversed(walk.cuts), reversed(starts), strict=True):
        block, rows = ranks.between(first, last), walk.rows(first, last)
        x = walk.load(first, last)
        upstream = torch.zeros_like(x.v) if dh is None else chunks.gather(dh, first, last, walk.dtype, more=1)
        (*gradients, di[rows], da[rows]), dC[: block.lanes], written[rows] = chunkwise.backward(
            x, weights.rows(rows), start, upstream, dC[: block.lanes], block, normaliser, walk.scale,
            _rows_of(left, rows, slice(sum(ranks.running[:first]), sum(ranks.running[:last]))),
        )  # fmt: skip
        for dx, out in zip(gradients, (dq, dk, dv), strict=True):
            chunks.scatter(dx, out, first, last)
    through = (initial * dC).sum((-2, -1))
    if dm is not None:
        by_chunk = written.unflatten(0, (ranks.chunks, chunks.N))
        through += chunkwise.through_m(stabilisers, ranks, dm, by_chunk, through, di, da)
    da.mul_(logsigmoid(-walk.f).exp_())
    gradients = [dq, dk, dv]
    for dx, x in ((di, i), (da, f)):
        gradients.append(torch.empty_like(x, memory_format=torch.contiguous_format))
        chunks.scatter(dx, gradients[-1], 0, walk.count)
    return [*gradients, *(chunks.sequences_first(part) for part in (*_apart(dC), through))]


def _final(
    chunks: Chunks, initial: Tensor, dC: Tensor | None, dn: Tensor | None, dm: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Cotangents of the final memory, n's beside C's, and of m: None where no state has one."""
    memory = torch.zeros_like(initial)
    if dC is not None:
        memory[..., :-1] = chunks.lanes_first(dC)
    if dn is not None:
        memory[..., -1] = chunks.lanes_first(dn)
    if dm is not None:
        return memory, chunks.lanes_first(dm)
    return memory, None if dC is None and dn is None else initial.new_zeros(initial.shape[:2])


def _left(kept: Sequence[Tensor], flags: Flags) -> tuple[Kept, Tensor | None]:
    """What a forward pass kept, by rows, and the memory at the start of every block but the first."""
    rest = iter(kept)
    parts = [[next(rest) for _ in range(size * flag)] for size, flag in zip(KEPT, flags, strict=True)]
    blocks = parts.pop()
    G, gates, M, c = ([part.transpose(0, 1).flatten(0, 2) for part in some] for some in parts)
    m = parts[3][2].transpose(0, 1).flatten(0, 1) if c else None
    C = torch.cat([c[0], c[1][:, :, None]], -1) if c else None
    left = Kept(G[0] if G else None, Gates(*gates) if gates else None, M[0] if M else None, C, m)
    return left, blocks[0] if blocks else None


def _rows_of(left: Kept, rows: slice, chunks: slice) -> Kept:
    gates = None if left.gates is None else Gates(*(part[rows] for part in left.gates))
    G, M, C = (None if part is None else part[rows] for part in (left.G, left.M, left.C))
    return Kept(G, gates, M, C, None if left.m is None else left.m[chunks])


def _starts(
    walk: _Walk, weights: chunkwise.Weights, initial: Tensor, left: Kept, blocks: Tensor | None
) -> list[Tensor]:
    """The memory at the start of every block; where every chunk's was kept, nothing that is read."""
    cuts = walk.cuts
    if blocks is not None:
        return [initial, *blocks.unbind(1)][: len(cuts)]
    memory, starts = initial, []
    for first, last in cuts:
        block = walk.ranks.between(first, last)
        starts.append(memory[: block.lanes])
        if last < walk.count and left.C is None:
            end = chunkwise.advance(walk.load(first, last), weights.rows(walk.rows(first, last)), starts[-1], block)
            memory = end if len(end) == len(memory) else torch.cat([end, memory[len(end) :]])
    return starts
