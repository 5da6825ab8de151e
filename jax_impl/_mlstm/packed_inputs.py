"""The inputs of a pass over packed sequences: by token, in blocks of tokens, and in the chunks of a block."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._chunk_layout import join_axes, to_chunks
from jax_impl._mlstm.arguments import Arguments, Options, Tokens
from jax_impl._mlstm.blocks import PADDING, block_size
from jax_impl._mlstm.by_sequence import Tiles
from jax_impl._mlstm.chunkwise import Chunks
from jax_impl._mlstm.inter_chunk import Memory
from jax_impl._mlstm.packed_sequences import Borders, FinalCotangents, InitialReads, Sequences
from jax_impl._mlstm.state import StateGradients
from reference.arguments import MLSTMState


class Packing(NamedTuple):
    """The places of the sequences of a call, computed once for a pass.

    Attributes:
        borders: the first and last token of each sequence.
        tiles: the tokens of each sequence in tiles; None for a pass without states.
        zero: the start of the first sequence, which is 0 (`isolation.infinite_or_nan`).
    """

    borders: Borders
    tiles: Tiles | None
    zero: jax.Array

    @classmethod
    def of(cls, options: Options, arguments: Arguments, states: bool) -> "Packing":
        """The packing of a call.

        Args:
            states: whether the pass has initial states, final states, or cotangents of these.
        """
        cu_seqlens, (T, N) = arguments.cu_seqlens, arguments.tokens.i.shape
        assert cu_seqlens is not None
        return cls(
            borders=Borders.of(cu_seqlens, T, options.chunkwise.L),
            tiles=Tiles.of(cu_seqlens, T, max(1, options.block // max(1, N))) if states else None,
            zero=cu_seqlens[0],
        )

    @property
    def sequence(self) -> jax.Array:
        """The sequence of each token, ``(T,)``."""
        return self.borders.sequence


class ReadsByToken(NamedTuple):
    """`InitialReads` by token, ``(T, N, ·)``."""

    m: jax.Array
    C: jax.Array
    n: jax.Array


class CotangentsByToken(NamedTuple):
    """`FinalCotangents` by token, ``(T, N, ·)``."""

    k: jax.Array
    v: jax.Array
    g: jax.Array
    initial: jax.Array | None


class ByToken(NamedTuple):
    """The inputs of a pass by token, ``(T, ·)``; a block of them likewise.

    Attributes:
        tokens: the inputs of the call.
        first, last: whether a token is the first or last one of its sequence, ``(T, 1)``.
        sequence: the sequence of a token, ``(T, 1)``.
        initial: the reads of the initial states; None if these are zeros.
        spoilt: whether the results of a token are NaN, ``(T, N)``.
        dh: the cotangent of h; None in the forward pass.
        final: the cotangents of the final states; None if they have none.
    """

    tokens: Tokens
    first: jax.Array
    last: jax.Array
    sequence: jax.Array
    initial: ReadsByToken | None
    spoilt: jax.Array
    dh: jax.Array | None = None
    final: CotangentsByToken | None = None

    @classmethod
    def of(
        cls, tokens: Tokens, sequence: jax.Array, initial: ReadsByToken | None, spoilt: jax.Array, **of_gradient: Any
    ) -> "ByToken":
        """The inputs of a pass; ``sequence`` is ``(T,)``."""
        changes = sequence[1:] != sequence[:-1]
        first, last = (jnp.pad(changes, widths, constant_values=True) for widths in ((1, 0), (0, 1)))
        return cls(
            tokens=tokens,
            first=first[:, None],
            last=last[:, None],
            sequence=sequence[:, None],
            initial=initial,
            spoilt=spoilt,
            **of_gradient,
        )


def in_blocks(options: Options, x: ByToken) -> ByToken:
    """``(T, ·)`` → ``(blocks, steps per block, ·)``; the padding continues the last sequence."""
    T, N = x.tokens.i.shape
    size = block_size(options, 1, T, N)
    blocks = jax.tree.map(lambda part: to_chunks(part, 0, size), x)
    gates = {name: to_chunks(getattr(x.tokens, name), 0, size, padding) for name, padding in PADDING.items()}
    sequence = to_chunks(x.sequence, 0, size, x.sequence[-1, 0])
    return blocks._replace(tokens=blocks.tokens._replace(**gates), sequence=sequence)


def from_blocks(x: jax.Array, like: jax.Array) -> jax.Array:
    """``(blocks, steps per block, ·)`` → ``(T, ·)`` with the T of ``like``."""
    return join_axes(x)[: like.shape[0]]


def in_chunks(options: Options, x: jax.Array) -> jax.Array:
    """A block ``(steps, N, ·)`` in chunks, ``(c, N, L, ·)``."""
    return jnp.moveaxis(to_chunks(x, 0, options.chunkwise.L), 2, 1)


def from_chunks(x: jax.Array) -> jax.Array:
    """Inverse of `in_chunks`."""
    return join_axes(jnp.moveaxis(x, 1, 2))


def chunks_of(options: Options, tokens: Tokens, dtype: Any) -> Chunks:
    """The inputs of a block in chunks, in the accumulation dtype, with q divided by √K."""
    chunks = Chunks(*(in_chunks(options, part).astype(dtype) for part in tokens))
    return chunks._replace(q=chunks.q * tokens.q.shape[-1] ** -0.5)


def sequences_of(options: Options, x: ByToken, initial: MLSTMState | None) -> Sequences:
    """The sequences of a block in chunks."""
    first, last, sequence = (in_chunks(options, part) for part in (x.first, x.last, x.sequence))
    if initial is None or x.initial is None:
        return Sequences(first=first, last=last, initial=None)
    outgoing = sequence[:, 0, -1]
    return Sequences(
        first=first,
        last=last,
        initial=InitialReads(
            *(in_chunks(options, part) for part in x.initial),
            outgoing=Memory(C=initial.C[outgoing], n=initial.n[outgoing]),
        ),
    )


def cotangents_of(options: Options, x: ByToken, dfinal: StateGradients | None) -> FinalCotangents | None:
    """The cotangents of the final states as the chunks of a block need them."""
    if dfinal is None or x.final is None:
        return None
    incoming = in_chunks(options, x.sequence)[:, 0, 0]
    final = jax.tree.map(partial(in_chunks, options), x.final)
    return FinalCotangents(*final, incoming=Memory(C=dfinal.C[incoming], n=dfinal.n[incoming]))
