"""The mLSTM's state: zeros, the normaliser's floor, and the gradient of the stabiliser m."""

from typing import NamedTuple

import jax
import jax.export
import jax.numpy as jnp

from jax_impl._arrays import zeros_like_states
from reference.arguments import MLSTMState

# This allows an exported function that takes or returns a state to be serialised.
jax.export.register_namedtuple_serialization(MLSTMState, serialized_name="gatespec.MLSTMState")

LARGEST_M = 64.0
"""The stabiliser above which the normaliser's floor exp(−m) no longer falls; exp(−64) is still a float32."""


class StateGradients(NamedTuple):
    """The gradient of a state as the backward pass carries it through the chunks.

    There m counts as a constant, except for g, which belongs to the gate that attained m.

    Attributes:
        C, n: gradients of the memory.
        g: ``dm − ⟨C, dC⟩ − ⟨n, dn⟩``.
    """

    C: jax.Array
    n: jax.Array
    g: jax.Array


def normaliser_floor(m: jax.Array) -> jax.Array:
    """``exp(−min(m, 64))``."""
    return jnp.exp(-jnp.minimum(m, LARGEST_M))


def inner_product(state: MLSTMState, dC: jax.Array, dn: jax.Array) -> jax.Array:
    """⟨C, dC⟩ + ⟨n, dn⟩."""
    return jnp.sum(state.C * dC, axis=(-2, -1)) + jnp.sum(state.n * dn, axis=-1)


def split_stabiliser_gradient(last: MLSTMState, dlast: MLSTMState) -> StateGradients:
    """The gradient of a final state as `StateGradients`, given its cotangents."""
    return StateGradients(C=dlast.C, n=dlast.n, g=dlast.m - inner_product(last, dlast.C, dlast.n))


def weighted(d: StateGradients, weight: jax.Array) -> StateGradients:
    """The gradient of a memory that counts with a weight ``(…)`` in the state to which ``d`` belongs."""
    return StateGradients(C=weight[..., None, None] * d.C, n=weight[..., None] * d.n, g=d.g)


def join_stabiliser_gradient(initial: MLSTMState, gradients: StateGradients) -> MLSTMState:
    """Inverse of `split_stabiliser_gradient`, for the initial state: ``dm = g + ⟨C, dC⟩ + ⟨n, dn⟩``."""
    dC, dn, g = gradients.C, gradients.n, gradients.g
    return MLSTMState(C=dC, n=dn, m=g + inner_product(initial, dC, dn))


def given_or_zeros(initial: MLSTMState | None, q: jax.Array, v: jax.Array, B: int) -> MLSTMState:
    """The initial state of B sequences, or zeros if it is None; q ``(…, N, K)``, v ``(…, N, V)``."""
    if initial is not None:
        return initial
    N, K, V = q.shape[-2], q.shape[-1], v.shape[-1]
    return MLSTMState(*zeros_like_states(v, (B, N, K, V), (B, N, K), (B, N)))
