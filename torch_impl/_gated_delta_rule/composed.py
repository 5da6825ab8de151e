"""The gated delta rule composed of PyTorch's own operators, on any device: `chunkwise` over segments of chunks.

On a CPU a sequence is cut into segments of a few chunks, each computed from start to end, so that their intermediate
results stay in the cache. The value does not depend on the segments. The backward pass computes everything again from
the tokens and the state at the start of every chunk.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from reference.backends import Row
from torch_impl._arrays import ACCUMULATION
from torch_impl._chunk_layout import ChunkLayout, DenseChunkLayout, PackedChunkLayout
from torch_impl._differentiable import Implementation, NoResiduals
from torch_impl._gated_delta_rule import chunkwise
from torch_impl._gated_delta_rule.arguments import Arguments, Cotangents, Result, StepArguments, StepResult
from torch_impl._gated_delta_rule.chunkwise import Tokens
from torch_impl._operators import packing
from torch_impl._records import ACCUMULATED, Axes
from torch_impl._sequence_groups import LongestChunk, chunk_length, groups, most_chunks
from torch_impl._threads import reconsider_threads, threads

_LONGEST = LongestChunk(alone=32, several=32)
"""Maximum number of steps per chunk. A longer one is not faster, and where keys are alike and nothing decays, its error
grows with the square of its length."""

_SEGMENT = 1 << 19
"""Elements of a segment's tokens, states and matrices together."""

_LARGE = 1 << 22
"""Number of multiplications inside the chunks of a call from which all threads compute it."""

_LARGE_STATE = 1 << 18
"""Number of elements of the state from which all threads compute a step."""


class Residuals(NamedTuple):
    """S at the start of every chunk. Packed sequences have as many rows as chunks of any packing may need."""

    starts: Annotated[Tensor | None, Axes("B starts N K V", ACCUMULATED, "starts B N K V")] = None


