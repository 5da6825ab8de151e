"""Reverse cumulative sums, the sums by which a decay's gradient travels back in time (xlstm_jax, fwbw backend).

Composed of differentiable PyTorch functions, or one linear kernel whose derivative is itself, from the other end. Both
have every order of derivative and every transform.
"""

from typing import Any

import torch

from reference.arguments import check_scan
from reference.backends import Request
from torch_impl._arrays import ACCUMULATION, TORCH
from torch_impl._backends import choose, explains, request
from torch_impl._operators import operator, transformable
from torch_impl._scan.triton import launch as kernels


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
    asked = _request("rev_cumsum", x)
    if choose(asked, None).value == "triton":
        return _summed(x, True, False)
    return _rev_cumsum(x).to(x.dtype)


def rev_cumsum_off(x: torch.Tensor) -> torch.Tensor:
    """Sum of all elements after each one: ``y_t = Σ_{s>t} x_s``; the last is 0.

    Arguments and errors as in `rev_cumsum`. Not a difference of sums: nothing cancels, infinities stay where they are.
    """
    asked = _request("rev_cumsum_off", x)
    if choose(asked, None).value == "triton":
        return _summed(x, True, True)
    after = torch.cat([x[..., 1:], torch.zeros_like(x[..., :1])], dim=-1)
    return _rev_cumsum(after).to(x.dtype)


def _rev_cumsum(x: torch.Tensor) -> torch.Tensor:
    return x.to(ACCUMULATION[x.dtype]).flip(-1).cumsum(-1).flip(-1)


def _request(function: str, x: Any) -> Request:
    return request(check_scan(TORCH, x, function), x)


@explains("rev_cumsum")
def _rev_cumsum_request(x: Any) -> Request:
    return _request("rev_cumsum", x)


@explains("rev_cumsum_off")
def _rev_cumsum_off_request(x: Any) -> Request:
    return _request("rev_cumsum_off", x)


def _sum_on_kernel(x: torch.Tensor, reverse: bool, exclusive: bool) -> torch.Tensor:
    return kernels.cumulative(x, reverse=reverse, exclusive=exclusive)


_direct = operator(
    "cumulative(Tensor x, bool reverse, bool exclusive) -> Tensor",
    _sum_on_kernel,
    lambda x, reverse, exclusive: x.new_empty(x.shape),
)


class _Cumulative(torch.autograd.Function):
    @staticmethod
    def forward(x, reverse, exclusive):
        return _direct(x, reverse, exclusive)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.reverse, ctx.exclusive = inputs

    @staticmethod
    def backward(ctx, dy):
        return _summed(dy, not ctx.reverse, ctx.exclusive), None, None

    @staticmethod
    def jvp(ctx, dx, *_):
        return _summed(dx, ctx.reverse, ctx.exclusive)

    @staticmethod
    def vmap(info, in_dims, x, reverse, exclusive):
        return _summed(x.movedim(in_dims[0], 0), reverse, exclusive), 0


_summed = transformable(_Cumulative)
