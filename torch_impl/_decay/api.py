"""Decay matrices: how much of what step j wrote is left when step t reads.

Source: Beck et al., xLSTM, arXiv:2405.04517, appendix A (the matrices F and D̃ of the mLSTM's parallel form).
"""

from typing import Any

import torch
from torch.nn.functional import logsigmoid

from reference.arguments import check_dtilde_matrix, check_scan
from reference.backends import Request
from torch_impl._arrays import ACCUMULATION, TORCH, autocast_dtype, cast
from torch_impl._backends import choose, explains, request
from torch_impl._decay.triton import launch as kernels
from torch_impl._operators import needs_transform, no_second_derivative, operator, transformable


def causal_forget_matrix(forget_gates: torch.Tensor) -> torch.Tensor:
    """Log decay between every two steps: ``F[t,j] = Σ_{j<s≤t} a_s`` for t ≥ j, 0 on the diagonal, −∞ above it.

    Each column is a running sum of its own, never a difference of two: an ``a_s = −∞`` (a hard reset) is legal, and
    nothing cancels. Differentiable to any order.

    Args:
        forget_gates: log gates a, ``(..., S)``, in [−∞, 0] where they come from a sigmoid. float32 under autocast.

    Returns:
        F, ``(..., S, S)``, the dtype of `forget_gates`; 16-bit gates are summed in float32.

    Raises:
        TypeError: `forget_gates` is no floating tensor.
        ValueError: `forget_gates` has no axis.
    """
    forget_gates, asked = _checked_log_gates(forget_gates)
    if choose(asked, None).value == "triton":
        return _forget_matrix(forget_gates)
    F = _masked_cumsum(forget_gates.to(ACCUMULATION[forget_gates.dtype]))
    return F.to(forget_gates.dtype)


def _checked_log_gates(forget_gates: Any) -> tuple[Any, Request]:
    if autocast_dtype(forget_gates) is not None:
        forget_gates = cast(forget_gates, torch.float32)
    call = check_scan(TORCH, forget_gates, "causal_forget_matrix", "forget_gates")
    return forget_gates, request(call, forget_gates)


@explains("causal_forget_matrix")
def _causal_forget_matrix_request(forget_gates: Any) -> Request:
    return _checked_log_gates(forget_gates)[1]


def _masked_cumsum(a: torch.Tensor, above: float = -torch.inf) -> torch.Tensor:
    S = a.shape[-1]
    below = torch.ones(S, S, dtype=torch.bool, device=a.device).tril(-1)
    F = torch.where(below, a[..., :, None], 0.0).cumsum(-2)
    return F.masked_fill(below.mT, above)


def dtilde_matrix(igate: torch.Tensor, fgate: torch.Tensor) -> torch.Tensor:
    """Log weight of what step j wrote, as step t reads it: ``D̃[t,j] = Σ_{j<s≤t} log σ(fgate_s) + igate_j``.

    Its backward rule is its own, of order S²: ``digate_j = Σ_t dD̃[t,j]`` over *all* rows t, the masked ones too, and
    ``dfgate_s = σ(−fgate_s) Σ_{t≥s} Σ_{j<s} dD̃[t,j]``, in which the masked ones have no part.

    Args:
        igate: input gate preactivations, ``(..., S, 1)``.
        fgate: forget gate preactivations, ``(..., S, 1)``. Both float32 under autocast.

    Returns:
        D̃, ``(..., S, S)``, the dtype of the gates, −∞ above the diagonal; 16-bit gates are summed in float32.

    Raises:
        TypeError: an argument is no floating tensor, or their dtypes differ.
        ValueError: the shapes differ or do not end in 1.
        RuntimeError: a second derivative is asked for.
    """
    igate, fgate, asked = _checked_gates(igate, fgate)
    backend = choose(asked, None).value
    return (_differentiable if needs_transform(igate, fgate) else _forward)(igate, fgate, backend)


def _checked_gates(igate: Any, fgate: Any) -> tuple[Any, Any, Request]:
    if autocast_dtype(igate) is not None:
        igate, fgate = cast(igate, torch.float32), cast(fgate, torch.float32)
    return igate, fgate, request(check_dtilde_matrix(TORCH, igate, fgate), fgate)


@explains("dtilde_matrix")
def _dtilde_matrix_request(igate: Any, fgate: Any) -> Request:
    return _checked_gates(igate, fgate)[2]


def _compute(igate: torch.Tensor, fgate: torch.Tensor, backend: str) -> torch.Tensor:
    if backend == "triton":
        return kernels.dtilde_matrix(igate, fgate)
    dtype = ACCUMULATION[igate.dtype]
    D = _masked_cumsum(logsigmoid(fgate[..., 0].to(dtype))) + igate.to(dtype).mT
    return D.to(igate.dtype)


def _compute_backward(dD: torch.Tensor, fgate: torch.Tensor, backend: str) -> tuple[torch.Tensor, torch.Tensor]:
    if backend == "triton":
        return kernels.dtilde_matrix_backward(dD, fgate)
    dD = dD.to(ACCUMULATION[fgate.dtype])
    # through[t, s−1] = Σ_{j<s} dD[t,j], wanted where t ≥ s.
    through = dD.tril(-1).cumsum(-1).tril(-1).sum(-2)
    da = torch.cat([torch.zeros_like(through[..., :1]), through[..., :-1]], dim=-1)[..., : through.shape[-1]]
    df = da[..., None] * logsigmoid(-fgate.to(dD.dtype)).exp()
    return dD.sum(-2)[..., None].to(fgate.dtype), df.to(fgate.dtype)


_forward = operator(
    "dtilde_matrix(Tensor igate, Tensor fgate, str backend) -> Tensor",
    _compute,
    lambda igate, fgate, backend: igate.new_empty((*igate.shape[:-1], igate.shape[-2])),
)
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
    def vmap(info, in_dims, *args):
        return _Backward.apply(*_to_front(info.batch_size, in_dims, *args)), (0, 0)


_differentiable = transformable(_Forward)


_forget_direct = operator(
    "causal_forget_matrix(Tensor forget_gates) -> Tensor",
    lambda a: kernels.causal_forget_matrix(a),
    lambda a: a.new_empty((*a.shape, a.shape[-1])),
)
_forget_backward_direct = operator(
    "causal_forget_matrix_backward(Tensor dF) -> Tensor",
    lambda dF: kernels.causal_forget_matrix_backward(dF),
    lambda dF: dF.new_empty(dF.shape[:-1], dtype=torch.float32),
)


def _linear_part(da: torch.Tensor) -> torch.Tensor:
    """What F makes of a change in its gates, for derivatives beyond the first backward one: 0 above the diagonal."""
    return _masked_cumsum(da, 0.0)


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
