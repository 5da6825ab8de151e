"""What this implementation takes as an array (a torch.Tensor): its dtypes, its values, autocast and transforms."""

from typing import Any

import numpy as np
import torch

from reference.arguments import Framework

ACCUMULATION = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}
"""The accumulation dtype, which carries states, for every dtype of values."""


def transforming() -> bool:
    """Whether a transform of torch.func is at work."""
    return torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]


def _values(x: torch.Tensor) -> np.ndarray | None:
    """The values of an integer tensor where reading them costs nothing: on the CPU and under no trace or transform."""
    if torch.compiler.is_compiling() or type(x) is not torch.Tensor or x.device.type != "cpu":
        return None
    if transforming() or torch._C._len_torch_dispatch_stack():
        return None
    return x.numpy()


TORCH = Framework(
    array="a torch.Tensor",
    is_array=lambda x: isinstance(x, torch.Tensor),
    values=_values,
    device=lambda x: x.device,
)


def autocast_dtype(x: Any) -> torch.dtype | None:
    """The dtype to which values beside ``x`` are cast, or None where autocast is off for its device."""
    # The type first: for most calls it is the answer, and `isinstance` is slower.
    if type(x) is not torch.Tensor and not isinstance(x, torch.Tensor):
        return None
    if x.device.type == "meta" or not torch.is_autocast_enabled(x.device.type):
        return None
    return torch.get_autocast_dtype(x.device.type)


def cast(x: Any, dtype: torch.dtype) -> Any:
    """``x`` in ``dtype`` as autocast would cast it: float64 and what is no floating tensor stay as they are."""
    if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype is not torch.float64:
        return x.to(dtype)
    return x
