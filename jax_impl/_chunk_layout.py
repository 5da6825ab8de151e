"""Sequences of any length in chunks of one length: dense by padding, packed by a table of chunks.

A chunk that extends beyond the end of its sequence is padded with steps that change nothing.
"""

import math
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._arrays import is_symbolic
from jax_impl._packing import indices, sequence_of_tokens


def chunk_length(S: int, chunk_size: int | None, most: int = 64) -> int:
    """Steps per chunk: ``chunk_size``, or if that is None, the length of equal chunks of at most ``most`` steps.

    For a symbolic S, which jax.export allows, it is ``most``, or a smaller ``chunk_size``: it must not depend on S.
    """
    if chunk_size is None:
        return most if is_symbolic(S) else max(1, -(-S // max(1, -(-S // most))))
    # An array of one integer is accepted, but no static option of a compiled function may be an array.
    longest = operator.index(chunk_size)
    return min(most, longest) if is_symbolic(S) else max(1, min(longest, S))


class SequenceBounds(NamedTuple):
    """The starts and ends of sequences in chunks that hold several sequences, one after the other.

    Attributes:
        first: whether a chunk is the first one of its sequence, ``(c,)``.
        sequence: the sequence that a chunk belongs to, ``(c,)``.
        first_chunk, last_chunk: the first and last chunk of a sequence, ``(B,)``.
        empty: whether a sequence has no steps, ``(B,)``.
    """

    first: jax.Array
    sequence: jax.Array
    first_chunk: jax.Array
    last_chunk: jax.Array
    empty: jax.Array


class ChunkTable(NamedTuple):
    """The position of every token when each packed sequence is cut into its own chunks.

    Its sizes depend on T, B and L alone, so that ``cu_seqlens`` may be traced; every index is within bounds for any
    values of ``cu_seqlens``.

    Attributes:
        token: ``(c, L)``, the token at each position.
        filled: ``(c, L)``, whether the position holds a token.
        place: ``(T,)``, the position of each token among the ``c·L``.
        bounds: where sequences begin and end.
    """

    token: jax.Array
    filled: jax.Array
    place: jax.Array
    bounds: SequenceBounds


def chunk_table(cu_seqlens: jax.Array, T: int, L: int) -> ChunkTable:
    """The table for a packing of T tokens, with ``T // L + B`` chunks, which is enough for any sequence lengths."""
    B = cu_seqlens.shape[0] - 1
    begin, length = cu_seqlens[:-1], jnp.maximum(jnp.diff(cu_seqlens), 0)
    chunks = -(-length // L)
    up_to = jnp.cumsum(chunks)
    before = up_to - chunks

    c = indices(T // L + B)
    sequence = jnp.minimum(jnp.searchsorted(up_to, c, side="right"), B - 1)
    number = c - before[sequence]
    used = c < up_to[-1]
    offset = number[:, None] * L + indices(L)[None, :]
    filled = used[:, None] & (offset < length[sequence][:, None])

    token = indices(T)
    owner = sequence_of_tokens(cu_seqlens, T)
    place = before[owner] * L + token - begin[owner]
    bounds = SequenceBounds(
        first=used & (number == 0),
        sequence=sequence,
        first_chunk=jnp.clip(before, 0, c.size - 1),
        last_chunk=jnp.clip(up_to - 1, 0, c.size - 1),
        empty=chunks == 0,
    )
    return ChunkTable(
        token=jnp.clip(begin[sequence][:, None] + offset, 0, T - 1),
        filled=filled,
        place=jnp.clip(place, 0, c.size * L - 1),
        bounds=bounds,
    )


def to_chunks(x: jax.Array, axis: int, L: int, padding: float | jax.Array = 0.0) -> jax.Array:
    """Cut an axis into chunks of L steps, padding the last chunk: ``(…, S, …)`` → ``(c, …, L, …)``."""
    x = padded(x, axis, L, padding)
    x = x.reshape(*x.shape[:axis], x.shape[axis] // L, L, *x.shape[axis + 1 :])
    return jnp.moveaxis(x, axis, 0)


def padded(x: jax.Array, axis: int, L: int, padding: float | jax.Array = 0.0) -> jax.Array:
    """Lengthen an axis to a multiple of L."""
    S = x.shape[axis]
    if not is_symbolic(S) and S % L == 0:
        return x
    more = -(-S // L) * L - S
    return jnp.pad(x, [(0, more if a == axis else 0) for a in range(x.ndim)], constant_values=padding)


def from_chunks(x: jax.Array, axis: int, S: int) -> jax.Array:
    """Inverse of `to_chunks`."""
    x = jnp.moveaxis(x, 0, axis)
    x = x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])
    return jax.lax.slice_in_dim(x, 0, S, axis=axis)


def join_axes(x: jax.Array, count: int = 2) -> jax.Array:
    """The first axes as one: ``(a, b, …)`` → ``(a·b, …)``, also where another axis has size 0."""
    return x.reshape(math.prod(x.shape[:count]), *x.shape[count:])


def gather_chunks(x: jax.Array, table: ChunkTable, padding: float = 0.0) -> jax.Array:
    """Tokens ``(T, …)`` → ``(c, L, …)``."""
    filled = table.filled.reshape(table.filled.shape + (1,) * (x.ndim - 1))
    return jnp.where(filled, x[table.token], padding)


def gather_tokens(x: jax.Array, table: ChunkTable) -> jax.Array:
    """Inverse of `gather_chunks`."""
    return join_axes(x)[table.place]
