"""PyTorch functions and layers as the laws of this folder see them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.func import functional_call

from conformance.base.call import Call
from conformance.frameworks.implementation import Results
from conformance.frameworks.torch import TorchImplementation
from tests.calls.layer import Layer
from tests.calls.mesh import Mesh
from tests.calls.packages import Launches, Package
from tests.calls.torch_launches import launches
from tests.calls.trees import leaves


def adapter(name: str, functions: Mapping[str, Any]) -> Package:
    torch.set_num_threads(1)
    return TorchPackage(name, functions, "cpu")


class TorchPackage(Package, TorchImplementation):
    """See `Package`."""

    backends: Mapping[str, bool] = {"torch": False, "triton": True}

    def launched(self, call: Call) -> Launches:
        with launches() as forward, torch.no_grad():
            self._results(call, self._natives(call.arrays))
        of = self._flat(call)
        leaves = [x.requires_grad_() for x in of.primals.values()]
        outputs = of.function(*leaves)
        with launches() as backward:
            torch.autograd.grad(outputs, leaves, list(of.cotangents.values()), allow_unused=True)
        return Launches(tuple(forward), tuple(backward))

    def layer(self, name: str, settings: Mapping[str, Any], seed: int) -> Layer:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.functions[name](**settings)
        return TorchLayer(module.to(self.device), self)

    def overlap(self, x: torch.Tensor, y: torch.Tensor) -> bool:
        if not x.numel() or not y.numel() or x.device != y.device:
            return False
        (a, b), (c, d) = _extent(x), _extent(y)
        return a < d and c < b

    def drawn(self, rng: int) -> torch.Tensor:
        return torch.tensor(rng % 2**31)

    def _place(self, axes: Mapping[str, int], number: int) -> dict[str, Any]:
        return {"mesh": Mesh(axes, number)}


def _extent(x: torch.Tensor) -> tuple[int, int]:
    """The range of addresses in which the elements are stored."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


class TorchLayer(Layer):
    """See `tests.calls.layer.Layer`."""

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
