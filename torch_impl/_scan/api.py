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
from torch_impl._distributed import distributed_call, is_distributed, leading


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
    return _run("rev_cumsum", x)


def rev_cumsum_off(x: torch.Tensor) -> torch.Tensor:
    """Sum of all elements after each element: ``y_t = Σ_{s>t} x_s``; the last output is 0.

    Arguments and errors are those of `rev_cumsum`. Nothing is subtracted, so that nothing cancels and an infinity
    affects only the sums that contain it.
    """
    return _run("rev_cumsum_off", x)


_IMPLEMENTATIONS = {name: implementations(name) for name in ("rev_cumsum", "rev_cumsum_off")}


def _run(function: str, x: torch.Tensor) -> torch.Tensor:
    asked = _request(function, x)
    if is_distributed(x):
        axes = leading(x, "S")
        (y,) = distributed_call(function, [("x", x, axes)], [axes], False, lambda values: [_run(function, *values)])
        return y
    return _IMPLEMENTATIONS[function][choose(asked, None).value](x)


def _request(function: str, x: Any) -> Request:
    return request(check_scan(TORCH, x, function), x)


@explains("rev_cumsum")
def _rev_cumsum_request(x: Any) -> Request:
    return _request("rev_cumsum", x)


@explains("rev_cumsum_off")
def _rev_cumsum_off_request(x: Any) -> Request:
    return _request("rev_cumsum_off", x)