class _Walk(NamedTuple):
    """Sequences that are computed together.

    Attributes:
        layouts: the layouts of their tokens by number of heads.
        first: the number of chunks in the walks before this one.
    """

    x: Arguments
    layouts: Mapping[int, ChunkLayout]
    first: int

    @property
    def whole(self) -> ChunkLayout:
        return self.layouts[self.x.heads]

    def segments(self) -> list[tuple[int, int, slice]]:
        """The first rank of every segment, the rank after its last, and their chunks among those of the call."""
        ranks, found = self.whole.ranks, []
        offsets, count, first = self.first + ranks.offsets, len(ranks.running), 0
        while first < count:
            last = count
            if self.x.q.device.type == "cpu":
                elements = ranks.running[first] * _elements(self.x, self.whole.L)
                last = min(first + max(1, _SEGMENT // max(1, elements)), count)
            found.append((first, last, slice(offsets[first], offsets[last])))
            first = last
        return found

    def load(self, first: int, last: int) -> tuple[Tokens, Tensor | None]:
        """The tokens of a segment, and by what k and q were multiplied to normalise them, ``(rows, 2L, 1)``.

        Steps after the end of a sequence have g = β = 0, so that they leave the state as it is.
        """
        x = self.x
        beta = x.g.new_ones(()).expand(*x.g.shape[:-1], 1) if x.beta is None else x.beta
        # No step is 0 if it may be divided by its norm.
        kq = torch.cat([self._gather(part, first, last, 1.0) for part in (x.k, x.q)], 1)
        v, g, beta = (self._gather(part, first, last, 0.0) for part in (x.v, x.g, beta))
        norm = _normalise(kq, x.qk_norm_eps)
        return Tokens(kq, v, g, beta), norm

    def _gather(self, part: Tensor, first: int, last: int, padding: float) -> Tensor:
        axis = 2 if self.x.cu_seqlens is None else 1
        heads, N = part.shape[axis], self.x.heads
        rows = self.layouts[heads].gather(part, first, last, ACCUMULATION[self.x.v.dtype], padding)
        if heads == N:
            return rows
        return rows.unflatten(0, (-1, heads)).repeat_interleave(N // heads, 1).flatten(0, 1)

    def gather_cotangent(self, do: Tensor | None, like: Tensor, first: int, last: int) -> Tensor:
        """The cotangent of o, with N heads."""
        if do is None:
            return torch.zeros_like(like)
        return self.whole.gather(do, first, last, like.dtype)

    def scatter(self, dx: Tensor, out: Tensor, first: int, last: int, y: Tensor, factor: Tensor | None) -> None:
        """Write gradients by N heads to those of an argument, whose heads several of them may share.

        The heads are added up first: through a normalisation, the gradients of several may cancel.

        Args:
            y, factor: what the argument was normalised to, and by what it was multiplied; no factor if it was not.
        """
        heads, N = out.shape[2 if self.x.cu_seqlens is None else 1], self.x.heads
        if heads != N:
            dx = dx.unflatten(0, (-1, heads, N // heads)).sum(2).flatten(0, 1)
        if factor is not None:
            y, factor = y[:: N // heads], factor[:: N // heads]
            dx = dx.addcmul(y, (dx * y).sum(-1, keepdim=True), value=-1).mul_(factor)
        self.layouts[heads].scatter(dx, out, first, last)


def _elements(x: Arguments, L: int) -> int:
    """The number of elements of a chunk of all heads."""
    K, V = x.q.shape[-1], x.v.shape[-1]
    return max(1, x.heads) * (L * (K + V + L) + K * V)


def _walks(x: Arguments) -> Iterator[_Walk]:
    """Dense sequences together, packed ones in batches of sequences of similar length."""
    if x.cu_seqlens is None:
        B, S = x.q.shape[:2]
        L = chunk_length(S, _chunk_size(x), _LONGEST)
        yield _Walk(x, {heads: DenseChunkLayout(B, S, heads, L) for heads in x.head_counts}, 0)
        return
    bounds, first = packing("gated_delta_rule", "q", x.q, x.cu_seqlens), 0
    room = _SEGMENT if x.q.device.type == "cpu" else None
    for group in groups(np.diff(bounds), _chunk_size(x), lambda L, several: _elements(x, L), room, _LONGEST):
        for start, end in group.batches:
            layout = partial(PackedChunkLayout, bounds, group.sequences[start:end], L=group.L, device=x.q.device)
            walk = _Walk(x, {heads: layout(heads) for heads in x.head_counts}, first)
            first += walk.whole.ranks.chunks
            yield walk


def _normalise(x: Tensor, eps: float | None) -> Tensor | None:
    """Divide by ``√(Σ x² + eps)`` in place; return the factor."""
    if eps is None:
        return None
    factor = x.square().sum(-1, keepdim=True).add_(eps).rsqrt_()
    x.mul_(factor)
    return factor


def _chunk_size(x: Arguments) -> int:
    """The caller's steps per chunk; 0 if none are stated, or more than the maximum."""
    return x.chunk_size if x.chunk_size < _LONGEST.several else 0


def _threads(x: Arguments) -> threads:
    tokens = x.q.numel() // max(1, x.q.shape[-2]) + x.v.numel() // max(1, x.v.shape[-2])
    return threads(x.q.device, tokens * x.heads * (_chunk_size(x) or _LONGEST.several) >= _LARGE)


def _starts(x: Arguments) -> int:
    """The number of starts of chunks: of every dense sequence, or of any packing of so many tokens."""
    if x.cu_seqlens is None:
        S = x.q.shape[1]
        return -(-S // chunk_length(S, _chunk_size(x), _LONGEST))
    return most_chunks(x.q.shape[0], x.cu_seqlens.shape[0] - 1, _chunk_size(x), _LONGEST)


def _state(x: Arguments, given: Tensor | None) -> Tensor:
    """A new state, or cotangent of a state, ``(B, N, K, V)``; zeros if it is not given."""
    if given is not None:
        return given.clone(memory_format=torch.contiguous_format)
    B = x.q.shape[0] if x.cu_seqlens is None else x.cu_seqlens.shape[0] - 1
    return x.v.new_zeros((B, x.heads, x.q.shape[-1], x.v.shape[-1]), dtype=ACCUMULATION[x.v.dtype])


def gated_delta_forward(x: Arguments, keep: Sequence[str]) -> tuple[Result, Residuals]:
    """o and the final state, with the dtypes of `torch_impl.gated_delta_rule`, and the residuals named in ``keep``."""
    with _threads(x):
        state, o = _state(x, x.S), x.v.new_empty((*x.v.shape[:-2], x.heads, x.v.shape[-1]))
        shape, saved = state.shape[1:], None
        if keep:
            B = () if x.cu_seqlens is not None else state.shape[:1]
            saved = state.new_empty((_starts(x), *B, *shape))
        for walk in _walks(x):
            layout = walk.whole
            S = layout.select(state)
            for first, last, chunks in walk.segments():
                reconsider_threads()
                tokens, _ = walk.load(first, last)
                ranks = layout.ranks.between(first, last)
                starts = None if saved is None else saved.flatten(0, -4)[chunks]
                running = S[: ranks.sequences]
                layout.scatter(chunkwise.forward(tokens, running, starts, ranks, x.scale), o, first, last)
            layout.place(S, state)
    if saved is not None and x.cu_seqlens is None:
        saved = saved.transpose(0, 1)
    return Result(o, state), Residuals(saved)


def gated_delta_backward(x: Arguments, cotangents: Cotangents, residuals: Residuals) -> list[Any]:
    """Gradients of q, k, v, g, beta (None if it is not given) and of the initial state."""
    saved = residuals.starts
    if saved is None:
        saved = gated_delta_forward(x, ("starts",))[1].starts
        assert saved is not None
    if x.cu_seqlens is None:
        saved = saved.transpose(0, 1)
    gradients = [
        None if part is None else torch.empty_like(part, memory_format=torch.contiguous_format)
        for part in (x.q, x.k, x.v, x.g, x.beta)
    ]
    with _threads(x):
        do, dS = cotangents
        dstate = _state(x, dS)
        saved = saved.flatten(0, -4)
        for walk in _walks(x):
            layout = walk.whole
            running = layout.select(dstate)
            for first, last, chunks in reversed(walk.segments()):
                reconsider_threads()
                tokens, norm = walk.load(first, last)
                ranks = layout.ranks.between(first, last)
                upstream = walk.gather_cotangent(do, tokens.v, first, last)
                sequences = running[: ranks.sequences]
                dkq, *others = chunkwise.backward(tokens, saved[chunks], upstream, sequences, ranks, x.scale)
                (dk, dq), (k, q) = dkq.chunk(2, 1), tokens.kq.chunk(2, 1)
                of_k, of_q = (None, None) if norm is None else norm.chunk(2, 1)
                of = (q, of_q), (k, of_k), *((other, None) for other in others)
                for dx, out, (y, factor) in zip((dq, dk, *others), gradients, of, strict=True):
                    if out is not None:
                        walk.scatter(dx, out, first, last, y, factor)
            layout.place(running, dstate)
    return [*gradients, dstate]


def gated_delta_step(x: StepArguments, keep: Sequence[str]) -> tuple[StepResult, NoResiduals]:
    """One step, with few operators that read the state, because on a CPU reading it is the cost of a step."""
    with threads(x.S.device, x.S.numel() >= _LARGE_STATE):
        return _step(x), NO_STEP_RESIDUALS


def _step(x: StepArguments) -> StepResult:
    (B, N, K, V), dtype, out = x.S.shape, x.S.dtype, x.v.dtype
    q, k, v, g, beta = x[:5]
    if out is not dtype:
        q, k, v = (part.to(dtype) for part in (q, k, v))
    decay = g.to(dtype).exp()
    q, k, v, decay = (
        part if part.shape[1] == N else part.repeat_interleave(N // part.shape[1], 1) for part in (q, k, v, decay)
    )
    qk = torch.stack((q, k), 2).view(B * N, 2, K)
    if x.qk_norm_eps is not None:
        _normalise(qk, x.qk_norm_eps)
    S, decay = x.S.reshape(B * N, K, V), decay.reshape(B * N, 1, 1)
    read = torch.bmm(qk, S).mul_(decay)
    u = v.reshape(B * N, 1, V) - read[:, 1:]
    if beta is not None:
        beta = beta.to(dtype)
        u *= (beta if beta.shape[1] == N else beta.repeat_interleave(N // beta.shape[1], 1)).reshape(B * N, 1, 1)
    q, k = qk[:, :1], qk[:, 1:]
    o = torch.addcmul(read[:, :1], (q * k).sum(-1, keepdim=True), u).mul_(x.scale)
    S = torch.mul(S, decay).addcmul_(k.mT, u)
    return StepResult(o.view(B, N, V).to(out), S.view(B, N, K, V))


NO_STEP_RESIDUALS = NoResiduals()

ROWS = (
    Row(
        backend="torch",
        operation="gated_delta_rule",
        implementation=Implementation(
            residuals=Residuals,
            forward=gated_delta_forward,
            backward=gated_delta_backward,
            sizes=lambda x: {"starts": _starts(x)},
            worth_keeping=lambda x: Residuals._fields,
        ),
    ),
    Row(
        backend="torch",
        operation="gated_delta_step",
        implementation=Implementation(residuals=NoResiduals, forward=gated_delta_step),
    ),
)
