"""Packed sequences in groups: each once, the longest first, with little padding and within the room given."""

from itertools import pairwise

import numpy as np
import pytest

from torch_impl import _sequence_groups as sequence_groups
from torch_impl._sequence_groups import NARROW, WIDE, LongestChunk, chunk_length, groups, longest_chunk, most_chunks


def elements(L: int, several: bool) -> int:
    return L * (8 + L) + 16 * several


def drawn(seed: int) -> np.ndarray:
    """Lengths of many orders of magnitude, a few of them 0."""
    rng = np.random.default_rng(seed)
    return (2.0 ** rng.uniform(-1, rng.integers(1, 12), rng.integers(1, 200))).astype(int)


@pytest.mark.parametrize("chunk_size", [0, 1, 9, 64, 100])
@pytest.mark.parametrize("seed", range(8))
def test_every_sequence_is_in_one_group_that_suits_it(seed, chunk_size, monkeypatch):
    monkeypatch.setattr(sequence_groups, "_FEW", 0)
    lengths, room = drawn(seed), 1 << 12
    found = groups(lengths, chunk_size, elements, room)
    members = np.concatenate([each.sequences for each in found])
    assert sorted(members) == np.flatnonzero(lengths).tolist()
    alone = padded = 0
    for each in found:
        own = lengths[each.sequences]
        assert (np.diff(own) <= 0).all() and 1 <= each.L <= (chunk_size or 64)
        chunks = -(-own // each.L)
        assert each.batches[0][0] == 0 and each.batches[-1][1] == len(own) and each.segments == 1
        assert all(end == start for (_, end), (start, _) in pairwise(each.batches))
        for first, last in each.batches:
            needed = chunks[first:last].sum() * elements(each.L, bool(chunks[0] > 1))
            assert last - first == 1 or needed <= room
        suiting = np.array([chunk_length(steps, chunk_size) for steps in own.tolist()])
        alone, padded = alone + (-(-own // suiting) * suiting).sum(), padded + (chunks * each.L).sum()
    assert padded <= 1.25 * alone


@pytest.mark.parametrize("chunk_size", [0, 1, 9, 64, 100])
def test_no_packing_has_more_chunks_than_are_allowed_for(chunk_size):
    packings = [drawn(seed) for seed in range(50)] + [np.array(few) for few in ((27, 3, 33), (33, 33, 31), (65,) * 5)]
    for longest in (NARROW, WIDE, LongestChunk(32, 32)):
        for lengths in packings:
            found = groups(lengths, chunk_size, elements, None, longest)
            chunks = sum(int((-(-lengths[each.sequences] // each.L)).sum()) for each in found)
            assert chunks <= most_chunks(int(lengths.sum()), len(lengths), chunk_size, longest)


def test_one_group_has_the_chunks_of_its_longest_sequence():
    for length in (1, 5, 64, 65, 1000):
        (group,) = groups(np.array([length]), 0, elements, None)
        assert group.L == chunk_length(length, 0)


def test_a_few_short_sequences_join_long_ones():
    """A group of their own would cost more than their padding."""
    (group,) = groups(np.array([3, 0, 500, 1]), 0, elements, None)
    assert group.sequences.tolist() == [2, 0, 3]


@pytest.mark.parametrize("room", [1, 5000, 40000])
def test_a_batch_is_as_large_as_the_room_for_its_own_sequences(room):
    """Not for as many sequences as long as the longest one: short ones would be computed one by one."""
    lengths = np.array([1000, 500, 350] + [63 * 2] * 9)
    (group,) = groups(lengths, 0, elements, room)
    assert group.L == 63 and group.sequences.tolist() == [*range(12)]
    own = elements(63, True) * -(-lengths // 63)
    needed = [own[first:last] for first, last in group.batches]
    assert all(len(batch) == 1 or batch.sum() <= room for batch in needed)
    assert all(batch.sum() + following[0] > room for batch, following in pairwise(needed))
    assert sum(map(len, needed)) == 12


def test_a_long_sequence_is_cut_into_segments_that_depend_on_nothing_else():
    """Both passes divide it in the same way, also where their numbers of heads, and so elements, differ."""
    lengths = np.array([10, 1000, 256, 257, 2000])
    longest, *others = groups(lengths, 0, elements, 5000, span=128)
    assert (longest.sequences.tolist(), longest.L, longest.segments) == ([4], 63, 16)
    assert [(each.sequences.tolist(), each.segments) for each in others[:2]] == [([1], 8), ([3], 3)]
    assert all(each.segments == 1 for each in others[2:])
    many = groups(lengths, 0, lambda L, several: 50 * elements(L, several), 5000, span=128)
    assert [(each.sequences.tolist(), each.L, each.segments) for each in many[:3]] == [
        (each.sequences.tolist(), each.L, each.segments) for each in (longest, *others[:2])
    ]


def test_many_short_sequences_have_a_group_of_their_own():
    long, short = groups(np.array([20000] + [1] * 10000), 0, elements, None)
    assert (long.sequences.tolist(), long.L, short.L) == ([0], 64, 1)


def test_chunks_of_narrow_heads_are_shorter():
    assert [longest_chunk(K, V) for K, V in ((1, 1), (16, 16), (24, 24))] == [NARROW] * 3
    assert [longest_chunk(K, V) for K, V in ((16, 33), (64, 64))] == [WIDE] * 2
    assert [longest_chunk(K, V, False).alone for K, V in ((8, 8), (16, 33), (64, 64), (500, 500))] == [32, 64, 128, 256]
    assert NARROW.several < NARROW.alone < WIDE.alone == WIDE.several
    lengths = np.array([1000, 33])
    assert {each.L for each in groups(lengths, 0, elements, None, NARROW)} == {chunk_length(1000, 0, NARROW)} == {16}
    (one,) = groups(lengths[1:], 0, elements, None, NARROW)
    assert one.L == chunk_length(33, 0, NARROW) == 11 and chunk_length(33, 64, NARROW) == 33


def test_sequences_that_fit_into_one_chunk_are_not_cut():
    """A single chunk reads no memory and passes none on."""
    for steps in range(1, 33):
        (group,) = groups(np.array([steps, steps]), 0, elements, None, NARROW)
        assert group.L == chunk_length(steps, 0, NARROW) == steps


def test_many_sequences_of_one_chunk_are_not_cut_to_join_long_ones():
    lengths = np.array([1000, *[30] * 500, *[20] * 500, 25, 3])
    long, short = groups(lengths, 0, elements, None, NARROW)
    assert (long.sequences.tolist(), long.L, short.L) == ([0], 16, 30)
    (joined,) = groups(lengths[[0, 1]], 0, elements, None, NARROW)
    assert (joined.sequences.tolist(), joined.L) == ([0, 1], 16)
