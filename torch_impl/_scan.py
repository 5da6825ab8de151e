"""Reverse cumulative sums, the sums by which a decay's gradient travels back in time (xlstm_jax, fwbw backend).

Composed of differentiable PyTorch functions, so that every transform and every order of derivative is PyTorch's own.
"""

import torch

from reference.arguments import check_scan
from torch_impl._framework import ACCUMULATION, TORCH


def rev_cumsum(x: torch.Tensor) -> torch.Tensor:
    """Sum of each element and all after it: ``y_t = Σ_{s≥t} x_s``.

    Args:
        x: ``(..., S)``, floating.

    Returns:
        ``(..., S)``, the dtype of `x`; 16-bit values are summed in float32.

    Raises:
        TypeError: `x` is no floating tensor.
        ValueError: `x` has no axis.
    """
    check_scan(TORCH, x, "rev_cumsum")
    return _rev_cumsum(x).to(x.dtype)


def rev_cumsum_off(x: torch.Tensor) -> torch.Tensor:
    """Sum of all elements after each one: ``y_t = Σ_{s>t} x_s``; the last is 0.

    Arguments and errors as in `rev_cumsum`. Not a difference of sums: nothing cancels, infinities stay where they are.
    """
    check_scan(TORCH, x, "rev_cumsum_off")
    after = torch.cat([x[..., 1:], torch.zeros_like(x[..., :1])], dim=-1)
    return _rev_cumsum(after).to(x.dtype)


def _rev_cumsum(x: torch.Tensor) -> torch.Tensor:
    return x.to(ACCUMULATION[x.dtype]).flip(-1).cumsum(-1).flip(-1)
