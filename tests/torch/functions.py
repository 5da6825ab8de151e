"""Operations as functions of tensors alone that return tensors alone, as PyTorch's transformations take them."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torch_impl import MLSTMState, mlstm, mlstm_fwbw_custom_grad
from torch_impl import mlstm_step as one_step


def with_state(**options: Any) -> Callable[..., tuple[Tensor, ...]]:
    """`mlstm` of q, k, v, i, f, C, n, m."""

    def call(*arrays: Tensor) -> tuple[Tensor, ...]:
        h, last = mlstm(*arrays[:5], initial_state=MLSTMState(*arrays[5:]), return_state=True, **options)
        return h, *last

    return call


def step(*arrays: Tensor) -> tuple[Tensor, ...]:
    h, last = one_step(*arrays[:5], MLSTMState(*arrays[5:]))
    return h, *last


def fwbw(**config: Any) -> Callable[..., tuple[Tensor, ...]]:
    """The fwbw interface with initial and final state."""

    def call(*arrays: Tensor) -> tuple[Tensor, ...]:
        h, last = mlstm_fwbw_custom_grad({**config, "return_state": True, "use_initial_state": True})(*arrays)
        return h, *last

    return call
