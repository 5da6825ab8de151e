"""The GRU over dense sequences as array code: a loop over steps forward, a loop over blocks of steps backward.

It is designed for the caches of a CPU as much as for an accelerator. Inputs are read and results are written in place,
one step at a time (one block of steps in the backward pass), so that apart from inputs and results nothing as long as
the sequence is transposed or stored. Only what is read of them is put into groups (`heads`): a loop over arrays that
were reshaped before it makes XLA copy each of them when a head has its own group. Within a block, the gates are
recomputed and the gradients of the weights are summed by products over all its steps.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._arrays import is_symbolic
from jax_impl._gru.arguments import Inputs, Weights
from jax_impl._gru.heads import from_groups, in_groups
from jax_impl._gru.steps import (
    Options,
    StepValues,
    gate_weights,
    gates,
    step,
    step_back,
    transposed,
    weight_gradients,
)
from jax_impl._mesh_axes import vary_like

BLOCK = 32
"""Maximum number of steps per block."""


class DenseGradients(NamedTuple):
    """Gradients of the inputs of all heads, of the weights of every group, and of the initial state by group."""

    inputs: Inputs
    weights: Weights
    initial_state: jax.Array


def forward(options: Options, inputs: Inputs, weights: Weights, h0: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The state after every step, ``(B, S, N, H)``, and the final state, ``(groups, B, heads, H)``.

    Args:
        inputs: of all heads, ``(B, S, N, H)``, in the accumulation dtype.
        h0: ``(groups, B, heads, H)``.
    """
    (B, S, N, H), groups = inputs.x.shape, h0.shape[0]
    if S == 0:
        return vary_like(jnp.zeros(inputs.x.shape, h0.dtype), h0), jnp.copy(h0)
    # With an axis of one head, XLA copies arrays that differ only in the order in which they count this axis.
    inputs = Inputs(*(part.reshape(B, S, N * H) for part in inputs))
    y = vary_like(jnp.zeros((B, S, N * H), h0.dtype), h0)
    together = is_symbolic(*h0.shape) or h0.size * H <= options.merged
    by_gate = gate_weights(weights) if together else weights

    def body(t: jax.Array, loop: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        h, y = loop
        rows = (jax.lax.dynamic_index_in_dim(part, t, 1, False) for part in inputs)
        x = Inputs(*(jnp.moveaxis(in_groups(row.reshape(B, N, H), groups), 1, 0) for row in rows))
        h = step(options, h, x, by_gate)
        return h, jax.lax.dynamic_update_index_in_dim(y, jnp.moveaxis(h, 0, 1).reshape(B, N * H), t, 1)

    last, y = jax.lax.fori_loop(0, S, body, (h0, y))
    return y.reshape(B, S, N, H), last


def backward(
    options: Options,
    inputs: Inputs,
    weights: Weights,
    *,
    y: jax.Array,
    h0: jax.Array,
    dy: jax.Array,
    dlast: jax.Array,
) -> DenseGradients:
    """Gradients of the inputs, the weights and the initial state.

    Args:
        inputs: of all heads, ``(B, S, N, H)``.
        y: the state after every step, ``(B, S, N, H)``.
        h0: the initial state, ``(groups, B, heads, H)``.
        dy: the cotangent of the output, ``(B, S, N, H)``.
        dlast: the cotangent of the final state, ``(groups, B, heads, H)``.
    """
    (B, S, N, H), groups = dy.shape, h0.shape[0]
    blocks = -(-S // BLOCK)
    size = BLOCK if is_symbolic(S) else -(-S // max(blocks, 1))
    dinputs = Inputs(*(vary_like(jnp.zeros((B, blocks * size, N * H), dlast.dtype), dlast) for _ in inputs))
    dweights = jax.tree.map(lambda weight: vary_like(jnp.zeros_like(weight), dlast), weights)
    if S == 0:
        return DenseGradients(inputs=_by_head(dinputs, dy), weights=dweights, initial_state=jnp.copy(dlast))
    # As in the forward pass. After the last step f is 1, so that a gradient passes through the padding unchanged.
    *padded, y, dy_padded = (
        jnp.pad(part.reshape(B, S, N * H), [(0, 0), (0, blocks * size - S), (0, 0)]) for part in (*inputs, y, dy)
    )
    inputs = Inputs(*padded)
    side_by_side, back = gate_weights(weights), transposed(weights)

    def body(number: jax.Array, loop: tuple[jax.Array, Inputs, Weights]) -> tuple[jax.Array, Inputs, Weights]:
        dh, dinputs, dweights = loop
        start = (blocks - 1 - number) * size

        def block(part: jax.Array) -> jax.Array:
            steps = jax.lax.dynamic_slice_in_dim(part, start, size, 1).reshape(B, size, N, H)
            return jnp.transpose(in_groups(steps, groups), (2, 1, 0, 3, 4))

        before = jax.lax.dynamic_index_in_dim(y, jnp.maximum(start - 1, 0), 1, False).reshape(B, N, H)
        first = jnp.where(start == 0, h0, jnp.moveaxis(in_groups(before, groups), 1, 0))
        h = jnp.concatenate([first[:, None], block(y)[:, :-1]], axis=1)
        found = gates(options, h, Inputs(*map(block, inputs)), side_by_side)
        if blocks * size != S:
            in_sequence = (start + jnp.arange(size) < S)[:, None, None, None]
            found = found._replace(f=jnp.where(in_sequence, found.f, 1))
        values = StepValues(h=h, gates=found, dy=block(dy_padded))
        dh, dblock = _block_back(options, back, dh, values)
        of_block = weight_gradients(options, "wsbgh,wsbgk->whk", values, dblock)
        dweights = jax.tree.map(jnp.add, dweights, of_block)
        steps = (from_groups(jnp.transpose(one, (2, 1, 0, 3, 4))).reshape(B, size, N * H) for one in dblock)
        put = jax.lax.dynamic_update_slice_in_dim
        dinputs = Inputs(*(put(all, one, start, 1) for all, one in zip(dinputs, steps, strict=True)))
        return dh, dinputs, dweights

    dh0, dinputs, dweights = jax.lax.fori_loop(0, blocks, body, (dlast, dinputs, dweights))
    return DenseGradients(inputs=_by_head(dinputs, dy), weights=dweights, initial_state=dh0)


def _by_head(inputs: Inputs, like: jax.Array) -> Inputs:
    """``(B, S', N·H)`` with S' at least S → ``(B, S, N, H)``."""
    return Inputs(*(part[:, : like.shape[1]].reshape(like.shape) for part in inputs))


def _block_back(options: Options, transposed: Weights, dh: jax.Array, values: StepValues) -> tuple[jax.Array, Inputs]:
    """Apply `step_back` to the steps of a block; arrays are ``(groups, steps, B, heads, H)``."""
    size = values.h.shape[1]

    def body(number: jax.Array, loop: tuple[jax.Array, Inputs]) -> tuple[jax.Array, Inputs]:
        dh, dinputs = loop
        t = size - 1 - number
        here = jax.tree.map(lambda part: jax.lax.dynamic_index_in_dim(part, t, 1, False), values)
        dh, found = step_back(options, transposed, dh, here)
        put = jax.lax.dynamic_update_index_in_dim
        return dh, Inputs(*(put(all, one, t, 1) for all, one in zip(dinputs, found, strict=True)))

    zeros = Inputs(*(jnp.zeros_like(values.h) for _ in Inputs._fields))
    return jax.lax.fori_loop(0, size, body, (dh, zeros))
