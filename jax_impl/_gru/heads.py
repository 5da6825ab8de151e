"""Groups of heads that share weights, and the layouts in which the GRU's passes compute.

Heads are split into groups with separate weights, so that a step is one product of ``(B·heads, H)`` by ``(H, H)`` for
each group and kind of weight. In these layouts, *heads* are the heads of one group:

- by step: ``(S, groups, B, heads, H)``, or packed ``(groups, T, heads, H)``
- states: ``(groups, B, heads, H)``
"""

from math import lcm

import jax
import jax.numpy as jnp

from jax_impl._arrays import accumulation, zeros_like_states
from jax_impl._gru.arguments import Arguments, Gradients, Inputs, Weights


def group_count(arguments: Arguments) -> int:
    """The smallest number of groups of heads such that each group has one weight of every kind."""
    return lcm(*(W.shape[0] for W in (arguments.W, arguments.Wf, arguments.Wr)))


def weights_by_group(arguments: Arguments, dtype: jax.typing.DTypeLike) -> Weights:
    """The weights of every group, ``(groups, H, H)``, and the bias, ``(groups, H)``."""
    groups = group_count(arguments)
    return jax.tree.map(lambda w: jnp.repeat(w.astype(dtype), groups // w.shape[0], axis=0), arguments.weights)


def inputs_of_all_heads(arguments: Arguments) -> Inputs:
    """The inputs with N heads each, in the accumulation dtype."""
    N, dtype = arguments.N, accumulation(arguments.x)
    return Inputs(*(jnp.repeat(x.astype(dtype), N // x.shape[-2], axis=-2) for x in arguments.inputs))


def inputs_by_step(arguments: Arguments) -> Inputs:
    return Inputs(*(by_step(x, arguments) for x in inputs_of_all_heads(arguments)))


def initial_state(arguments: Arguments) -> jax.Array:
    """The initial state, ``(B, N, H)``; zeros if none was given."""
    if arguments.initial_state is not None:
        return arguments.initial_state
    (zeros,) = zeros_like_states(arguments.x, (arguments.B, arguments.N, arguments.x.shape[-1]))
    return zeros


def by_group(x: jax.Array, arguments: Arguments) -> jax.Array:
    """``(…, N, H)`` → ``(…, groups, heads, H)``."""
    return in_groups(x, group_count(arguments))


def in_groups(x: jax.Array, groups: int) -> jax.Array:
    """``(…, N, H)`` → ``(…, groups, heads, H)``."""
    return x.reshape(*x.shape[:-2], groups, x.shape[-2] // groups, x.shape[-1])


def from_groups(x: jax.Array) -> jax.Array:
    """Inverse of `in_groups`."""
    return x.reshape(*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1])


def by_step(x: jax.Array, arguments: Arguments) -> jax.Array:
    """Tokens ``(B, S, N, H)`` or ``(T, N, H)`` in the layout by step."""
    x = by_group(x, arguments)
    return jnp.transpose(x, (1, 2, 0, 3, 4)) if arguments.cu_seqlens is None else jnp.moveaxis(x, 1, 0)


def from_steps(x: jax.Array, arguments: Arguments) -> jax.Array:
    """Inverse of `by_step`."""
    return from_groups(jnp.transpose(x, (2, 0, 1, 3, 4)) if arguments.cu_seqlens is None else jnp.moveaxis(x, 0, 1))


def state_by_group(h: jax.Array, arguments: Arguments) -> jax.Array:
    """``(B, N, H)`` → ``(groups, B, heads, H)``."""
    return jnp.moveaxis(by_group(h, arguments), 1, 0)


def state_from_groups(h: jax.Array) -> jax.Array:
    """Inverse of `state_by_group`."""
    groups, B, heads, H = h.shape
    return jnp.moveaxis(h, 0, 1).reshape(B, groups * heads, H)


def gradients_of(arguments: Arguments, inputs: Inputs, weights: Weights, dh0: jax.Array) -> Gradients:
    """Gradients with the shapes and dtypes of the arguments.

    Args:
        inputs: gradients for all heads, ``(B, S, N, H)`` or ``(T, N, H)``.
        weights: gradients for all groups.
        dh0: gradient of the initial state, ``(groups, B, heads, H)``.
    """
    dx = Inputs(*(_summed(d, x, x.ndim - 2) for d, x in zip(inputs, arguments.inputs, strict=True)))
    dW = jax.tree.map(lambda d, weight: _summed(d, weight, 0), weights, arguments.weights)
    dinitial = None if arguments.initial_state is None else state_from_groups(dh0)
    return Gradients(**dx._asdict(), **dW._asdict(), initial_state=dinitial)


def _summed(gradient: jax.Array, like: jax.Array, axis: int) -> jax.Array:
    """The gradient summed over the heads that share one head, in that head's dtype."""
    heads = like.shape[axis]
    shape = (*gradient.shape[:axis], heads, gradient.shape[axis] // heads, *gradient.shape[axis + 1 :])
    return jnp.sum(gradient.reshape(shape), axis=axis + 1).astype(like.dtype)
