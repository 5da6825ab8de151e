"""Tensors as this implementation's arrays: their dtypes and values, autocast, and torch.func's transforms."""

from typing import Any

import numpy as np
import torch

from reference.arguments import Framework
from torch_impl._distributed import place_of

ACCUMULATION = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}
"""The accumulation dtype, in which states are carried, for every dtype of values."""


PLAIN = (torch.Tensor, torch.nn.Parameter)
"""The types of plain tensors."""


def transforming() -> bool:
    """Whether a transform of torch.func is active."""
    return torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]


def is_batched_by_autograd(x: torch.Tensor) -> bool:
    """Whether the vmap inside PyTorch's autograd, which is not that of torch.func, maps over ``x``."""
    return torch._C._functorch.is_legacy_batchedtensor(x)  # pyright: ignore[reportAttributeAccessIssue]


def _values(x: torch.Tensor) -> np.ndarray | None:
    """The values of an integer tensor if reading them is free: on the CPU, without a trace or transform; else None."""
    if torch.compiler.is_compiling() or type(x) is not torch.Tensor or x.device.type != "cpu":
        return None
    if transforming() or torch._C._len_torch_dispatch_stack():
        return None
    return x.numpy()


def _alternative_to_a_layout(x: torch.Tensor) -> str | None:
    return None if x.layout is torch.strided and not x.is_nested else "a dense tensor, neither sparse nor nested"


TORCH = Framework(
    array="a torch.Tensor",
    is_array=lambda x: isinstance(x, torch.Tensor),
    values=_values,
    refuses=_alternative_to_a_layout,
    device=place_of,
)


def autocast_dtype(x: Any) -> torch.dtype | None:
    """The dtype to which autocast casts values on the device of ``x``, or None if it is off for that device."""
    # The type comes first, because it decides most calls and `isinstance` is slower.
    if type(x) is not torch.Tensor and not isinstance(x, torch.Tensor):
        return None
    if x.device.type == "meta" or not torch.is_autocast_enabled(x.device.type):
        return None
    return torch.get_autocast_dtype(x.device.type)


def cast(x: Any, dtype: torch.dtype) -> Any:
    """``x`` cast to ``dtype`` as by autocast: float64 tensors and anything but floating-point tensors are unchanged."""
    if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype is not torch.float64:
        return x.to(dtype)
    return x
