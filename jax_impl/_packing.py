"""Packed sequences: the sequence that each token belongs to."""

import jax
import jax.numpy as jnp


def sequence_of_tokens(cu_seqlens: jax.Array, T: int) -> jax.Array:
    """The sequence that each of T tokens belongs to, ``(T,)``; within bounds for any values of ``cu_seqlens``."""
    B = cu_seqlens.shape[0] - 1
    return jnp.clip(jnp.searchsorted(cu_seqlens, jnp.arange(T), side="right") - 1, 0, B - 1)
