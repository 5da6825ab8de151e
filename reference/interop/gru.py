"""The `GRU` layer of `reference` with weights that were read elsewhere."""

import numpy as np

from reference._arrays import float64
from reference._modules import GRU
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


def gru_from_weights(weights: GRUWeights) -> GRU:
    """A `reference.GRU` with these weights.

    Args:
        weights: of any dtype; the layer holds them in float64.

    Returns:
        The layer. Where `weights` have no output projection, its own is the identity.

    Raises:
        TypeError: `weights` are not `GRUWeights`.
        ValueError: a size is 0, or a head count does not divide the largest one.
    """
    if not isinstance(weights, GRUWeights):
        raise TypeError(f"gru_from_weights: `weights` is a {type(weights).__name__}; expected GRUWeights")
    gru = GRU(**weights.arguments())
    gru.params = {
        name: float64(value) if isinstance(value, np.ndarray) else {key: float64(array) for key, array in value.items()}
        for name, value in weights.parameters().items()
    }
    return gru
