"""Exponential moving average with a gate: a scan that JAX differentiates."""

import jax
import jax.numpy as jnp

from jax_impl._arrays import JAX, accumulation
from reference.arguments import check_ema


def ema(x: jax.Array, f: jax.Array, initial: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """Moving average with a forget gate; arguments and errors as in `reference.ema`."""
    check_ema(JAX, x, f, initial)
    wide = accumulation(x)
    start = jnp.zeros((x.shape[0], x.shape[2]), wide) if initial is None else initial

    def step(y: jax.Array, at_step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x_t, f_t = at_step
        y = jax.nn.sigmoid(f_t) * y + jax.nn.sigmoid(-f_t) * x_t
        return y, y

    x_steps, f_steps = (jnp.moveaxis(each.astype(wide), 1, 0) for each in (x, f))
    last, y = jax.lax.scan(step, start, (x_steps, f_steps))
    return jnp.moveaxis(y, 0, 1).astype(x.dtype), last
