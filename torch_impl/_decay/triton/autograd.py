"""The kernels' causal forget matrix with derivatives of any order, and the rows of both matrices."""

import torch

from reference.backends import Row
from torch_impl._decay.composed import masked_cumsum
from torch_impl._decay.triton import launch
from torch_impl._operators import Directions, mapped_by_autograd, operator, recordable, recording, transformable
from torch_impl._triton.interpreter import DTYPES, unavailable


def _compute(a: torch.Tensor) -> torch.Tensor:
    return launch.causal_forget_matrix(a)


def _shape(a: torch.Tensor) -> torch.Tensor:
    return a.new_empty((*a.shape, a.shape[-1]))


_forget_direct = operator("causal_forget_matrix_forward(Tensor forget_gates) -> Tensor", _compute, _shape)
_forget_backward_direct = operator(
    "causal_forget_matrix_backward(Tensor dF) -> Tensor",
    lambda dF: launch.causal_forget_matrix_backward(dF),
    lambda dF: dF.new_empty(dF.shape[:-1], dtype=torch.float32),
)


def _linear_part(da: torch.Tensor) -> torch.Tensor:
    """The change of F for a change of its gates, for derivatives beyond the first backward: 0 above the diagonal."""
    return masked_cumsum(da, 0.0)


class _ForgetMatrix(torch.autograd.Function):
    @staticmethod
    def forward(a):
        return _forget_direct(a)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx, dF):
        return _forget_sums(dF).to(ctx.dtype)

    @staticmethod
    def jvp(ctx, da):
        return _linear_part(da.float()).to(ctx.dtype)

    @staticmethod
    def vmap(info, in_dims, a):
        return _forget_matrix(a.movedim(in_dims[0], 0)), 0


class _ForgetSums(torch.autograd.Function):
    @staticmethod
    def forward(dF):
        return _forget_backward_direct(dF)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx, dda):
        return _linear_part(dda).to(ctx.dtype)

    @staticmethod
    def vmap(info, in_dims, dF):
        return _forget_sums(dF.movedim(in_dims[0], 0)), 0


_forget_matrix, _forget_sums = transformable(_ForgetMatrix), transformable(_ForgetSums)
mapped_by_autograd("causal_forget_matrix_backward", _ForgetSums.vmap)
_recorded = recordable("causal_forget_matrix(Tensor forget_gates) -> Tensor", _compute, _shape, _forget_matrix)


def causal_forget_matrix(forget_gates: torch.Tensor) -> torch.Tensor:
    """F of log gates ``(..., S)``, in their dtype, differentiable to any order."""
    return (_recorded if recording() else _forget_matrix)(forget_gates)


ROWS = tuple(
    Row(
        backend="triton",
        operation=operation,
        devices=("cuda", "cpu"),
        dtypes=DTYPES,
        unavailable=unavailable,
        implementation=implementation,
    )
    for operation, implementation in (
        ("causal_forget_matrix", causal_forget_matrix),
        ("dtilde_matrix", Directions(forward=launch.dtilde_matrix, backward=launch.dtilde_matrix_backward)),
    )
)
