"""Exponential moving average with a gate: a loop that PyTorch differentiates."""

import torch

from reference.arguments import check_ema
from torch_impl._arrays import ACCUMULATION, TORCH


def ema(x: torch.Tensor, f: torch.Tensor, initial: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Moving average with a forget gate; arguments and errors as in `reference.ema`."""
    check_ema(TORCH, x, f, initial)
    wide = ACCUMULATION[x.dtype]
    last = x.new_zeros(x[:, :0].sum(1).shape, dtype=wide) if initial is None else initial
    y = []
    for step, gate in zip(x.to(wide).unbind(1), f.to(wide).unbind(1), strict=True):
        last = torch.sigmoid(gate) * last + torch.sigmoid(-gate) * step
        y.append(last)
    return (torch.stack(y, 1) if y else x.to(wide)).to(x.dtype, copy=True), 1.0 * last
