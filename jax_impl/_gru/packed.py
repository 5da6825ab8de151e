"""The GRU over packed sequences as array code: one loop over steps that advances all sequences together."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jax_impl._gru.arguments import Inputs, Weights
from jax_impl._gru.steps import Product, StepValues, gate_weights, step, step_back, transposed
from jax_impl._mesh_axes import vary_like


def forward(
    dot: Product, inputs: Inputs, weights: Weights, h0: jax.Array, cu_seqlens: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The state after every step, ``(groups, T, heads, H)``, and the final state of each sequence."""
    side_by_side, zeros = gate_weights(weights), _zeros_by_token(h0, inputs.x.shape[1])

    def advance(h: jax.Array, x: Inputs) -> tuple[jax.Array, jax.Array]:
        h = step(dot, h, x, side_by_side)
        return h, h

    return _over_steps(advance, h0, inputs, cu_seqlens, results=zeros)


def backward(
    dot: Product, bound: float | None, values: StepValues, weights: Weights, dlast: jax.Array, cu_seqlens: jax.Array
) -> tuple[Inputs, jax.Array]:
    """Gradients of the inputs, ``(groups, T, heads, H)``, and of the initial state."""
    retreat, zeros = partial(step_back, dot, bound, transposed(weights)), _zeros_by_token(dlast, values.h.shape[1])
    return _over_steps(retreat, dlast, values, cu_seqlens, results=Inputs(zeros, zeros, zeros), reverse=True)


def _zeros_by_token(carry: jax.Array, T: int) -> jax.Array:
    """Zeros ``(groups, T, heads, H)``, given a carry ``(groups, B, heads, H)``."""
    return vary_like(jnp.zeros((carry.shape[0], T, *carry.shape[2:]), carry.dtype), carry)


def _over_steps(
    step: Callable[[jax.Array, Any], tuple[jax.Array, Any]],
    carry: jax.Array,
    xs: Any,
    cu_seqlens: jax.Array,
    results: Any,
    reverse: bool = False,
) -> tuple[Any, jax.Array]:
    """The results by token, and the final carry of each sequence.

    A sequence that has ended (in reverse: has not begun) keeps its carry. No index is out of bounds for any values of
    ``cu_seqlens``.

    Args:
        step: ``carry, x → (carry, result)``.
        carry: ``(groups, B, heads, H)``.
        xs: arrays by token, ``(groups, T, heads, H)``.
        results: the arrays that the results of the steps are written to, by token, with the structure of a step's
            result.
    """
    T = jax.tree.leaves(xs)[0].shape[1]
    length = jnp.diff(cu_seqlens)
    # An invalid packing may claim more steps than there are; no step reads beyond the last token.
    longest = jnp.clip(jnp.max(length, initial=0), 0, T)

    def body(t: jax.Array, loop: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        carry, results = loop
        position = longest - 1 - t if reverse else t
        token = cu_seqlens[:-1] + position
        active = position < length
        x = jax.tree.map(lambda x: jnp.take(x, token, axis=1, mode="clip"), xs)
        moved, result = step(carry, x)
        place = jnp.where(active, token, T)
        results = jax.tree.map(lambda all, one: all.at[:, place].set(one, mode="drop"), results, result)
        return jnp.where(active[:, None, None], moved, carry), results

    carry, results = jax.lax.fori_loop(0, longest, body, (carry, results))
    return results, carry
