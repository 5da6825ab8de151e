"""The `sLSTM` layer of `reference` with weights that were read elsewhere."""

import numpy as np

from reference._arrays import float64
from reference._slstm_layer import sLSTM
from reference.interop.slstm_weights import SLSTMWeights, slstm_weights_from_xlstm

__all__ = ["SLSTMWeights", "slstm_from_weights", "slstm_weights_from_xlstm"]


def slstm_from_weights(weights: SLSTMWeights) -> sLSTM:
    """A `reference.sLSTM` with these weights.

    Args:
        weights: of any dtype; the layer holds them in float64.

    Returns:
        The layer. Where `weights` have no output projection, its own is the identity.

    Raises:
        TypeError, ValueError: `weights` are not `SLSTMWeights`, or a size is 0.
    """
    if not isinstance(weights, SLSTMWeights):
        raise TypeError(f"slstm_from_weights: `weights` is a {type(weights).__name__}; expected SLSTMWeights")
    layer = sLSTM(**weights.arguments())
    layer.params = {
        name: float64(value) if isinstance(value, np.ndarray) else {key: float64(array) for key, array in value.items()}
        for name, value in weights.parameters().items()
    }
    return layer
