"""The `GRU` layer of `torch_impl` with weights that were read elsewhere."""

from typing import Any, TypeVar

import numpy as np
import torch

from reference.interop.gru_checkpoints import gru_weights_from_keras, gru_weights_from_onnx, gru_weights_from_xma
from reference.interop.gru_frameworks import gru_weights_from_flax, gru_weights_from_torch
from reference.interop.gru_weights import GRUWeights
from torch_impl._modules import GRU

__all__ = [
    "GRUWeights",
    "gru_from_weights",
    "gru_weights_from_flax",
    "gru_weights_from_keras",
    "gru_weights_from_onnx",
    "gru_weights_from_torch",
    "gru_weights_from_xma",
]


def gru_from_weights(weights: GRUWeights, *, device: torch.device | str | None = None) -> GRU:
    """A `torch_impl.GRU` with these weights.

    Args:
        weights: the parameters have their dtype.
        device: where the parameters are; None means PyTorch's default device.

    Returns:
        The layer. Where `weights` have no output projection, its own is the identity and its parameters do not require
        a gradient, so that training changes nothing but what was given.

    Raises:
        TypeError: `weights` are not `GRUWeights`.
        ValueError: a size is 0, or a head count does not divide the largest one.
    """
    if not isinstance(weights, GRUWeights):
        raise TypeError(f"gru_from_weights: `weights` is a {type(weights).__name__}; expected GRUWeights")
    return load_parameters(GRU, weights, device)


Layer = TypeVar("Layer", bound=torch.nn.Module)


def load_parameters(layer: type[Layer], weights: Any, device: torch.device | str | None) -> Layer:
    """A layer with these weights; an output projection that they do not have is the identity, which is not trained."""
    parameters = weights.parameters()
    made = layer(**weights.arguments(), device=device, dtype=_tensor(weights.input_kernel[:0]).dtype)
    with torch.no_grad():
        for name, value in parameters.items():
            if isinstance(value, np.ndarray):
                getattr(made, name).copy_(_tensor(value))
                continue
            projection = getattr(made, name)
            projection.weight.copy_(_tensor(value["kernel"]).T)
            if "bias" in value:
                projection.bias.copy_(_tensor(value["bias"]))
    if weights.output_kernel is None:
        made.get_submodule("output_projection").requires_grad_(False)
    return made


def _tensor(array: np.ndarray) -> torch.Tensor:
    """A copy as a tensor. PyTorch does not know NumPy's bfloat16, an extension type, whose bits it takes instead."""
    array = np.ascontiguousarray(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
