"""Summaries of the steps of a shard: what they write into an empty memory, and what they leave of an earlier one.

They use the chunks, segments and weights of `torch_impl._mlstm.composed`, without reads. Source of the formulas:
``docs/spec.md``, *Shards of a sequence*.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from torch_impl._arrays import ACCUMULATION
from torch_impl._differentiable import Implementation, NoResiduals
from torch_impl._mlstm import chunkwise
from torch_impl._mlstm.arguments import Arguments
from torch_impl._mlstm.composed import Walk, apart, dense_walk, threads_of
from torch_impl._records import ACCUMULATED, Axes


class SummaryArguments(NamedTuple):
    """The steps of a shard, dense; fields as in `Arguments`."""

    k: Annotated[Tensor, Axes("B S N K")]
    v: Annotated[Tensor, Axes("B S N V")]
    i: Annotated[Tensor, Axes("B S N")]
    f: Annotated[Tensor, Axes("B S N")]
    chunk_size: int = 0
    backend: str = "torch"


class Summary(NamedTuple):
    """The effect of some steps on the memory.

    Attributes:
        C, n, m: the state in which the steps leave an empty memory.
        a: the sum of the log forget gates.
        rest: what rounding took from that sum; without it large gates would make the memory of an earlier shard
            inexact. It has no gradient.
    """

    C: Annotated[Tensor, Axes("B N K V", ACCUMULATED)]
    n: Annotated[Tensor, Axes("B N K", ACCUMULATED)]
    m: Annotated[Tensor, Axes("B N", ACCUMULATED)]
    a: Annotated[Tensor, Axes("B N", ACCUMULATED)]
    rest: Annotated[Tensor, Axes("B N", ACCUMULATED)]


class SummaryCotangents(NamedTuple):
    """Cotangents of `Summary`; None means zeros. m counts as a constant in C and n."""

    dC: Annotated[Tensor | None, Axes("B N K V", ACCUMULATED)] = None
    dn: Annotated[Tensor | None, Axes("B N K", ACCUMULATED)] = None
    dm: Annotated[Tensor | None, Axes("B N", ACCUMULATED)] = None
    da: Annotated[Tensor | None, Axes("B N", ACCUMULATED)] = None
    drest: Annotated[Tensor | None, Axes("B N", ACCUMULATED)] = None


def sizes(x: SummaryArguments) -> Mapping[str, Any]:
    """The sizes of the letters."""
    (B, S, N, K), V = x.k.shape, x.v.shape[-1]
    return {"B": B, "S": S, "N": N, "K": K, "V": V}


def _from_nothing(x: SummaryArguments) -> Arguments:
    """The call of the mLSTM with these steps, none of which reads, that starts from an empty memory."""
    (B, _, N, K), V = x.k.shape, x.v.shape[-1]
    zeros = x.v.new_zeros((), dtype=ACCUMULATION[x.v.dtype])
    return Arguments(
        q=x.k, k=x.k, v=x.v, i=x.i, f=x.f, C=zeros.expand(B, N, K, V), n=zeros.expand(B, N, K),
        m=(zeros - torch.inf).expand(B, N), chunk_size=x.chunk_size, backend=x.backend,
    )  # fmt: skip


def summary_forward(x: SummaryArguments, keep: Sequence[str]) -> tuple[Summary, NoResiduals]:
    """The summary, in the accumulation dtype."""
    whole = _from_nothing(x)
    with threads_of(whole):
        walk = dense_walk(whole)
        memory, m = walk.initial()
        assert memory is not None
        weights, stabilisers = chunkwise.weights(walk.i, walk.f, m, walk.ranks, walk.normaliser)
        for segment in walk.segments:
            k, v = walk.writes(segment)
            memory = chunkwise.advance(k, v, weights.rows(segment.rows), memory, segment.ranks)
        if stabilisers.last_weight is not None:
            memory = memory * stabilisers.last_weight[:, :, None, None]
        return Summary(*apart(memory), stabilisers.last.clone(), *_sum(_steps(stabilisers.a, walk))), NoResiduals()


def summary_backward(x: SummaryArguments, cotangents: SummaryCotangents, residuals: NoResiduals) -> list[Tensor]:
    """Gradients of k, v, i and f. The cotangent of m goes to the step that attains it."""
    whole = _from_nothing(x)
    gradients = [torch.empty_like(part, memory_format=torch.contiguous_format) for part in x[:4]]
    with threads_of(whole):
        walk = dense_walk(whole)
        memory, m = walk.initial()
        assert memory is not None
        weights, stabilisers = chunkwise.weights(walk.i, walk.f, m, walk.ranks, walk.normaliser)
        dC = torch.zeros_like(memory)
        for part, column in ((cotangents.dC, slice(-1)), (cotangents.dn, -1)):
            if part is not None:
                dC[..., column] = part
        if stabilisers.last_weight is not None:
            dC *= stabilisers.last_weight[:, :, None, None]
        di = torch.empty_like(walk.i)
        for segment in reversed(walk.segments):
            chunks, first, last, _, rows = segment
            dk, dv, di[rows], dC = chunkwise.advance_backward(
                *walk.writes(segment), weights.rows(rows), dC, segment.ranks
            )
            for dx, out in zip((dk, dv), gradients[:2], strict=True):
                chunks.scatter(dx, out, first, last)
        da = _sums_before(di, walk)
        if cotangents.da is not None:
            da += _by_row(cotangents.da, walk)
        if cotangents.dm is not None:
            nothing = di.new_zeros((walk.ranks.chunks + walk.ranks.sequences, walk.chunks.N))
            written, idle = nothing.split((walk.ranks.chunks, walk.ranks.sequences))
            chunkwise.add_final_m_gradient(stabilisers, walk.ranks, cotangents.dm, written, idle, di, da)
        da.mul_(logsigmoid(-walk.f).exp_())
        for dx, out in zip((di, da), gradients[2:], strict=True):
            walk.chunks.scatter(dx, out, 0, walk.count)
    return gradients


def _steps(x: Tensor, walk: Walk) -> Tensor:
    """``(rows, L)`` → ``(B, N, steps)``."""
    by_chunk = x.unflatten(0, (walk.count, walk.ranks.sequences, walk.chunks.N))
    return by_chunk.movedim(0, 2).flatten(2, 3)


def _by_row(x: Tensor, walk: Walk) -> Tensor:
    """``(B, N)`` → ``(rows, 1)``."""
    return x.expand(walk.count, -1, -1).reshape(-1, 1)


def _sum(a: Tensor) -> tuple[Tensor, Tensor]:
    """The sum over the last axis, and what its roundings took from it: 0 where it is infinite."""
    sums = torch.nn.functional.pad(a.cumsum(-1), (1, 0))
    before, after = sums[..., :-1], sums[..., 1:]
    total = sums[..., -1].clone()
    finite = after.clamp(min=torch.finfo(a.dtype).min)
    lost = chunkwise.stabilised_decay(a, before, finite, a.dtype is torch.float64).sum(-1)
    return total, torch.where(total.isfinite(), lost, 0.0)


def _sums_before(x: Tensor, walk: Walk) -> Tensor:
    """``Σ_{s<t} x_s`` over all steps of a sequence, ``(rows, L)``."""
    by_chunk = x.unflatten(0, (walk.count, walk.ranks.sequences, walk.chunks.N))
    sums = torch.zeros_like(by_chunk)
    sums[..., 1:] = by_chunk[..., :-1].cumsum(-1)
    sums[1:] += by_chunk.sum(-1, keepdim=True)[:-1].cumsum(0)
    return sums.view_as(x)


IMPLEMENTATIONS = {"torch": Implementation(residuals=NoResiduals, forward=summary_forward, backward=summary_backward)}
