"""The `sLSTM` layer of `torch_impl` with weights that were read elsewhere."""

import torch

from reference.interop.slstm_weights import SLSTMWeights, slstm_weights_from_xlstm
from torch_impl._slstm.layer import sLSTM
from torch_impl.interop.gru import load_parameters

__all__ = ["SLSTMWeights", "slstm_from_weights", "slstm_weights_from_xlstm"]


def slstm_from_weights(weights: SLSTMWeights, *, device: torch.device | str | None = None) -> sLSTM:
    """A `torch_impl.sLSTM` with these weights.

    Args:
        weights: the parameters have their dtype.
        device: where the parameters are; None means PyTorch's default device.

    Returns:
        The layer. Where `weights` have no output projection, its own is the identity and its parameters do not require
        a gradient, so that training changes nothing but what was given.

    Raises:
        TypeError, ValueError: `weights` are not `SLSTMWeights`, or a size is 0.
    """
    if not isinstance(weights, SLSTMWeights):
        raise TypeError(f"slstm_from_weights: `weights` is a {type(weights).__name__}; expected SLSTMWeights")
    return load_parameters(sLSTM, weights, device)
