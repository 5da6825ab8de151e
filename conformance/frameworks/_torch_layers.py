"""Layers of PyTorch, ``nn.Module``, whose parameters have the same names as in every other framework here."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.func import functional_call

from conformance.dtypes import Array
from conformance.frameworks._trees import leaves
from conformance.implementation import Layer, Named, Results


class TorchLayer(Layer):
    """See `conformance.implementation.Layer`."""

    @property
    def parameters(self) -> Results:
        return {_ours(name): self._neutral(_turned(name, x)) for name, x in self.made.named_parameters()}

    def _tensors(self, parameters: Named) -> dict[str, torch.Tensor]:
        return {
            name: _turned(name, self._native(parameters[_ours(name)])).contiguous()
            for name, _ in self.made.named_parameters()
        }

    def call(self, parameters: Named, arrays: Named, options: Mapping[str, Any]) -> list[Array]:
        given = self._natives(arrays)
        with torch.no_grad():
            result = functional_call(self.made, self._tensors(parameters), (), {**given, **options})
        return [self._neutral(x) for x in leaves(result)]

    def vjp(
        self, parameters: Named, arrays: Named, options: Mapping[str, Any], cotangents: list[Array]
    ) -> tuple[list[Array], Results]:
        tensors = {name: x.requires_grad_() for name, x in self._tensors(parameters).items()}
        given = self._natives(arrays)
        primals = {_ours(name): x for name, x in tensors.items()}
        primals |= {name: x.requires_grad_() for name, x in given.items() if x.dtype.is_floating_point}
        outputs = leaves(functional_call(self.made, tensors, (), {**given, **options}))
        gradients = torch.autograd.grad(
            outputs,
            list(primals.values()),
            [self._native(d) for d in cotangents],
            allow_unused=True,
            materialize_grads=True,
        )
        named = dict(zip(primals, gradients, strict=True))
        return [self._neutral(y) for y in outputs], {name: self._neutral(_turned(name, g)) for name, g in named.items()}


def _ours(name: str) -> str:
    return name.replace("projection.weight", "projection.kernel")


def _turned(name: str, x: torch.Tensor) -> torch.Tensor:
    """Transpose a projection: PyTorch stores it from output features to input features."""
    return x.T if _ours(name).endswith("projection.kernel") else x
