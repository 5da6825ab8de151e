"""JAX and `jax_impl` as the tests of both frameworks use them; `with_torch` offers the same names."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_impl as package  # noqa: F401

concatenate, stack, leaves = jnp.concatenate, jnp.stack, jax.tree.leaves
vmap, wide = jax.vmap, jax.enable_x64


def array(x: np.ndarray, dtype: str) -> jax.Array:
    return jnp.asarray(np.array(x), dtype)


def numpy(x: jax.Array) -> np.ndarray:
    return np.asarray(x, np.float64)


def dtype_of(x: jax.Array) -> str:
    return x.dtype.name


def pull_back(
    function: Callable, arrays: Sequence[jax.Array], cotangents: Sequence[jax.Array]
) -> tuple[list[jax.Array], list[Any]]:
    """The leaves of ``function(*arrays)``, and the gradients of the arrays."""
    outputs, vjp = jax.vjp(lambda *x: leaves(function(*x)), *arrays)
    return outputs, list(vjp(list(cotangents)))
