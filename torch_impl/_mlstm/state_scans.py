"""Scans over the states between chunks, the only sequential part of the chunkwise mLSTM.

A scan forward turns ``[initial state of every sequence | write of every chunk]`` into ``[initial | state at the end of
every chunk]``; a scan backward turns ``[read of every chunk | final cotangent of every sequence]`` into ``[gradient at
the start of every chunk | final]``. Chunks are ordered by rank (`torch_impl._chunk_layout`).

A long sequence has many ranks. If its states are small, a scan on a CPU takes as long as its operators need to start.
Stabilisers are then scanned by NumPy, whose operators start in less than half of the time, and memories in blocks: one
operator scans all blocks by a step, then every block adds what is left of the state before it.
"""

from collections.abc import Iterator
from itertools import groupby, pairwise

import numpy as np
import torch
from torch import Tensor

from torch_impl._chunk_layout import Ranks

_SMALL = 4096
"""Maximum number of elements of the states of a rank at which NumPy, or blocks, are faster."""

_FEW = 8
"""Minimum number of ranks at which NumPy is faster, including the time to prepare its arrays."""

_MANY = 32
"""Minimum number of ranks with equally many sequences at which blocks are faster."""

_BLOCK = 16
"""Ranks per block."""


def scan_stabilisers(decays: Tensor, writes: Tensor, initial: Tensor, ranks: Ranks) -> Tensor:
    """``m' = max(decay + m, write)`` over chunks, as ``[initial | end of every chunk]`` with N heads each."""
    states = initial.new_empty((ranks.sequences + ranks.chunks, initial.shape[1]))
    states[: ranks.sequences] = initial
    if len(ranks.running) >= _FEW and _is_small(states, ranks):
        _scan_in_numpy(states, decays, writes, ranks)
        return states
    previous, *ends = states.split((ranks.sequences, *ranks.running))
    by_rank = (x.unflatten(0, (ranks.chunks, initial.shape[1])).split(ranks.running) for x in (decays, writes))
    for end, decay, write, ended, count in zip(ends, *by_rank, *_ended(ranks.sequences, ranks.running), strict=True):
        torch.add(previous[:count] if ended else previous, decay, out=end)
        torch.maximum(end, write, out=end)
        previous = end
    return states


def _scan_in_numpy(states: Tensor, decays: Tensor, writes: Tensor, ranks: Ranks) -> None:
    """The same, in place and with the same roundings."""
    previous, *ends = _by_rank(states, (ranks.sequences, *ranks.running))
    by_rank = (_by_rank(x, ranks.running) for x in (decays, writes))
    with np.errstate(all="ignore"):
        for end, decay, write in zip(ends, *by_rank, strict=True):
            np.add(previous[: len(end)], decay, out=end)
            np.maximum(end, write, out=end)
            previous = end


