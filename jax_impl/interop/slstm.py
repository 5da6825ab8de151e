"""The `sLSTM` layer of `jax_impl` with weights that were read elsewhere."""

from typing import Any

import jax
import jax.numpy as jnp

from jax_impl._arrays import JAX
from jax_impl._slstm.layer import sLSTM
from reference.arguments import Call
from reference.interop.slstm_weights import SLSTMWeights, slstm_weights_from_xlstm

__all__ = ["SLSTMWeights", "slstm_from_weights", "slstm_weights_from_xlstm"]


def slstm_from_weights(weights: SLSTMWeights) -> tuple[sLSTM, dict[str, Any]]:
    """A `jax_impl.sLSTM` and its variables with these weights.

    Args:
        weights: the parameters have their dtype.

    Returns:
        ``(layer, variables)``, to be called as ``layer.apply(variables, input)``. Where `weights` have no output
        projection, the layer's own is the identity.

    Raises:
        TypeError, ValueError: `weights` are not `SLSTMWeights`, are float64 without ``jax_enable_x64``, or a size is 0.
    """
    if not isinstance(weights, SLSTMWeights):
        raise TypeError(f"slstm_from_weights: `weights` is a {type(weights).__name__}; expected SLSTMWeights")
    Call("slstm_from_weights", JAX).kind(**{"weights.input_kernel": weights.input_kernel})
    layer = sLSTM(**weights.arguments(), param_dtype=weights.input_kernel.dtype)
    return layer, {"params": jax.tree.map(jnp.asarray, weights.parameters())}
