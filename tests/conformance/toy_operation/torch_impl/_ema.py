"""Exponential moving average: a loop that PyTorch differentiates."""

import torch

from reference.arguments import check_ema
from torch_impl._arrays import ACCUMULATION, TORCH


def ema(x: torch.Tensor, decay: torch.Tensor, initial: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Moving average with a decay per head; arguments and errors as in `reference.ema`."""
    check_ema(TORCH, x, decay, initial)
    wide = ACCUMULATION[x.dtype]
    a, last = decay.to(wide), x.new_zeros(x[:, :0].sum(1).shape, dtype=wide) if initial is None else initial
    y = []
    for step in x.to(wide).unbind(1):
        last = a * last + (1 - a) * step
        y.append(last)
    return (torch.stack(y, 1) if y else x.to(wide)).to(x.dtype, copy=True), 1.0 * last