def _by_rank(x: Tensor, counts: tuple[int, ...]) -> list[np.ndarray]:
    """The elements of every rank, which share the memory of ``x``, given the number of its chunks."""
    flat = x.detach().view(-1).numpy()
    ends = np.cumsum([0, *counts]) * (len(flat) // sum(counts))
    return [flat[start:end] for start, end in pairwise(ends.tolist())]


def _is_small(states: Tensor, ranks: Ranks) -> bool:
    """Whether the start of an operator takes longer than its work on the states of a rank, ``(·, N, ...)``."""
    # Without sequences there is nothing to scan, and rows cannot be divided among them.
    return states.device.type == "cpu" and 0 < ranks.sequences * states.shape[1:].numel() <= _SMALL


def accumulate(states: Tensor, decay: Tensor, ranks: Ranks) -> None:
    """``C' = decay C + write`` over chunks, in place; decay ``(chunks, N)``."""
    decay = decay.reshape(*decay.shape, *(1,) * (states.ndim - 2))
    counts, at, first = (ranks.sequences, *ranks.running), ranks.offsets, 0
    for number, in_blocks in _stretches(ranks.running, _is_small(states, ranks)):
        last, before = first + number, counts[first]
        # The end of the rank before the stretch, and the writes of the stretch.
        rows = states[ranks.sequences + at[first] - before : ranks.sequences + at[last]]
        factors = decay[at[first] : at[last]]
        if in_blocks:
            _accumulate_in_blocks(rows.unflatten(0, (-1, before)), factors.unflatten(0, (-1, before)))
        else:
            previous, *ends = rows.split(counts[first : last + 1])
            running = ranks.running[first:last]
            for end, factor, ended, count in zip(ends, factors.split(running), *_ended(before, running), strict=True):
                end.addcmul_(previous[:count] if ended else previous, factor)
                previous = end
        first = last


def accumulate_back(gradients: Tensor, decay: Tensor, ranks: Ranks) -> None:
    """``dC = decay dC' + read`` over chunks from the last to the first, in place; decay ``(chunks, N)``."""
    decay = decay.reshape(*decay.shape, *(1,) * (gradients.ndim - 2))
    at, last, final = ranks.offsets, len(ranks.running), gradients[ranks.chunks :]
    following, still = final[:0], 0
    for number, in_blocks in _stretches(ranks.running[::-1], _is_small(gradients, ranks)):
        first = last - number
        rows, factors = gradients[at[first] : at[last]], decay[at[first] : at[last]]
        running = ranks.running[first:last]
        if in_blocks:
            rows = gradients[at[first] : at[last] + still].unflatten(0, (-1, still))
            _accumulate_in_blocks(rows, factors.unflatten(0, (-1, still)), back=True)
            following = rows[0]
        else:
            by_rank = (rows.split(running), factors.split(running), running)
            for start, factor, count in zip(*map(reversed, by_rank), strict=True):
                if still == count:
                    start.addcmul_(following, factor)
                else:
                    start[:still].addcmul_(following, factor[:still])
                    start[still:].addcmul_(final[still:count], factor[still:])
                following, still = start, count
        last = first


def _stretches(running: tuple[int, ...], small: bool) -> Iterator[tuple[int, bool]]:
    """The numbers of successive ranks that are scanned rank by rank or, if True, in blocks.

    Args:
        running: the number of sequences of every rank, in the order of the scan.
        small: whether blocks are faster where many ranks have equally many sequences.
    """
    waiting = 0
    for number in (len([*run]) for _, run in groupby(running)) if small else (len(running),):
        # A rank before the blocks has as many sequences as they have.
        blocks = (number - 1) // _BLOCK * _BLOCK if small and number >= _MANY else 0
        waiting += number - blocks
        if blocks:
            yield waiting, False
            yield blocks, True
            waiting = 0
    if waiting:
        yield waiting, False


def _accumulate_in_blocks(rows: Tensor, decay: Tensor, back: bool = False) -> None:
    """Scan ranks with equally many sequences, in place.

    Args:
        rows: the state before the first rank, then the writes of every rank, ``(1 + ranks, sequences, N, ...)``; with
            ``back``, the reads of every rank, then the gradient after the last.
        decay: ``(ranks, sequences, N, ...)``.
    """
    own, others = (rows[:-1], rows[1:]) if back else (rows[1:], rows[:-1])
    own, others, decay = (x.unflatten(0, (-1, _BLOCK)) for x in (own, others, decay))
    order = slice(None, None, -1) if back else slice(None)
    states, factors = own.unbind(1)[order], decay.unbind(1)[order]
    for previous, state, factor in zip(states, states[1:], factors[1:], strict=False):
        state.addcmul_(previous, factor)
    left = decay.flip(1).cumprod(1).flip(1) if back else decay.cumprod(1)
    begin, end, rest = (-1, 0, slice(1, None)) if back else (0, -1, slice(-1))
    before = others[:, begin]
    by_block = (own[:, end], before, left[:, end])
    for last, first, factor in zip(*(x.unbind(0)[order] for x in by_block), strict=True):
        last.addcmul_(first, factor)
    own[:, rest].addcmul_(before[:, None], left[:, rest])


def _ended(before: int, running: tuple[int, ...]) -> tuple[list[bool], tuple[int, ...]]:
    """For every rank, whether sequences have ended before it, and the number of those that have a chunk of it.

    Scans use these because a slice of a state, or its length, costs as much time as a step.

    Args:
        before: the number of sequences before the first of these ranks.
    """
    return [last != count for last, count in zip((before, *running), running, strict=False)], running


def at_starts(states: Tensor, ranks: Ranks) -> Tensor:
    """Select the start of every chunk from ``[initial | end of every chunk]``."""
    if ranks.uniform:
        return states[: ranks.chunks]
    return states.index_select(0, torch.from_numpy(ranks.forward_rows()[0]).to(states.device))


def at_ends(gradients: Tensor, ranks: Ranks) -> Tensor:
    """Select the end of every chunk from ``[start of every chunk | final]``."""
    if ranks.uniform:
        return gradients[ranks.sequences :]
    return gradients.index_select(0, torch.from_numpy(ranks.backward_rows()[0]).to(gradients.device))


def at_last(states: Tensor, ranks: Ranks) -> Tensor:
    """Copy the last state of every sequence from ``[initial | end of every chunk]``."""
    if ranks.uniform:
        return states[ranks.chunks :].clone()
    return states.index_select(0, torch.from_numpy(ranks.forward_rows()[1]).to(states.device))


def at_first(gradients: Tensor, ranks: Ranks) -> Tensor:
    """Copy the first gradient of every sequence from ``[start of every chunk | final]``."""
    if ranks.uniform:
        return gradients[: ranks.sequences].clone()
    return gradients.index_select(0, torch.from_numpy(ranks.backward_rows()[1]).to(gradients.device))
