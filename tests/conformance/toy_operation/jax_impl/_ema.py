"""Exponential moving average: a scan that JAX differentiates."""

import jax
import jax.numpy as jnp

from jax_impl._arrays import JAX, accumulation
from reference.arguments import check_ema


def ema(x: jax.Array, decay: jax.Array, initial: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """Moving average with a decay per head; arguments and errors as in `reference.ema`."""
    check_ema(JAX, x, decay, initial)
    wide = accumulation(x)
    a = decay.astype(wide)
    start = jnp.zeros((x.shape[0], x.shape[2]), wide) if initial is None else initial

    def step(y: jax.Array, x_t: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = a * y + (1 - a) * x_t
        return y, y

    last, y = jax.lax.scan(step, start, jnp.moveaxis(x.astype(wide), 1, 0))
    return jnp.moveaxis(y, 0, 1).astype(x.dtype), last
