"""Packed sequences in chunks of tokens: where they begin and end, what their steps read, and what they leave behind.

The chunks divide all tokens, whichever sequences these belong to, so that a chunk may hold several sequences. It
continues at most one of the chunk before it (the *incoming* sequence), and at most one goes on after it (the
*outgoing* one).

Layout: ``(c, N, L, ·)``, as in `chunkwise` with the heads in parallel; what all heads share has 1 for N.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._mlstm.inter_chunk import Memory
from jax_impl._packing import sequence_of_tokens


class Borders(NamedTuple):
    """The borders of the sequences, ``(B,)``, within bounds for any values of ``cu_seqlens``.

    Attributes:
        begin, end: the first and last token.
        begin_chunk, end_chunk: the chunks of these tokens.
        empty: whether a sequence has no tokens; its last token is then the one before its first.
        sequence: the sequence of each token, ``(T,)``.
    """

    begin: jax.Array
    end: jax.Array
    begin_chunk: jax.Array
    end_chunk: jax.Array
    empty: jax.Array
    sequence: jax.Array

    @classmethod
    def of(cls, cu_seqlens: jax.Array, T: int, L: int) -> "Borders":
        """The borders of T tokens, with L tokens per chunk."""
        begin, end = jnp.clip(cu_seqlens[:-1], 0, T - 1), jnp.clip(cu_seqlens[1:] - 1, 0, T - 1)
        return cls(
            begin=begin,
            end=end,
            begin_chunk=begin // L,
            end_chunk=end // L,
            empty=cu_seqlens[1:] <= cu_seqlens[:-1],
            sequence=sequence_of_tokens(cu_seqlens, T),
        )

    @property
    def across(self) -> jax.Array:
        """Whether a sequence has tokens in several chunks; an empty one may begin in a later chunk than it ends."""
        return self.begin_chunk < self.end_chunk


class InitialReads(NamedTuple):
    """The initial states of the sequences, as their steps need them.

    Attributes:
        m: the initial stabiliser of the sequence of a step, ``(c, N, L)``.
        C, n: what a step reads of its sequence's initial memory: C₀ᵀq̂ ``(c, N, L, V)`` and n₀·q̂ ``(c, N, L)``.
        outgoing: the initial memory of the sequence of a chunk's last step, ``(c, N, K, V)`` and ``(c, N, K)``.
    """

    m: jax.Array
    C: jax.Array
    n: jax.Array
    outgoing: Memory


class InitialReadGradients(NamedTuple):
    """Gradients that reach the initial states.

    Attributes:
        C, n, outgoing: the gradients of the fields of `InitialReads`.
        weight: the weight of the initial memory of a step's sequence at that step, ``(c, N, L)``; 0 if it began in an
            earlier chunk.
    """

    C: jax.Array
    n: jax.Array
    weight: jax.Array
    outgoing: Memory


class FinalContributions(NamedTuple):
    """The contributions of chunks to the final states of the sequences that end in them.

    Attributes:
        written: the weight of a step's write in the final memory of its sequence, ``(c, N, L)``; 0 if it ends later.
        initial: the weight of the initial memory of a step's sequence at that step, 0 if it began in an earlier chunk,
            ``(c, N, L)``; None if all initial states are zeros.
        m: the stabiliser at a step, ``(c, N, L)``.
        incoming: what is left of the incoming memory where its sequence ends, ``(c, N, K, V)`` and ``(c, N, K)``.
    """

    written: jax.Array
    initial: jax.Array | None
    m: jax.Array
    incoming: Memory


class FinalCotangents(NamedTuple):
    """The cotangents dC, dn, dm of the final states, as the steps and chunks of their sequences need them.

    Attributes:
        k, v: the gradients of a step's key and value if its write has the weight 1 in the final memory: ``dC v + dn``
            ``(c, N, L, K)`` and ``dCᵀk`` ``(c, N, L, V)``.
        g: ``dm − ⟨C, dC⟩ − ⟨n, dn⟩`` of a step's sequence, ``(c, N, L)`` (see `StateGradients`).
        initial: ``⟨C₀, dC⟩ + ⟨n₀, dn⟩`` of a step's sequence, ``(c, N, L)``; None if all initial states are zeros.
        incoming: dC and dn of the sequence of a chunk's first step, ``(c, N, K, V)`` and ``(c, N, K)``.
    """

    k: jax.Array
    v: jax.Array
    g: jax.Array
    initial: jax.Array | None
    incoming: Memory


class Sequences(NamedTuple):
    """The sequences in chunks.

    Attributes:
        first, last: whether a step is the first or last one of its sequence, ``(c, 1, L)``.
        initial: the initial states; None if all are zeros.
    """

    first: jax.Array
    last: jax.Array
    initial: InitialReads | None

    @property
    def initial_m(self) -> jax.Array | float:
        """The initial stabiliser of the sequence of a step."""
        return 0.0 if self.initial is None else self.initial.m

    @property
    def begun(self) -> jax.Array:
        """Whether a sequence begins in a chunk, ``(c, 1)``; no memory passes through such a chunk."""
        return jnp.any(self.first, axis=-1)

    @property
    def number(self) -> jax.Array:
        """The number of sequences that have begun in the chunk up to a step, ``(c, 1, L)``."""
        return jnp.cumsum(self.first, axis=-1, dtype="int32")

    @property
    def same(self) -> jax.Array:
        """Whether two steps belong to the same sequence, ``(c, 1, L, L)``."""
        return self.number[..., :, None] == self.number[..., None, :]

    @property
    def ended(self) -> jax.Array:
        """Whether the sequence of a step ends in the chunk, ``(c, 1, L)``."""
        return jnp.any(self.same & self.last[..., None, :], axis=-1)

    def sum_from(self, x: jax.Array) -> jax.Array:
        """``y_t = Σ_{s≥t} x_s`` over steps of one sequence, ``(c, N, L)``."""
        return self._sum(x, _steps(x)[..., None, :] >= _steps(x)[..., :, None])

    def sum_before(self, x: jax.Array) -> jax.Array:
        """``y_t = Σ_{s<t} x_s`` over steps of one sequence, ``(c, N, L)``."""
        return self._sum(x, _steps(x)[..., None, :] < _steps(x)[..., :, None])

    def last_of(self, x: jax.Array) -> jax.Array:
        """The last step of a step's sequence in the chunk at which x is true, or −1: ``(c, N, L)`` → ``(c, N, L)``."""
        return jnp.max(jnp.where(self.same & x[..., None, :], _steps(x)[..., None, :], -1), axis=-1)

    def _sum(self, x: jax.Array, of: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(self.same & of, x[..., None, :], 0), axis=-1)


def _steps(x: jax.Array) -> jax.Array:
    """The numbers of the steps, ``(1, 1, L)``."""
    return jnp.arange(x.shape[-1]).reshape(1, 1, -1)
