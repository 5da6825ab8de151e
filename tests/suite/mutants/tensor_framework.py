"""Stands in for `reference._arrays` where the specification's loops run on tensors."""

from typing import Any

import torch

from reference._call import Framework

NUMPY = Framework(
    array="a torch.Tensor",
    is_array=lambda x: isinstance(x, torch.Tensor),
    values=lambda cu_seqlens: cu_seqlens.numpy(),
)


def float64(x: Any) -> Any:
    """A copy in the accumulation dtype: float64 stays, all else becomes float32; None stays None."""
    return None if x is None else x.to(torch.float64 if x.dtype == torch.float64 else torch.float32, copy=True)
