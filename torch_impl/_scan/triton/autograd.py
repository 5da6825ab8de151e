"""The kernels' cumulative sums with their derivatives, which are the same sums in the opposite direction."""

import torch
from torch import Tensor

from reference.backends import Row
from torch_impl._operators import mapped_by_autograd, operator, recordable, recording, transformable
from torch_impl._scan.triton import launch
from torch_impl._triton.interpreter import DTYPES, unavailable


def _sum(x: torch.Tensor, reverse: bool, exclusive: bool) -> torch.Tensor:
    return launch.cumulative(x, reverse=reverse, exclusive=exclusive)


def _shape(x: torch.Tensor, reverse: bool, exclusive: bool) -> torch.Tensor:
    return x.new_empty(x.shape)


_cumulative_forward = operator("cumulative_forward(Tensor x, bool reverse, bool exclusive) -> Tensor", _sum, _shape)


class _Cumulative(torch.autograd.Function):
    @staticmethod
    def forward(x, reverse, exclusive):
        return _cumulative_forward(x, reverse, exclusive)

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
mapped_by_autograd("cumulative_forward", _Cumulative.vmap)
_recorded = recordable("cumulative(Tensor x, bool reverse, bool exclusive) -> Tensor", _sum, _shape, _summed)


def rev_cumsum(x: Tensor) -> Tensor:
    """``y_t = Σ_{s≥t} x_s``, differentiable to any order."""
    return (_recorded if recording() else _summed)(x, True, False)


def rev_cumsum_off(x: Tensor) -> Tensor:
    """``y_t = Σ_{s>t} x_s``, differentiable to any order."""
    return (_recorded if recording() else _summed)(x, True, True)


ROWS = tuple(
    Row(
        backend="triton",
        operation=operation,
        devices=("cuda", "cpu"),
        dtypes=DTYPES,
        unavailable=unavailable,
        implementation=implementation,
    )
    for operation, implementation in (("rev_cumsum", rev_cumsum), ("rev_cumsum_off", rev_cumsum_off))
)
