"""Layers of PyTorch, ``nn.Module``, whose parameters have the same names as in every other framework here."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.func import functional_call

from conformance.frameworks._trees import leaves
from conformance.implementation import Results
from conformance.layer import Layer


class TorchLayer(Layer):
    """See `conformance.layer.Layer`."""

    @property
    def parameters(self) -> Results:
        named = self.made.named_parameters()
        return {_ours(name): self._implementation.neutral(_turned(name, x)) for name, x in named}

    def _apply(self, parameters: Mapping[str, Any], arrays: Mapping[str, Any], options: Mapping[str, Any]) -> list[Any]:
        named = self.made.named_parameters()
        tensors = {name: _turned(name, parameters[_ours(name)]).contiguous() for name, _ in named}
        return leaves(functional_call(self.made, tensors, (), {**arrays, **options}))


def _ours(name: str) -> str:
    return name.replace("projection.weight", "projection.kernel")


def _turned(name: str, x: torch.Tensor) -> torch.Tensor:
    """Transpose a projection: PyTorch stores it from output features to input features."""
    return x.T if _ours(name).endswith("projection.kernel") else x
