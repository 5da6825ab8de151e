"""Decay matrices: how much of the write of step j is left when step t reads.

Source: Beck et al., xLSTM, arXiv:2405.04517, appendix A (the matrices F and D̃ of the mLSTM's parallel form).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jax_impl._arrays import JAX, accumulation
from jax_impl._gates import forget_matrix, forget_matrix_gradient, log_sigmoid, sigmoid
from jax_impl._handwritten_gradient import handwritten_gradient, without_second_derivative
from jax_impl._mesh_axes import partition, vary_alike, with_auto_axes
from reference.arguments import check_dtilde_matrix, check_scan


def causal_forget_matrix(forget_gates: jax.Array) -> jax.Array:
    """Log decay between every two steps: ``F[t,j] = Σ_{j<s≤t} a_s`` for t ≥ j, 0 on the diagonal, −∞ above it.

    A masked cumulative sum, never a difference of two sums: ``a_s = −∞`` (a hard reset) is allowed, and nothing
    cancels.
    Differentiable any number of times, in both modes.

    Args:
        forget_gates: log gates a, ``(..., S)``; in [−∞, 0] if they come from a sigmoid.

    Returns:
        F, ``(..., S, S)``, in the dtype of `forget_gates`; summed in float32 at least.

    Raises:
        TypeError: `forget_gates` is not a floating-point array.
        ValueError: `forget_gates` has no axis.
    """
    check_scan(JAX, forget_gates, "causal_forget_matrix", "forget_gates")
    return _causal_forget_matrix(forget_gates)


@jax.jit
def _causal_forget_matrix(a: jax.Array) -> jax.Array:
    def computed(a: jax.Array) -> jax.Array:
        return forget_matrix(a.astype(accumulation(a))).astype(a.dtype)

    return with_auto_axes(computed, a, lambda: P(*partition(a)[:-1], None, None))


def dtilde_matrix(igate: jax.Array, fgate: jax.Array) -> jax.Array:
    """Log weight of the write of step j when step t reads: ``D̃[t,j] = Σ_{j<s≤t} log σ(fgate_s) + igate_j``.

    It has its own gradient rule, of cost O(S²): ``digate_j = Σ_t dD̃[t,j]`` over *all* rows t, including the masked
    ones, so that the gradient of ``D̃.sum()`` is S for every input gate. ``dfgate_t = σ(−fgate_t) Σ_{s≥t} Σ_{j<t}
    dD̃[s,j]``, without the masked rows. Differentiable once, in reverse mode.

    Args:
        igate: input gate preactivations, ``(..., S, 1)``.
        fgate: forget gate preactivations, ``(..., S, 1)``.

    Returns:
        D̃, ``(..., S, S)``, in the dtype of the gates, −∞ above the diagonal; summed in float32 at least.

    Raises:
        TypeError: an argument is not a floating-point array, or their dtypes differ.
        ValueError: the shapes differ or do not end in 1.
    """
    check_dtilde_matrix(JAX, igate, fgate)
    return _dtilde_matrix(DtildeArguments(igate, fgate))


class DtildeArguments(NamedTuple):
    """The arguments of `dtilde_matrix`, gate preactivations ``(..., S, 1)``, or their gradients."""

    igate: jax.Array
    fgate: jax.Array


def _forward(_: None, gates: DtildeArguments) -> tuple[jax.Array, jax.Array]:
    """D̃, and the forget gates as the only residual."""
    dtype = accumulation(gates.igate)
    F = forget_matrix(log_sigmoid(gates.fgate[..., 0].astype(dtype)))
    return (F + gates.igate[..., None, :, 0].astype(dtype)).astype(gates.igate.dtype), gates.fgate


@without_second_derivative("dtilde_matrix")
def _backward(_: None, fgate: jax.Array, dD: jax.Array) -> DtildeArguments:
    dtype = accumulation(fgate)
    dD = dD.astype(dtype)
    di = jnp.sum(dD, axis=-2)[..., None]
    df = sigmoid(-fgate.astype(dtype)) * forget_matrix_gradient(dD)[..., None]
    return DtildeArguments(igate=di.astype(fgate.dtype), fgate=df.astype(fgate.dtype))


_differentiable = handwritten_gradient("dtilde_matrix", DtildeArguments, _forward, _backward)


@jax.jit
def _dtilde_matrix(gates: DtildeArguments) -> jax.Array:
    gates = vary_alike(gates)
    return with_auto_axes(
        lambda gates: _differentiable(None, gates), gates, lambda: P(*partition(gates.igate)[:-2], None, None)
    )
