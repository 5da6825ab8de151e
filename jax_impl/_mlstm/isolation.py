"""Values of packed sequences that are not usable, and the results that they spoil, in their own sequence and head.

In a chunk that several sequences share, products multiply the tokens of all other sequences by 0, and 0·NaN is NaN.
Values that are not usable are therefore replaced before the chunks are computed, and the results that depend on them
are NaN.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._arrays import einsum
from jax_impl._mlstm.arguments import Tokens
from jax_impl._mlstm.inter_chunk import expand
from jax_impl._mlstm.packed_sequences import Borders
from jax_impl._packing import indices
from reference.arguments import MLSTMState


class Spoilt(NamedTuple):
    """Whether results depend on values that are not usable: those of a token ``(T, N)``, of a sequence ``(B, N)``."""

    tokens: jax.Array
    sequences: jax.Array


def unusable_tokens(tokens: Tokens, zero: jax.Array) -> jax.Array:
    """Whether k or v is infinite or NaN, a gate NaN, or i is +∞, ``(T, N)``; all later tokens depend on these.

    Args:
        zero: as in `infinite_or_nan`.
    """
    gates = jnp.isnan(tokens.f) | ~(tokens.i < jnp.inf)
    return gates | infinite_or_nan(tokens.k, zero) | infinite_or_nan(tokens.v, zero)


def unusable_states(state: MLSTMState, zero: jax.Array) -> jax.Array:
    """Whether C or n is infinite or NaN, or m is +∞ or NaN, ``(B, N)``."""
    return infinite_or_nan(state.C, zero) | infinite_or_nan(state.n, zero) | ~(state.m < jnp.inf)


def infinite_or_nan(x: jax.Array, zero: jax.Array) -> jax.Array:
    """Whether x has an infinite or NaN element for an index of its first two axes, ``(·, ·, …)`` → ``(·, ·)``.

    It is NaN times 0, summed by a matrix product, which takes a third of the time of tests of every element.

    Args:
        zero: a number that is 0, but not a constant, which the compiler would take out of the product.
    """
    x = x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
    weights = jnp.broadcast_to(zero.astype(x.dtype), x.shape[2:])
    return jnp.isnan(einsum("tnx,x->tn", x, weights, "highest"))


def usable(tokens: Tokens) -> Tokens:
    """The inputs with 0, or gates that neither write nor forget, in place of what is not usable."""
    return Tokens(
        q=usable_values(tokens.q),
        k=usable_values(tokens.k),
        v=usable_values(tokens.v),
        i=jnp.where(tokens.i < jnp.inf, tokens.i, -jnp.inf),
        f=jnp.where(jnp.isnan(tokens.f), jnp.inf, tokens.f),
    )


def usable_values(x: jax.Array) -> jax.Array:
    """x with 0 in place of infinite and NaN elements."""
    return jnp.where(jnp.isfinite(x), x, 0)


def usable_stabiliser(m: jax.Array) -> jax.Array:
    """m with 0 in place of +∞ and NaN."""
    return jnp.where(m < jnp.inf, m, 0)


def spoilt_from(unusable: jax.Array, borders: Borders) -> Spoilt:
    """The tokens from the first one of a sequence on that is not usable, ``(T, N)``, and the sequences with such."""
    tokens = indices(unusable.shape[0])
    latest = jax.lax.cummax(jnp.where(unusable, tokens[:, None], -1), axis=0)
    begin = borders.begin[:, None]
    return Spoilt(
        tokens=latest >= begin[borders.sequence],
        sequences=(latest[borders.end] >= begin) & ~borders.empty[:, None],
    )


def spoil(where: jax.Array, results: Any) -> Any:
    """A tree of arrays with NaN where the first axes are spoilt."""
    return jax.tree.map(lambda x: jnp.where(expand(where, x), jnp.nan, x), results)
