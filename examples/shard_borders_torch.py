"""A causal convolution and a token shift over sequences whose steps are sharded over ranks, in PyTorch.

Both read steps before a token, which may be on the rank before. They are model parts to copy, next to
`torch_impl.mlstm(…, sequence_group=…)`; without `sequence_group` they are those of whole sequences. Ranks may have any
numbers of steps, 0 included.
"""

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.nn.functional import all_gather


def preceding(x: Tensor, steps: int, sequence_group: ProcessGroup | None = None) -> tuple[Tensor, int]:
    """The steps before the first one of this rank, from the ranks before it; zeros before the first one of all.

    Every rank sends its last ``steps`` steps to all others. Those of the neighbour may not be enough, since a shard may
    have fewer; and a convolution has few steps.

    Args:
        x: the steps of this rank, ``(B, S_local, …)``.
        steps: how many to get.
        sequence_group: the ranks that share the steps; None if one has them all.

    Returns:
        The steps, ``(B, steps, …)``, whose gradient goes back to the ranks that own them; and how many steps there are
        before the first one of this rank.
    """
    none = x.new_zeros(x.shape[0], steps, *x.shape[2:])
    if sequence_group is None:
        return none, 0
    rank, ranks = sequence_group.rank(), sequence_group.size()
    own = torch.tensor([x.shape[1]], device=x.device)
    lengths = [torch.empty_like(own) for _ in range(ranks)]
    torch.distributed.all_gather(lengths, own, group=sequence_group)
    counts = [int(length) for length in lengths]
    tail = torch.cat([none, x], 1)[:, x.shape[1] :].contiguous()
    # What a rank does not use has a gradient of 0, so that all ranks take part in the backward pass.
    tails = all_gather(tail, group=sequence_group)
    parts = [part[:, steps - min(count, steps) :] for part, count in zip(tails, counts, strict=True)][:rank]
    unused = 0 * sum(part.sum() for part in tails)
    return torch.cat([none, *parts], 1)[:, -steps:] + unused if steps else none, sum(counts[:rank])


def causal_convolution(
    x: Tensor, weight: Tensor, cu_seqlens: Tensor | None = None, sequence_group: ProcessGroup | None = None
) -> Tensor:
    """A depthwise causal convolution, ``y_t = Σ_d weight[d] ⊙ x_{t−d}``, that reads nothing before its own sequence.

    Args:
        x: ``(B, S, D)``, or the packed ``(T, D)`` with `cu_seqlens`; of sharded steps those of this rank.
        weight: ``(W, D)``.
        cu_seqlens: ``(B+1,)``, the start and end of each sequence among the tokens of all ranks.
        sequence_group: the ranks that share the steps; None if one has them all.

    Returns:
        y, with the shape of x.
    """
    tokens = x[None] if cu_seqlens is not None else x
    S, reach = tokens.shape[1], weight.shape[0] - 1
    before, begin = preceding(tokens, reach, sequence_group)
    longer, y = torch.cat([before, tokens], 1), torch.zeros_like(tokens)
    for delay, tap in enumerate(weight):
        delayed = longer[:, reach - delay : reach - delay + S]
        if cu_seqlens is not None:
            token = torch.arange(begin, begin + S, device=x.device)
            place = token - cu_seqlens[torch.searchsorted(cu_seqlens, token, right=True) - 1]
            delayed = torch.where((place >= delay)[:, None], delayed, 0)
        y = y + tap * delayed
    return y.reshape(x.shape)


def token_shift(
    x: Tensor, mix: Tensor, cu_seqlens: Tensor | None = None, sequence_group: ProcessGroup | None = None
) -> Tensor:
    """Each token mixed with the one before it, ``y_t = x_t + mix ⊙ (x_{t−1} − x_t)``; arguments as above, mix ``(D,)``.

    The token before the first one of a sequence is 0.
    """
    return causal_convolution(x, torch.stack([1 - mix, mix]), cu_seqlens, sequence_group)
