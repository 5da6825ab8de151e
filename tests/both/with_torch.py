"""PyTorch and `torch_impl` as the tests of both frameworks use them; `with_jax` offers the same names."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

import torch_impl as package

leaves, vjp, vmap = _pytree.tree_leaves, torch.func.vjp, torch.func.vmap


def jit(function: Callable) -> Callable:
    """The function itself; JAX compiles it."""
    return function


def wide(on: bool) -> Any:
    """A context in which float64 is available, or is not; PyTorch always has it."""
    return nullcontext()


def array(x: np.ndarray, dtype: str) -> torch.Tensor:
    return torch.tensor(np.asarray(x)).to(getattr(torch, dtype))


def numpy(x: torch.Tensor) -> np.ndarray:
    return x.detach().double().numpy()


def dtype_of(x: torch.Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def random_state(seed: int) -> int:
    """A random state as `accumulate_gradients` takes it."""
    return seed


def pull_back(
    function: Callable, arrays: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The leaves of ``function(*arrays)``, and the gradients of the arrays."""
    arrays = [x.detach().clone().requires_grad_() for x in arrays]
    outputs = leaves(function(*arrays))
    live = [(y, dy) for y, dy in zip(outputs, cotangents, strict=True) if y.requires_grad]
    found = torch.autograd.grad([y for y, _ in live], arrays, [dy for _, dy in live], allow_unused=True)
    return outputs, [torch.zeros_like(x) if g is None else g for x, g in zip(arrays, found, strict=True)]


def steps(*arrays: torch.Tensor) -> torch.Tensor:
    """h of `mlstm` by `mlstm_step`, from an empty memory."""
    (B, S, N, K), V, dtype = arrays[0].shape, arrays[2].shape[-1], arrays[2].dtype
    state, h = package.MLSTMState(*(torch.zeros(shape, dtype=dtype) for shape in ((B, N, K, V), (B, N, K), (B, N)))), []
    for t in range(S):
        h_t, state = package.mlstm_step(*(x[:, t] for x in arrays), state)
        h.append(h_t)
    return torch.stack(h, 1)


def layer_parameters(name: str, settings: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """The initial parameters of a layer; a projection has a kernel, (in, out), and a bias."""
    torch.manual_seed(seed)
    found = getattr(package, name)(**settings).state_dict()
    renamed = {
        path.replace(".weight", ".kernel"): x.t() if path.endswith(".weight") else x for path, x in found.items()
    }
    return {path: numpy(x) for path, x in renamed.items()}


class _Method(torch.nn.Module):
    """A layer whose call is another method of it."""

    def __init__(self, layer: torch.nn.Module, method: str):
        super().__init__()
        self.layer, self.method = layer, method

    def forward(self, *arrays: Any, **given: Any) -> Any:
        return getattr(self.layer, self.method)(*arrays, **given)


def layer_call(name: str, settings: dict[str, Any], paths: Sequence[str], method: str = "forward") -> Callable:
    """A method of a layer as a function of its parameters at these paths, of its input and of keywords."""
    layer = _Method(getattr(package, name)(**settings), method)

    def call(*arrays: torch.Tensor, **given: Any) -> Any:
        kernels = {
            f"layer.{path.replace('.kernel', '.weight')}": x.T if path.endswith(".kernel") else x
            for path, x in zip(paths, arrays, strict=False)
        }
        return torch.func.functional_call(layer, kernels, (arrays[len(paths)],), given)

    return call
