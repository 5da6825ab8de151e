"""Products of packed tokens with a memory per sequence, in tiles that hold tokens of one sequence each.

A tile has at most as many tokens as the sequences have on average. There are then at most about twice as many tiles as
sequences or as full tiles, whichever are more, and at most as many places in them as twice the tokens.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._arrays import is_symbolic
from jax_impl._chunk_layout import chunk_table, join_axes, to_chunks
from jax_impl._mlstm.inter_chunk import expand

_LONGEST = 64
"""Maximum number of tokens per tile."""


class Tiles(NamedTuple):
    """The tiles of a packing, in blocks that are computed one after another.

    Attributes:
        token: the tokens of each tile, ``(blocks, tiles, l)``.
        filled: whether there is a token at that place, likewise.
        sequence: the sequence of each tile, ``(blocks, tiles)``.
        place: the place of each token among all places of all tiles, ``(T,)``.
    """

    token: jax.Array
    filled: jax.Array
    sequence: jax.Array
    place: jax.Array

    @classmethod
    def of(cls, cu_seqlens: jax.Array, T: int, block: int) -> "Tiles":
        """The tiles of T tokens, in blocks with at most ``block`` places, or one tile."""
        B = cu_seqlens.shape[0] - 1
        length = _LONGEST if is_symbolic(T, B) else max(1, min(_LONGEST, T // max(1, B)))
        table, size = chunk_table(cu_seqlens, T, length), max(1, block // length)
        token, filled, sequence = (to_chunks(x, 0, size) for x in (table.token, table.filled, table.bounds.sequence))
        return cls(token=token, filled=filled, sequence=sequence, place=table.place)

    def read(self, function: Callable[[Any, Any], Any], states: Any, tokens: Any) -> Any:
        """The results by token, ``(T, ·)``, of a function of tokens and of the state of their sequence.

        Args:
            function: ``(states (tiles, ·), tokens (tiles, l, ·)) → (tiles, l, ·)``, a tree.
            states: a tree of arrays ``(B, ·)``.
            tokens: a tree of arrays ``(T, ·)``.
        """

        def block(_: None, x: tuple[jax.Array, jax.Array]) -> tuple[None, Any]:
            token, sequence = x
            own = jax.tree.map(lambda state: state[sequence], states)
            return None, function(own, jax.tree.map(lambda x: x[token], tokens))

        _, results = jax.lax.scan(block, None, (self.token, self.sequence))
        return jax.tree.map(lambda x: join_axes(x, 3)[self.place], results)

    def sum(self, function: Callable[[Any], Any], tokens: Any, zeros: Any) -> Any:
        """The sums by sequence, ``(B, ·)``, of a function of tokens.

        Args:
            function: ``tokens (tiles, l, ·) → (tiles, ·)``, a sum over l to which tokens of zeros add nothing; a tree.
            tokens: a tree of arrays ``(T, ·)``.
            zeros: a tree of zeros ``(B, ·)``.
        """

        def block(sums: Any, x: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[Any, None]:
            token, filled, sequence = x
            parts = function(jax.tree.map(lambda x: jnp.where(expand(filled, x[token]), x[token], 0), tokens))
            return jax.tree.map(lambda total, part: total.at[sequence].add(part), sums, parts), None

        sums, _ = jax.lax.scan(block, zeros, (self.token, self.filled, self.sequence))
        return sums
