"""The division of packed sequences into groups of similar length, each of which is computed by itself.

A chunk has as many steps for a sequence of one step as for a long one. Chunks of one length for all sequences would
therefore make short sequences as expensive as long ones. A group has a chunk length that suits all its sequences, so
that padding adds at most about half of their steps; and as few sequences as keep its intermediate results small.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

_NARROW = 48
"""K + V up to which fewer steps are faster: scores, L for every step, cost more than products with K and V."""

_FEW = 1 << 17
"""Number of padded elements that cost less than one more group."""

_RANKS = 8
"""Number of chunks of every sequence of a group that are computed at once; between them the memory is kept."""


@dataclass(frozen=True)
class Group:
    """Sequences that are computed together.

    Attributes:
        sequences: their positions in the packing, the longest first; none is empty.
        L: steps per chunk.
    """

    sequences: np.ndarray
    L: int


class LongestChunk(NamedTuple):
    """The maximum number of steps per chunk if the caller does not state one.

    Attributes:
        alone: of a sequence that is a single chunk, which has no memory to read or to pass on.
        several: of one that is cut into several chunks.
    """

    alone: int
    several: int


WIDE, NARROW = LongestChunk(alone=64, several=64), LongestChunk(alone=32, several=16)


def longest_chunk(K: int, V: int) -> LongestChunk:
    """The maximum number of steps per chunk for heads of this size."""
    return WIDE if K + V > _NARROW else NARROW


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
) -> list[Group]:
    """Divide sequences into groups; empty sequences are in none.

    Args:
        lengths: the number of steps of every sequence.
        chunk_size: steps per chunk; 0 chooses a length.
        elements: the number of elements by which a chunk of a given length, all heads together, is computed, given
            whether its sequence has several chunks.
        room: the number of elements that are computed at once, of which a group with several sequences has no more in
            its first few chunks; None for any number.
        longest: the maximum number of steps per chunk that is chosen.
    """
    order = np.argsort(-lengths, kind="stable")
    lengths = lengths[order[: np.count_nonzero(lengths)]]
    even = _chunk_lengths(lengths, chunk_size, longest)
    # The class of a sequence that is cut into several chunks is larger than any other.
    whole = _classes(even)
    classes = whole + (lengths > even) * (whole.max(initial=0) + 1)
    joined: list[tuple[int, list[np.ndarray]]] = []
    steps, padding, few = 0, 0, 0
    # Sequences of several chunks first, and from the longest chunks to the shortest: a class joins the group before it
    # where that adds little. Many sequences of a single chunk are not cut for it.
    for each in np.unique(classes)[::-1]:
        members = np.flatnonzero(classes == each)
        own = lengths[members]
        L = joined[-1][0] if joined else 0
        suits = even[members[0]] < own[0] or own[0] <= L or own.sum() <= few
        if joined and suits and padding + _padding(own, L) <= max((steps + own.sum()) // 2, few):
            joined[-1][1].append(members)
        else:
            L = int(even[members].max())
            joined.append((L, [members]))
            steps, padding, few = 0, 0, _FEW * L // elements(L, False)
        steps, padding = steps + own.sum(), padding + _padding(own, L)
    found = []
    for L, parts in joined:
        members = np.sort(np.concatenate(parts))
        chunks = -(-lengths[members] // L)
        # Elements of the first chunks of all sequences before each, and of all.
        needed = elements(L, bool(chunks[0] > 1)) * np.cumsum([0, *np.minimum(chunks, _RANKS)])
        first, last = 0, len(members)
        while first < len(members):
            if room is not None:
                last = max(first + 1, int(np.searchsorted(needed, needed[first] + room, side="right")) - 1)
            found.append(Group(sequences=order[members[first:last]], L=L))
            first = last
    return found
