"""Reverse cumulative sums, which carry the gradient of a decay back in time (xlstm_jax, fwbw backend).

They are composed of differentiable PyTorch functions, or computed by one linear kernel whose derivative is the same
kernel in the opposite direction. Both support every order of derivative and every transform.
"""

from typing import Any

import torch

from reference.arguments import check_scan
from reference.backends import Request
from torch_impl._arrays import TORCH
from torch_impl._backends import choose, explains, implementations, request


def rev_cumsum(x: torch.Tensor) -> torch.Tensor:
    """Sum of each element and all elements after it: ``y_t = Σ_{s≥t} x_s``.

    Args:
        x: ``(..., S)``, floating-point.

    Returns:
        ``(..., S)``, in the dtype of `x`; 16-bit values are summed in float32.

    Raises:
        TypeError: `x` is not a floating-point tensor.
        ValueError: `x` has no axis.
    """
    return _REV_CUMSUM[choose(_request("rev_cumsum", x), None).value](x)


def rev_cumsum_off(x: torch.Tensor) -> torch.Tensor:
    """Sum of all elements after each element: ``y_t = Σ_{s>t} x_s``; the last output is 0.

    Arguments and errors are those of `rev_cumsum`. Nothing is subtracted, so that nothing cancels and an infinity
    affects only the sums that contain it.
    """
    return _REV_CUMSUM_OFF[choose(_request("rev_cumsum_off", x), None).value](x)


_REV_CUMSUM, _REV_CUMSUM_OFF = implementations("rev_cumsum"), implementations("rev_cumsum_off")


def _request(function: str, x: Any) -> Request:
    return request(check_scan(TORCH, x, function), x)


@explains("rev_cumsum")
def _rev_cumsum_request(x: Any) -> Request:
    return _request("rev_cumsum", x)


@explains("rev_cumsum_off")
def _rev_cumsum_off_request(x: Any) -> Request:
    return _request("rev_cumsum_off", x)
