"""The scans over the states between chunks, against a loop over ranks: every path has the same result."""

from itertools import accumulate as running_total
from itertools import pairwise

import numpy as np
import pytest
import torch

from torch_impl._chunk_layout import Ranks
from torch_impl._mlstm import state_scans

RANKS = {
    "one sequence": Ranks(1, (1,) * 100),
    "whole blocks": Ranks(1, (1,) * 96),
    "a dense batch": Ranks(3, (3,) * 49),
    "few ranks": Ranks(2, (2,) * 5),
    "two long sequences": Ranks(2, (2,) * 40 + (1,) * 61),
    "many lengths": Ranks(9, (7, 7, 5, 4, *(3,) * 50, *(2,) * 17, *(1,) * 33)),
    "no chunks": Ranks(2, ()),
}
N, K = 2, 3


@pytest.fixture(params=["by size", "rank by rank"])
def path(request, monkeypatch):
    if request.param == "rank by rank":
        monkeypatch.setattr(state_scans, "_SMALL", -1)


def _cuts(ranks):
    return [*running_total(ranks.running, initial=0)]


def _forward_loop(initial, writes, ranks, step):
    """``[initial | end of every chunk]`` by a loop over ranks; ``step(state, chunks)`` is the end of a rank."""
    states, rows = [initial], _cuts(ranks)
    for first, last in pairwise(rows):
        states.append(step(states[-1][: last - first], slice(first, last)))
    return torch.cat(states)


def _backward_loop(final, reads, decay, ranks):
    starts, rows, following = [], _cuts(ranks), final
    for first, last in reversed([*pairwise(rows)]):
        following = reads[first:last] + decay[first:last] * following[: last - first]
        starts.append(following)
        following = torch.cat([following, final[last - first :]])
    return torch.cat([*reversed(starts), final])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ranks", RANKS.values(), ids=RANKS.keys())
def test_memories_are_those_of_a_loop(ranks, dtype, path):
    torch.manual_seed(0)
    decay = torch.rand(ranks.chunks, N, dtype=dtype)
    decay[::7] = 0.0
    initial, writes = torch.randn(ranks.sequences, N, K, dtype=dtype), torch.randn(ranks.chunks, N, K, dtype=dtype)
    factor = decay[:, :, None]

    states = torch.cat([initial, writes])
    state_scans.accumulate(states, decay, ranks)
    expected = _forward_loop(initial, writes, ranks, lambda C, at: writes[at] + factor[at] * C)
    torch.testing.assert_close(states, expected, rtol=0, atol=16 * torch.finfo(dtype).eps)

    gradients = torch.cat([writes, initial])
    state_scans.accumulate_back(gradients, decay, ranks)
    expected = _backward_loop(initial, writes, factor, ranks)
    torch.testing.assert_close(gradients, expected, rtol=0, atol=16 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ranks", RANKS.values(), ids=RANKS.keys())
def test_stabilisers_are_those_of_a_loop_to_the_bit(ranks, dtype, path):
    torch.manual_seed(0)
    decays, writes = -10 * torch.rand(ranks.chunks, N, dtype=dtype), 20 * torch.randn(ranks.chunks, N, dtype=dtype)
    initial = torch.randn(ranks.sequences, N, dtype=dtype)
    decays[::5], writes[::3], writes[20::40] = -torch.inf, -torch.inf, torch.nan
    states = state_scans.scan_stabilisers(decays.flatten(), writes.flatten(), initial, ranks)
    expected = _forward_loop(initial, writes, ranks, lambda m, at: torch.maximum(m + decays[at], writes[at]))
    torch.testing.assert_close(states, expected, rtol=0, atol=0, equal_nan=True)


def test_a_hard_reset_leaves_nothing_and_a_nan_stays_behind_it(path):
    """A memory is a function of the chunks before it in its sequence, and of none after it or in another sequence."""
    ranks = RANKS["two long sequences"]
    sequence, rank = ranks.sequence_and_rank()
    torch.manual_seed(0)
    decay, states = torch.rand(ranks.chunks, N), torch.randn(ranks.sequences + ranks.chunks, N, K)
    decay[(sequence == 0) & (rank == 70)] = 0.0
    states[: ranks.sequences] = 1e30
    later = torch.from_numpy(np.flatnonzero((sequence == 0) & (rank >= 70)))
    state_scans.accumulate(once := states.clone(), decay, ranks)
    states[: ranks.sequences] = 0.0
    state_scans.accumulate(other := states.clone(), decay, ranks)
    assert torch.equal(once[ranks.sequences :][later], other[ranks.sequences :][later])

    at = int(np.flatnonzero((sequence == 0) & (rank == 23))[0])
    states[ranks.sequences + at] = torch.nan
    state_scans.accumulate(spoilt := states.clone(), decay, ranks)
    is_spoilt = spoilt[ranks.sequences :].isnan().flatten(1)
    assert torch.equal(is_spoilt.all(1), torch.from_numpy((sequence == 0) & (rank >= 23)))
    assert torch.equal(is_spoilt.any(1), is_spoilt.all(1))
    assert torch.equal(spoilt[ranks.sequences :][~is_spoilt[:, 0]], other[ranks.sequences :][~is_spoilt[:, 0]])

    gradients = torch.randn(ranks.chunks + ranks.sequences, N, K)
    state_scans.accumulate_back(sound := gradients.clone(), decay, ranks)
    gradients[at] = torch.nan
    state_scans.accumulate_back(gradients, decay, ranks)
    is_spoilt = gradients[: ranks.chunks].isnan().flatten(1).any(1)
    assert torch.equal(is_spoilt, torch.from_numpy((sequence == 0) & (rank <= 23)))
    assert torch.equal(gradients[: ranks.chunks][~is_spoilt], sound[: ranks.chunks][~is_spoilt])
