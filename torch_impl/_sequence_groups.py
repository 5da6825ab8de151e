"""The division of packed sequences into groups of similar length, each of which is computed by itself.

A chunk has as many steps for a sequence of one step as for a long one. Chunks of one length for all sequences would
therefore make short sequences as expensive as long ones. A group has a chunk length that suits all its sequences, so
that padding adds little. It is computed in batches of as few sequences as keep intermediate results small. A long
sequence, whose intermediate results alone are too large, is a group by itself and is cut into segments.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

_NARROW = 48
"""K + V up to which fewer steps are faster: scores, L for every step, cost more than products with K and V."""

_WIDEST = 256
"""Maximum number of steps of a sequence that is a single chunk, however wide its heads are."""

_FEW = 1 << 17
"""Number of padded elements that cost less than one more group."""

_WHOLE, _CUT = 4, 16
"""The part of their steps that padding may add to sequences of a single chunk (a quarter), and of several chunks."""


@dataclass(frozen=True)
class Group:
    """Sequences with chunks of one length.

    Attributes:
        sequences: their positions in the packing, the longest first; none is empty.
        L: steps per chunk.
        batches: for sequences that are computed together, the position of the first among `sequences`, and that after
            the last.
        segments: number of parts, of equally many chunks, that are computed one after the other; 1 for all groups but
            those of a single long sequence.
    """

    sequences: np.ndarray
    L: int
    batches: tuple[tuple[int, int], ...]
    segments: int = 1


class LongestChunk(NamedTuple):
    """The maximum number of steps per chunk if the caller does not state one.

    Attributes:
        alone: of a sequence that is a single chunk, which has no memory to read or to pass on.
        several: of one that is cut into several chunks.
    """

    alone: int
    several: int


WIDE, NARROW = LongestChunk(alone=64, several=64), LongestChunk(alone=32, several=16)


def longest_chunk(K: int, V: int, states: bool = True) -> LongestChunk:
    """The maximum number of steps per chunk for heads of this size.

    Without ``states`` to read or to pass on, a single chunk of L steps needs L × L scores, and no memory of K × V
    numbers. It may then be longer, the wider the heads are.
    """
    if K + V <= _NARROW:
        return NARROW
    return WIDE if states else WIDE._replace(alone=max(WIDE.alone, min(K + V, _WIDEST)))


def chunk_length(steps: int, chunk_size: int, longest: LongestChunk = WIDE) -> int:
    """Steps per chunk: ``chunk_size``, or for 0 the most even split into at most ``longest``; at most ``steps``."""
    if steps < 1:
        return 1
    if chunk_size:
        return min(chunk_size, steps)
    # A number of steps that is traced is compared with no more limits than are needed.
    if longest.alone > longest.several and steps <= longest.alone:
        return steps
    return -(-steps // -(-steps // longest.several))


def most_chunks(steps: int, sequences: int, chunk_size: int, longest: LongestChunk) -> int:
    """No packing of so many steps in so many sequences has more chunks in its `groups`."""
    # The most even split into several chunks has more than half of the maximum in each.
    shortest = chunk_size or longest.several // 2 + 1
    return steps // shortest + sequences


_NO_LIMIT = 1 << 62
"""A chunk longer than any sequence, which an operator's 64 bits hold."""


def as_operator_option(chunk_size: Any) -> int:
    """A call's own ``chunk_size``, which was checked, as an integer; 0 for None."""
    return 0 if chunk_size is None else min(int(chunk_size), _NO_LIMIT)


def _chunk_lengths(lengths: np.ndarray, chunk_size: int, longest: LongestChunk) -> np.ndarray:
    """`chunk_length` of every length."""
    if chunk_size:
        return np.minimum(lengths, chunk_size)
    even = -(-lengths // -(-lengths // longest.several))
    return np.where(lengths <= longest.alone, lengths, even)


def _classes(even: np.ndarray) -> np.ndarray:
    """Chunk lengths rounded up to one of four values per power of two."""
    unit = np.maximum(1 << np.log2(even).astype(int), 4) // 4
    return -(-even // unit) * unit


def _padding(lengths: np.ndarray, L: int) -> int:
    """The number of steps that chunks of L steps add to sequences."""
    return int((-(-lengths // L) * L - lengths).sum())


def groups(
    lengths: np.ndarray,
    chunk_size: int,
    elements: Callable[[int, bool], int],
    room: int | None,
    longest: LongestChunk = WIDE,
    span: int = 0,
) -> list[Group]:
    """Divide sequences into groups; empty sequences are in none.

    Args:
        lengths: the number of steps of every sequence.
        chunk_size: steps per chunk; 0 chooses a length.
        elements: the number of elements by which a chunk of a given length, all heads together, is computed, given
            whether its sequence has several chunks.
        room: the number of elements that are computed at once; a batch of several sequences has no more. None for any
            number.
        longest: the maximum number of steps per chunk that is chosen.
        span: maximum number of steps of a segment, or 0 for no maximum. A sequence of more than two segments is a group
            by itself, whose chunks and segments depend on nothing but its length, ``chunk_size`` and ``longest``. These
            groups come first.
    """
    order = np.argsort(-lengths, kind="stable")
    lengths = lengths[order[: np.count_nonzero(lengths)]]
    even = _chunk_lengths(lengths, chunk_size, longest)
    long = int(np.count_nonzero((lengths > 2 * span) & (lengths > even))) if span else 0
    segments = -(-lengths[:long] // max(1, span))
    found = [Group(order[each : each + 1], int(even[each]), ((0, 1),), int(segments[each])) for each in range(long)]
    order, lengths, even = order[long:], lengths[long:], even[long:]
    for L, members in _joined(lengths, even, elements):
        chunks = -(-lengths[members] // L)
        # Elements of all sequences before each, and of all.
        needed = elements(L, bool(chunks[0] > 1)) * np.cumsum([0, *chunks])
        batches, first, last = [], 0, len(members)
        while first < len(members):
            if room is not None:
                last = max(first + 1, int(np.searchsorted(needed, needed[first] + room, side="right")) - 1)
            batches.append((first, last))
            first = last
        found.append(Group(order[members], L, tuple(batches)))
    return found


def _joined(
    lengths: np.ndarray, even: np.ndarray, elements: Callable[[int, bool], int]
) -> Iterator[tuple[int, np.ndarray]]:
    """Chunk lengths, and the sequences that get each of them, from the chunk length that suits each sequence."""
    # The class of a sequence that is cut into several chunks is larger than any other.
    whole = _classes(even)
    classes = whole + (lengths > even) * (whole.max(initial=0) + 1)
    joined: list[tuple[int, list[np.ndarray]]] = []
    steps, padding, few, part = 0, 0, 0, _CUT
    # Sequences of several chunks first, and from the longest chunks to the shortest: a class joins the group before it
    # where that adds little. Many sequences of a single chunk are not cut for it, nor computed with a memory.
    for each in np.unique(classes)[::-1]:
        members = np.flatnonzero(classes == each)
        own = lengths[members]
        several = bool(even[members[0]] < own[0])
        L = joined[-1][0] if joined else 0
        suits = several or part == _WHOLE or own.sum() <= few
        if joined and suits and padding + _padding(own, L) <= max((steps + own.sum()) // part, few):
            joined[-1][1].append(members)
        else:
            L, part = int(even[members].max()), _CUT if several else _WHOLE
            joined.append((L, [members]))
            steps, padding, few = 0, 0, _FEW * L // elements(L, False)
        steps, padding = steps + own.sum(), padding + _padding(own, L)
    for L, parts in joined:
        yield L, np.sort(np.concatenate(parts))
