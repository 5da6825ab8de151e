"""What packed sequences cost next to the same tokens in a dense call, counted where a time would depend on the machine:
padded steps, groups, parts that are computed one after the other, and memories that are computed twice."""

import pytest
import torch

from benchmarks.costs.packing import SPLITS
from tests.torch.loops import cotangents, gradients, mlstm_arguments, relative_error
from torch_impl import mlstm
from torch_impl._mlstm import chunkwise, composed
from torch_impl._mlstm.arguments import Arguments

WIDE = {"4 heads of 128": (8000, 4, 128), "8 heads of 64": (4000, 8, 64)}
LONG = [0, 150, 150, 153, 400, 407]


def bounds(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


@pytest.mark.parametrize("shape", WIDE)
@pytest.mark.parametrize("split", SPLITS)
def test_wide_heads_in_any_split_cost_about_as_much_as_dense(split, shape):
    T, N, D = WIDE[shape]
    q, gate = torch.zeros(T, N, D), torch.zeros(T, N)
    x = Arguments(q, q, q, gate, gate, cu_seqlens=bounds(SPLITS[split](T)), return_state=False)
    walks = [walk for walk, _ in composed._packed(x, False, composed._span(x))]
    steps = sum(walk.ranks.chunks * walk.chunks.L for walk in walks)
    assert steps <= 1.15 * T
    # The gates of a group are computed at once, which takes as long as its other work on a hundred steps.
    assert len(walks) <= 7
    segments = [segment for walk in walks for segment in walk.segments]
    largest = max(segment.ranks.chunks * segment.chunks.L for segment in segments)
    assert len(segments) <= 28 and largest * N * (3 * D + 64) <= 1.2 * composed._SEGMENT


@pytest.fixture
def short_segments(monkeypatch):
    """Segments of a few chunks of 9 steps."""
    monkeypatch.setattr(composed, "_SEGMENT", 2000)


def test_no_memory_between_segments_is_computed_twice(short_segments, monkeypatch):
    arrays = mlstm_arguments(1, LONG[-1], 2, 3, 5, packed=True)
    options = {"cu_seqlens": torch.tensor(LONG), "chunk_size": 9}
    h = mlstm(*arrays, **options)
    upstream = cotangents([h])
    advances = []
    advance = chunkwise.advance
    monkeypatch.setattr(chunkwise, "advance", lambda *args: advances.append(args) or advance(*args))
    got = gradients([h], arrays, upstream)
    assert not advances
    monkeypatch.setattr(composed, "_SHORT", LONG[-1])
    want = gradients([mlstm(*arrays, **options)], arrays, upstream)
    assert advances
    for x, y in zip(got, want, strict=True):
        assert torch.equal(x, y)


def test_saved_memories_of_calls_with_other_numbers_of_heads(short_segments):
    """vmap adds its axis to the heads of a backward pass: its batches are smaller, but not its segments."""
    arrays = mlstm_arguments(1, LONG[-1], 2, 3, 5, packed=True)
    h = mlstm(*arrays, cu_seqlens=torch.tensor(LONG), chunk_size=9)
    batch = torch.stack([cotangents([h], seed=seed)[0] for seed in range(5)])
    got = torch.autograd.grad(h, arrays, batch, is_grads_batched=True, retain_graph=True)
    for number, upstream in enumerate(batch):
        for x, y in zip(got, torch.autograd.grad(h, arrays, upstream, retain_graph=True), strict=True):
            assert relative_error(x[number], y) < 1e-13


def test_the_number_of_saved_memories_follows_from_the_number_of_tokens(short_segments):
    """Not from the lengths of sequences, which a compiler does not know; and the length of segments from it."""
    for N in (1, 2, 3, 8):
        arrays = [x.detach() for x in mlstm_arguments(1, LONG[-1], N, 3, 5, packed=True)]
        calls = [Arguments(*arrays, cu_seqlens=torch.tensor(each), chunk_size=9) for each in (LONG, [0, 400, 407])]
        (rows,) = {composed._residual_sizes(x)["segments"] for x in calls}
        kept = [composed.mlstm_forward(x, ("segments",))[1].segments for x in calls]
        for x, segments in zip(calls, kept, strict=True):
            assert segments is not None and len(segments) == rows == LONG[-1] // composed._span(x)
            assert composed._span(x, segments) == composed._span(x)
