"""The division of packed sequences into groups of similar length, each of which is computed by itself.

A chunk has as many steps for a sequence of one step as for a long one. Chunks of one length for all sequences would
therefore make short sequences as expensive as long ones. A group has a chunk length that suits all its sequences, so
that padding adds at most about half of their steps; and as few sequences as keep its intermediate results small.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

CHUNK = 64
"""Maximum number of steps per chunk if the caller does not state one."""

_NARROW = 48
"""K + V up to which half as many steps are faster: scores, L for every step, cost more than products with K and V."""

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


def longest_chunk(K: int, V: int) -> int:
    """The maximum number of steps per chunk, for heads of this size, if the caller does not state one."""
    return CHUNK if K + V > _NARROW else CHUNK // 2


def chunk_length(steps: int, chunk_size: int, longest: int = CHUNK) -> int:
    """Steps per chunk: ``chunk_size``, or for 0 the most even split into at most ``longest``; at most ``steps``."""
    if steps < 1:
        return 1
    if chunk_size:
        return min(chunk_size, steps)
    return -(-steps // -(-steps // longest))


def _even(lengths: np.ndarray, chunk_size: int, longest: int) -> np.ndarray:
    """`chunk_length` of every length."""
    return np.minimum(lengths, chunk_size) if chunk_size else -(-lengths // -(-lengths // longest))


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
    longest: int = CHUNK,
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
    even = _even(lengths, chunk_size, longest)
    classes = _classes(even)
    joined: list[list[np.ndarray]] = []
    L, steps, padding, few = 0, 0, 0, 0
    # From the longest chunks to the shortest, a class joins the group before it where that adds little.
    for length in np.unique(classes)[::-1]:
        members = np.flatnonzero(classes == length)
        own = lengths[members]
        if joined and padding + _padding(own, L) <= max((steps + own.sum()) // 2, few):
            joined[-1].append(members)
        else:
            joined.append([members])
            L, steps, padding = int(even[members].max()), 0, 0
            few = _FEW * L // elements(L, False)
        steps, padding = steps + own.sum(), padding + _padding(own, L)
    found = []
    for members in (np.sort(np.concatenate(parts)) for parts in joined):
        L, count = int(even[members].max()), len(members)
        if room is not None:
            chunks = -(-int(lengths[members[0]]) // L)
            count = max(1, room // (elements(L, chunks > 1) * min(chunks, _RANKS)))
        for part in (members[first : first + count] for first in range(0, len(members), count)):
            found.append(Group(sequences=order[part], L=L))
    return found
