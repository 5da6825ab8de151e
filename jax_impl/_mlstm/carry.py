"""The values that pass from chunk to chunk: the stabiliser, the memory and, in the backward pass, its gradient.

Everything else is computed for all chunks at once (`chunkwise`, which defines the names and the layout). If the chunks
hold several sequences, one after the other, states have the shape ``(B, *rest, ·)`` and `SequenceBounds` gives the
start and end of each sequence.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._mesh_axes import vary_like
from jax_impl._mlstm.chunk_layout import SequenceBounds
from jax_impl._mlstm.state import StateGradients


class Memory(NamedTuple):
    """C and n: a memory, the amount that a chunk adds to it, or the gradient of either."""

    C: jax.Array
    n: jax.Array


def stabilisers(b_last: jax.Array, largest: jax.Array, initial: jax.Array, bounds: SequenceBounds | None) -> jax.Array:
    """m at the start of every chunk, ``(c, *rest)``: ``m ← max(b_L + m, max_j D[L,j])``."""

    def chunk(m: jax.Array, x: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        total, most = x
        return jnp.maximum(total + m, most), m

    _, start = _scan(chunk, initial, (b_last, largest), bounds)
    return start


def memories(decay: jax.Array, added: Memory, initial: Memory, bounds: SequenceBounds | None) -> tuple[Memory, Memory]:
    """The memory at the start of every chunk and the final memory: ``C ← decay·C + added``."""

    def chunk(memory: Memory, x: tuple[jax.Array, Memory]) -> tuple[Memory, Memory]:
        return _decayed(x[0], memory, x[1]), memory

    last, starts = _scan(chunk, initial, (decay, added), bounds)
    return starts, last if bounds is None else final_memory(decay, added, starts, initial, bounds)


def final_memory(
    decay: jax.Array, added: Memory, starts: Memory, initial: Memory, bounds: SequenceBounds | None
) -> Memory:
    """The final memory, given the memory at the start of every chunk."""
    if bounds is None:
        if decay.shape[0] == 0:
            return initial
        return _decayed(decay[-1], *jax.tree.map(lambda x: x[-1], (starts, added)))
    at = bounds.last_chunk
    last = _decayed(decay[at], *jax.tree.map(lambda x: x[at], (starts, added)))
    return jax.tree.map(lambda x, empty: _where(bounds.empty, empty, x), last, initial)


def memory_gradients(
    decay: jax.Array, added: Memory, attains: jax.Array, dlast: StateGradients, bounds: SequenceBounds | None
) -> tuple[StateGradients, StateGradients]:
    """Gradients of the memory, and g, at the end of every chunk and of the initial state.

    g is passed backward until it reaches a chunk with a step that attains m.
    """

    def chunk(dstate: StateGradients, x: tuple[jax.Array, Memory, jax.Array]) -> tuple[StateGradients, StateGradients]:
        decay, added, attains = x
        dmemory = _decayed(decay, Memory(C=dstate.C, n=dstate.n), added)
        return StateGradients(C=dmemory.C, n=dmemory.n, g=jnp.where(attains, 0, dstate.g)), dstate

    initial, ends = _scan(chunk, dlast, (decay, added, attains), bounds, reverse=True)
    if bounds is not None:
        at_first = jax.tree.map(lambda x: x[bounds.first_chunk], (ends, (decay, added, attains)))
        reached, _ = chunk(*at_first)
        initial = jax.tree.map(lambda x, empty: _where(bounds.empty, empty, x), reached, dlast)
    return ends, initial


def of_last_chunk(x: jax.Array, initial: jax.Array, bounds: SequenceBounds | None) -> jax.Array:
    """Select the value of each sequence's last chunk from one value per chunk; the initial value if it is empty."""
    if bounds is None:
        return x[-1] if x.shape[0] else initial
    return _where(bounds.empty, initial, x[bounds.last_chunk])


def _scan(
    step: Callable, initial: Any, xs: Any, bounds: SequenceBounds | None, reverse: bool = False
) -> tuple[Any, Any]:
    """``lax.scan`` over chunks; the carry restarts from ``initial`` where a sequence begins (in reverse: ends)."""
    if bounds is None:
        return jax.lax.scan(step, initial, xs, reverse=reverse)

    def restarting(carry: Any, x: tuple) -> tuple[Any, Any]:
        restarts, sequence, x = x
        return step(jax.tree.map(lambda start, c: jnp.where(restarts, start[sequence], c), initial, carry), x)

    zeros = jax.tree.map(lambda x: vary_like(jnp.zeros(x.shape[1:], x.dtype), x), initial)
    restarts = bounds.last if reverse else bounds.first
    return jax.lax.scan(restarting, zeros, (restarts, bounds.sequence, xs), reverse=reverse)


def _decayed(decay: jax.Array, memory: Memory, added: Memory) -> Memory:
    return jax.tree.map(lambda x, y: _expand(decay, x) * x + y, memory, added)


def _where(condition: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.where(_expand(condition, x), x, y)


def _expand(x: jax.Array, like: jax.Array) -> jax.Array:
    """Add trailing axes of size 1, up to the number of axes of ``like``."""
    return x.reshape(x.shape + (1,) * (like.ndim - x.ndim))
