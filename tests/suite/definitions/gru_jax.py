"""The definition of the GRU as a `jax.lax.scan`, differentiated by JAX."""

from functools import partial

import jax
import jax.numpy as jnp


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def clipped_gradient(x: jax.Array, bound: float) -> jax.Array:
    """The identity, whose gradient is clipped elementwise to ±bound."""
    return x


def _forward(x: jax.Array, bound: float) -> tuple[jax.Array, None]:
    return x, None


def _backward(bound: float, residuals: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (jnp.clip(gradient, -bound, bound),)


clipped_gradient.defvjp(_forward, _backward)


def gru(
    input: jax.Array,
    weight: jax.Array,
    forget_input: jax.Array,
    forget_weight: jax.Array,
    reset_input: jax.Array,
    reset_weight: jax.Array,
    *,
    input_state: jax.Array | None = None,
    recurrent_bias: jax.Array | None = None,
    gradient_clipping: float | None = None,
) -> tuple[jax.Array, jax.Array]:
    """`gru` of the contract for dense calls; with a recurrent bias, that with the reset gate after the product."""
    dtype = input.dtype
    wide = jnp.float64 if dtype == jnp.float64 else jnp.float32
    tokens, weights = (input, forget_input, reset_input), (weight, forget_weight, reset_weight)
    N = max(*(x.shape[-2] for x in tokens), *(W.shape[0] for W in weights))
    xs = tuple(jnp.moveaxis(jnp.repeat(part.astype(wide), N // part.shape[-2], axis=-2), 1, 0) for part in tokens)
    W, Wf, Wr = (jnp.repeat(part.astype(wide), N // part.shape[0], axis=0) for part in weights)
    bias = None if recurrent_bias is None else jnp.repeat(recurrent_bias.astype(wide), N // len(weight), axis=0)
    state = jnp.zeros((input.shape[0], N, input.shape[-1]), wide) if input_state is None else input_state
    times = partial(jnp.einsum, "bni,nij->bnj", precision=jax.lax.Precision.HIGHEST)

    def step(h: jax.Array, token: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        x, xf, xr = token
        r, f = jax.nn.sigmoid(times(h, Wr) + xr), jax.nn.sigmoid(times(h, Wf) + xf)
        z = jnp.tanh((times(r * h, W) if bias is None else r * (times(h, W) + bias)) + x)
        after = f * h + (1 - f) * z
        return (after if gradient_clipping is None else clipped_gradient(after, abs(gradient_clipping))), after

    last, y = jax.lax.scan(step, state, xs)
    return jnp.moveaxis(y, 0, 1).astype(dtype), last
