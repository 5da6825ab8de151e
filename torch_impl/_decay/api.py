"""Decay matrices: how much of what step j wrote is left when step t reads.

Source: Beck et al., xLSTM, arXiv:2405.04517, appendix A (the matrices F and D̃ of the mLSTM's parallel form).
"""

from typing import Any

import torch

from reference.arguments import check_dtilde_matrix, check_scan
from reference.backends import Request
from torch_impl._arrays import TORCH, autocast_dtype, cast
from torch_impl._backends import choose, explains, implementations, request
from torch_impl._distributed import distributed_call, is_distributed, leading
from torch_impl._operators import (
    mapped_by_autograd,
    needs_transform,
    no_forward_mode,
    no_second_derivative,
    operator,
    recordable,
    recording,
    transformable,
)


def causal_forget_matrix(forget_gates: torch.Tensor) -> torch.Tensor:
    """Log decay between every two steps: ``F[t,j] = Σ_{j<s≤t} a_s`` for t ≥ j, 0 on the diagonal, −∞ above it.

    Each column is a running sum of its own, never a difference of two sums: ``a_s = −∞`` (a hard reset) is allowed, and
    nothing cancels. Differentiable to any order.

    Args:
        forget_gates: log gates a, ``(..., S)``; in [−∞, 0] if they come from a sigmoid. float32 under autocast.

    Returns:
        F, ``(..., S, S)``, in the dtype of `forget_gates`; 16-bit gates are summed in float32.

    Raises:
        TypeError: `forget_gates` is not a floating-point tensor.
        ValueError: `forget_gates` has no axis.
    """
    forget_gates, asked = _checked_log_gates(forget_gates)
    if is_distributed(forget_gates):
        given = [("forget_gates", forget_gates, leading(forget_gates, "S"))]
        (F,) = distributed_call(
            "causal_forget_matrix", given, [f"{given[0][2]} S"], False, lambda values: [causal_forget_matrix(*values)]
        )
        return F
    return _FORGET_MATRIX[choose(asked, None).value](forget_gates)


_FORGET_MATRIX = implementations("causal_forget_matrix")


def _checked_log_gates(forget_gates: Any) -> tuple[Any, Request]:
    if autocast_dtype(forget_gates) is not None:
        forget_gates = cast(forget_gates, torch.float32)
    call = check_scan(TORCH, forget_gates, "causal_forget_matrix", "forget_gates")
    return forget_gates, request(call, forget_gates)


@explains("causal_forget_matrix")
def _causal_forget_matrix_request(forget_gates: Any) -> Request:
    return _checked_log_gates(forget_gates)[1]


def dtilde_matrix(igate: torch.Tensor, fgate: torch.Tensor) -> torch.Tensor:
    """Log weight of the write of step j when step t reads: ``D̃[t,j] = Σ_{j<s≤t} log σ(fgate_s) + igate_j``.

    It has its own gradient rule, of cost O(S²): ``digate_j = Σ_t dD̃[t,j]`` over *all* rows t, including the masked
    ones, and ``dfgate_s = σ(−fgate_s) Σ_{t≥s} Σ_{j<s} dD̃[t,j]``, without the masked rows.

    Args:
        igate: input gate preactivations, ``(..., S, 1)``.
        fgate: forget gate preactivations, ``(..., S, 1)``. Both are cast to float32 under autocast.

    Returns:
        D̃, ``(..., S, S)``, in the dtype of the gates, −∞ above the diagonal; 16-bit gates are summed in float32.

    Raises:
        TypeError: an argument is not a floating-point tensor, or their dtypes differ.
        ValueError: the shapes differ or do not end in 1.
        NotImplementedError: a second derivative is requested.
    """
    igate, fgate, asked = _checked_gates(igate, fgate)
    backend = choose(asked, None).value
    if is_distributed(igate):
        gates = leading(igate, "S", "_")
        given = [("igate", igate, gates), ("fgate", fgate, gates)]
        (D,) = distributed_call(
            "dtilde_matrix", given, [leading(igate, "S", "_")], False, lambda values: [dtilde_matrix(*values)]
        )
        return D
    if recording():
        return _recorded(igate, fgate, backend)
    return (_differentiable if needs_transform(igate, fgate) else _forward)(igate, fgate, backend)


def _checked_gates(igate: Any, fgate: Any) -> tuple[Any, Any, Request]:
    if autocast_dtype(igate) is not None:
        igate, fgate = cast(igate, torch.float32), cast(fgate, torch.float32)
    return igate, fgate, request(check_dtilde_matrix(TORCH, igate, fgate), fgate)


@explains("dtilde_matrix")
def _dtilde_matrix_request(igate: Any, fgate: Any) -> Request:
    return _checked_gates(igate, fgate)[2]


_DTILDE = implementations("dtilde_matrix")


def _compute(igate: torch.Tensor, fgate: torch.Tensor, backend: str) -> torch.Tensor:
    return _DTILDE[backend].forward(igate, fgate)


def _compute_backward(dD: torch.Tensor, fgate: torch.Tensor, backend: str) -> tuple[torch.Tensor, torch.Tensor]:
    return _DTILDE[backend].backward(dD, fgate)


def _shape(igate: torch.Tensor, fgate: torch.Tensor, backend: str) -> torch.Tensor:
    return igate.new_empty((*igate.shape[:-1], igate.shape[-2]))


_forward = operator("dtilde_matrix_forward(Tensor igate, Tensor fgate, str backend) -> Tensor", _compute, _shape)
_backward = operator(
    "dtilde_matrix_backward(Tensor dD, Tensor fgate, str backend) -> (Tensor, Tensor)",
    _compute_backward,
    lambda dD, fgate, backend: (fgate.new_empty(fgate.shape), fgate.new_empty(fgate.shape)),
)


def _to_front(size, in_dims, x, y, backend):
    pairs = zip((x, y), in_dims, strict=False)
    return *(part.expand(size, *part.shape) if dim is None else part.movedim(dim, 0) for part, dim in pairs), backend


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(igate, fgate, backend):
        return _forward(igate, fgate, backend)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, fgate, ctx.backend = inputs
        ctx.save_for_backward(fgate)

    @staticmethod
    def backward(ctx, dD):
        return *_Backward.apply(dD, *ctx.saved_tensors, ctx.backend), None

    @staticmethod
    def jvp(ctx, *_):
        no_forward_mode("dtilde_matrix")

    @staticmethod
    def vmap(info, in_dims, *args):
        return _Forward.apply(*_to_front(info.batch_size, in_dims, *args)), 0


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(dD, fgate, backend):
        return _backward(dD, fgate, backend)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        no_second_derivative("dtilde_matrix")

    @staticmethod
    def jvp(ctx, *_):
        no_second_derivative("dtilde_matrix")

    @staticmethod
    def vmap(info, in_dims, *args):
        return _Backward.apply(*_to_front(info.batch_size, in_dims, *args)), (0, 0)


mapped_by_autograd("dtilde_matrix_backward", _Backward.vmap)
_differentiable = transformable(_Forward)
_recorded = recordable(
    "dtilde_matrix(Tensor igate, Tensor fgate, str backend) -> Tensor", _compute, _shape, _differentiable
)
