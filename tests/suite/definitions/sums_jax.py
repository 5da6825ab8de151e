"""Reverse cumulative sums and decay matrices in JAX, differentiated by JAX."""

import jax
import jax.numpy as jnp

from tests.suite.definitions.mlstm_jax import log_sigmoid


def rev_cumsum(x: jax.Array) -> jax.Array:
    return jax.lax.cumsum(x, axis=x.ndim - 1, reverse=True)


def rev_cumsum_associative(x: jax.Array) -> jax.Array:
    return jax.lax.associative_scan(jnp.add, x, reverse=True, axis=x.ndim - 1)


def rev_cumsum_off(x: jax.Array) -> jax.Array:
    return jnp.concatenate([rev_cumsum(x)[..., 1:], jnp.zeros_like(x[..., :1])], axis=-1)


def rev_cumsum_off_associative(x: jax.Array) -> jax.Array:
    return jnp.concatenate([rev_cumsum_associative(x)[..., 1:], jnp.zeros_like(x[..., :1])], axis=-1)


def causal_forget_matrix(forget_gates: jax.Array) -> jax.Array:
    S = forget_gates.shape[-1]
    sums = jnp.cumsum(jnp.where(jnp.tri(S, S, -1, dtype=bool), forget_gates[..., :, None], 0.0), axis=-2)
    return jnp.where(jnp.tri(S, S, dtype=bool), sums, -jnp.inf)


def dtilde_matrix(igate: jax.Array, fgate: jax.Array) -> jax.Array:
    """A sum of matrices, so that all rows of its cotangent reach the input gates, the masked ones too."""
    return causal_forget_matrix(log_sigmoid(fgate[..., 0])) + jnp.swapaxes(igate, -1, -2)
