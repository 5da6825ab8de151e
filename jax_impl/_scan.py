"""Reverse cumulative sums, which carry the gradient of a decay back in time (xlstm_jax, fwbw backend)."""

import jax
import jax.numpy as jnp

from jax_impl._arrays import JAX, accumulation
from jax_impl._call_cache import cached_by_signature
from jax_impl._gates import sum_from
from reference.arguments import check_scan


def rev_cumsum(x: jax.Array) -> jax.Array:
    """Sum of each element and all elements after it: ``y_t = Σ_{s≥t} x_s``.

    Differentiable any number of times, in both modes.

    Args:
        x: ``(..., S)``, floating-point.

    Returns:
        ``(..., S)``, in the dtype of `x`; summed in float32 at least.

    Raises:
        TypeError: `x` is not a floating-point array.
        ValueError: `x` has no axis.
    """
    _checked(x, "rev_cumsum")
    return _rev_cumsum(x)


def rev_cumsum_off(x: jax.Array) -> jax.Array:
    """Sum of all elements after each element: ``y_t = Σ_{s>t} x_s``; the last output is 0.

    Arguments, dtypes, derivatives and errors are those of `rev_cumsum`.
    """
    _checked(x, "rev_cumsum_off")
    return _rev_cumsum_off(x)


@cached_by_signature
def _checked(x: jax.Array, function: str) -> bool:
    check_scan(JAX, x, function)
    return True


@jax.jit
def _rev_cumsum(x: jax.Array) -> jax.Array:
    return sum_from(x.astype(accumulation(x))).astype(x.dtype)


@jax.jit
def _rev_cumsum_off(x: jax.Array) -> jax.Array:
    later = jnp.pad(x.astype(accumulation(x)), [(0, 0)] * (x.ndim - 1) + [(0, 1)])[..., 1:]
    return sum_from(later).astype(x.dtype)
