"""The recurrence between chunks: the stabiliser, the memory and, in the backward pass, its gradient.

Everything else is computed for all chunks at once (`chunkwise`, which defines the names and the layout).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._arrays import is_symbolic
from jax_impl._mlstm.state import StateGradients

_UNROLLED, _LARGE = 16, 1024
"""The most chunks over which a loop is written out, and the fewest elements of C for which it is. A loop copies the
memory in each of its turns; for a small one that costs less than a longer program takes to compile."""


class Memory(NamedTuple):
    """C and n: a memory, the amount that a chunk adds to it, or the gradient of either."""

    C: jax.Array
    n: jax.Array


class EndedSequence(NamedTuple):
    """The packed sequence that a chunk continues, if it ends in that chunk.

    Attributes:
        here: whether it ends there, ``(c, 1)``.
        g: the gradient of its final stabiliser (`StateGradients.g`), ``(c, N)``.
    """

    here: jax.Array
    g: jax.Array


def stabilisers(b_last: jax.Array, largest: jax.Array, initial: jax.Array) -> jax.Array:
    """m at the start of every chunk, ``(c, *rest)``: ``m ← max(b_L + m, max_j D[L,j])``."""

    def chunk(m: jax.Array, x: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        total, most = x
        return jnp.maximum(total + m, most), m

    _, start = jax.lax.scan(chunk, initial, (b_last, largest))
    return start


def memories(decay: jax.Array, added: Memory, initial: Memory, begun: jax.Array | None = None) -> tuple[Memory, Memory]:
    """The memory at the start of every chunk and the final memory: ``C ← decay·C + added``.

    Args:
        begun: whether a packed sequence begins in a chunk, which then keeps nothing of C, finite or not.
    """

    def chunk(memory: Memory, x: tuple[jax.Array, Memory, jax.Array | None]) -> tuple[Memory, Memory]:
        return _decayed(x[0], memory, x[1], x[2]), memory

    last, starts = _scan(chunk, initial, (decay, added, begun))
    return starts, last


def final_memory(decay: jax.Array, added: Memory, starts: Memory, initial: Memory) -> Memory:
    """The final memory, given the memory at the start of every chunk."""
    if decay.shape[0] == 0:
        return initial
    return _decayed(decay[-1], *jax.tree.map(lambda x: x[-1], (starts, added)))


def memory_gradients(
    decay: jax.Array,
    added: Memory,
    attains: jax.Array,
    dlast: StateGradients,
    ended: EndedSequence | None = None,
    begun: jax.Array | None = None,
) -> tuple[StateGradients, StateGradients]:
    """Gradients of the memory, and g, at the end of every chunk and of the initial state.

    g is passed backward until it reaches a chunk with a step that attains m. Where a sequence of packed tokens ended,
    its own g takes the place of that of the next chunk. ``begun`` is as in `memories`.
    """

    def chunk(
        dstate: StateGradients, x: tuple[jax.Array, Memory, jax.Array, EndedSequence | None, jax.Array | None]
    ) -> tuple[StateGradients, StateGradients]:
        decay, added, attains, ended, begun = x
        dmemory = _decayed(decay, Memory(C=dstate.C, n=dstate.n), added, begun)
        g = dstate.g if ended is None else jnp.where(ended.here, ended.g, dstate.g)
        return StateGradients(C=dmemory.C, n=dmemory.n, g=jnp.where(attains, 0, g)), dstate

    initial, ends = _scan(chunk, dlast, (decay, added, attains, ended, begun), reverse=True)
    return ends, initial


def expand(x: jax.Array, like: jax.Array) -> jax.Array:
    """Add trailing axes of size 1, up to the number of axes of ``like``."""
    return x.reshape(x.shape + (1,) * (like.ndim - x.ndim))


def _scan(chunk: Callable[[Any, Any], tuple[Any, Any]], start: Any, x: tuple[Any, ...], reverse: bool = False) -> Any:
    """``jax.lax.scan`` over chunks, written out where that is faster."""
    chunks = x[0].shape[0]
    unroll = not is_symbolic(chunks, *start.C.shape) and 0 < chunks <= _UNROLLED and start.C.size >= _LARGE
    return jax.lax.scan(chunk, start, x, reverse=reverse, unroll=unroll)


def _decayed(decay: jax.Array, memory: Memory, added: Memory, begun: jax.Array | None = None) -> Memory:
    kept = jax.tree.map(lambda x: expand(decay, x) * x, memory)
    if begun is not None:
        kept = jax.tree.map(lambda x: jnp.where(expand(begun, x), 0, x), kept)
    return jax.tree.map(jnp.add, kept, added)
