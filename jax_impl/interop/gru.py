"""The `GRU` layer of `jax_impl` with weights that were read elsewhere."""

from typing import Any

import jax
import jax.numpy as jnp

from jax_impl._arrays import JAX
from jax_impl._modules import GRU
from reference.arguments import Call
from reference.interop.gru_checkpoints import gru_weights_from_keras, gru_weights_from_onnx, gru_weights_from_xma
from reference.interop.gru_frameworks import gru_weights_from_flax, gru_weights_from_torch
from reference.interop.gru_weights import GRUWeights

__all__ = [
    "GRUWeights",
    "gru_from_weights",
    "gru_weights_from_flax",
    "gru_weights_from_keras",
    "gru_weights_from_onnx",
    "gru_weights_from_torch",
    "gru_weights_from_xma",
]


def gru_from_weights(weights: GRUWeights) -> tuple[GRU, dict[str, Any]]:
    """A `jax_impl.GRU` and its variables with these weights.

    Args:
        weights: the parameters have their dtype.

    Returns:
        ``(gru, variables)``, to be called as ``gru.apply(variables, input)``. Where `weights` have no output
        projection, the layer's own is the identity; to train nothing but what was given, leave
        ``output_projection`` out of the optimiser (``optax.masked``).

    Raises:
        TypeError: `weights` are not `GRUWeights`, or they are float64 without ``jax_enable_x64``.
        ValueError: a size is 0, or a head count does not divide the largest one.
    """
    if not isinstance(weights, GRUWeights):
        raise TypeError(f"gru_from_weights: `weights` is a {type(weights).__name__}; expected GRUWeights")
    Call("gru_from_weights", JAX).kind(**{"weights.input_kernel": weights.input_kernel})
    gru = GRU(**weights.arguments(), param_dtype=weights.dtype)
    return gru, {"params": jax.tree.map(jnp.asarray, weights.parameters())}
