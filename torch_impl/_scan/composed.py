"""Reverse cumulative sums composed of PyTorch's own differentiable operators, on any device."""

import torch
from torch import Tensor

from reference.backends import Row
from torch_impl._arrays import ACCUMULATION


def rev_cumsum(x: Tensor) -> Tensor:
    """``y_t = Σ_{s≥t} x_s``."""
    return x.to(ACCUMULATION[x.dtype]).flip(-1).cumsum(-1).flip(-1).to(x.dtype)


def rev_cumsum_off(x: Tensor) -> Tensor:
    """``y_t = Σ_{s>t} x_s``."""
    # Not a slice of S − 1 steps: a program exported with any length would have to tell whether that is 1.
    after = torch.nn.functional.pad(x, (0, 1))[..., 1:]
    return after.to(ACCUMULATION[x.dtype]).flip(-1).cumsum(-1).flip(-1).to(x.dtype)


ROWS = (
    Row(backend="torch", operation="rev_cumsum", implementation=rev_cumsum),
    Row(backend="torch", operation="rev_cumsum_off", implementation=rev_cumsum_off),
)
