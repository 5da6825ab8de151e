"""Reverse cumulative sums, the sums by which a decay's gradient travels back in time (xlstm_jax, fwbw backend).

Composed of differentiable PyTorch functions, or one linear kernel whose derivative is itself, from the other end. Both
have every order of derivative and every transform.
"""

from typing import Any

import torch

from reference.arguments import check_scan
from reference.backends import Request
from torch_impl._arrays import TORCH
from torch_impl._backends import choose, explains, implementations, request


def rev_cumsum(x: torch.Tensor) -> torch.Tensor:
    """Sum of each element and all after it: ``y_t = Σ_{s≥t} x_s``.

    Args:
        x: ``(..., S)``, floating.

    Returns:
        ``(..., S)``, the dtype of `x`; 16-bit values are summed in float32.

    Raises:
        TypeError: `x` is not a floating tensor.
        ValueError: `x` has no axis.
    """
    return _REV_CUMSUM[choose(_request("rev_cumsum", x), None).value](x)


def rev_cumsum_off(x: torch.Tensor) -> torch.Tensor:
    """Sum of all elements after each one: ``y_t = Σ_{s>t} x_s``; the last is 0.

    Arguments and errors as in `rev_cumsum`. Not a difference of sums: nothing cancels, infinities stay where they are.
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
