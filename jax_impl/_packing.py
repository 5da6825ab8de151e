"""Packed sequences: the sequence that each token belongs to.

Indices are int32, as `cu_seqlens` is inside an operation, also where ``jax_enable_x64`` makes those of JAX int64: with
``jax_numpy_dtype_promotion="strict"`` the two may not meet.
"""

import jax
import jax.numpy as jnp


def indices(n: int) -> jax.Array:
    """``0, …, n − 1`` in int32."""
    return jnp.arange(n, dtype="int32")


def argsort(x: jax.Array) -> jax.Array:
    """`jax.numpy.argsort` in int32."""
    return jnp.argsort(x).astype("int32")


def sequence_of_tokens(cu_seqlens: jax.Array, T: int) -> jax.Array:
    """The sequence that each of T tokens belongs to, ``(T,)``; within bounds for any values of ``cu_seqlens``."""
    B = cu_seqlens.shape[0] - 1
    return jnp.clip(jnp.searchsorted(cu_seqlens, indices(T), side="right") - 1, 0, B - 1)
