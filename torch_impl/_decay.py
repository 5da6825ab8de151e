"""Decay matrices: how much of what step j wrote is left when step t reads.

Source: Beck et al., xLSTM, arXiv:2405.04517, appendix A (the matrices F and D̃ of the mLSTM's parallel form).
"""

import torch
from torch.nn.functional import logsigmoid

from reference.arguments import check_dtilde_matrix, check_scan
from torch_impl._backends import takes_kernel
from torch_impl._framework import ACCUMULATION, TORCH, autocast_dtype, cast
from torch_impl._operators import needs_transform, no_second_derivative, operator, transformable
from torch_impl.kernels import decay as kernels


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
    if autocast_dtype(forget_gates) is not None:
        forget_gates = cast(forget_gates, torch.float32)
    check_scan(TORCH, forget_gates, "causal_forget_matrix", "forget_gates")
    F = _masked_cumsum(forget_gates.to(ACCUMULATION[forget_gates.dtype]))
    return F.to(forget_gates.dtype)


def _masked_cumsum(a: torch.Tensor) -> torch.Tensor:
    S = a.shape[-1]
    below = torch.ones(S, S, dtype=torch.bool, device=a.device).tril(-1)
    F = torch.where(below, a[..., :, None], 0.0).cumsum(-2)
    return F.masked_fill(below.mT, -torch.inf)


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
    if autocast_dtype(igate) is not None:
        igate, fgate = cast(igate, torch.float32), cast(fgate, torch.float32)
    check_dtilde_matrix(TORCH, igate, fgate)
    return (_differentiable if needs_transform(igate, fgate) else _forward)(igate, fgate)


def _compute(igate: torch.Tensor, fgate: torch.Tensor) -> torch.Tensor:
    if takes_kernel("dtilde_matrix", fgate):
        return kernels.dtilde_matrix(igate, fgate)
    dtype = ACCUMULATION[igate.dtype]
    D = _masked_cumsum(logsigmoid(fgate[..., 0].to(dtype))) + igate.to(dtype).mT
    return D.to(igate.dtype)


def _compute_backward(dD: torch.Tensor, fgate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if takes_kernel("dtilde_matrix", fgate):
        return kernels.dtilde_matrix_backward(dD, fgate)
    dD = dD.to(ACCUMULATION[fgate.dtype])
    # through[t, s−1] = Σ_{j<s} dD[t,j], wanted where t ≥ s.
    through = dD.tril(-1).cumsum(-1).tril(-1).sum(-2)
    da = torch.cat([torch.zeros_like(through[..., :1]), through[..., :-1]], dim=-1)[..., : through.shape[-1]]
    df = da[..., None] * logsigmoid(-fgate.to(dD.dtype)).exp()
    return dD.sum(-2)[..., None].to(fgate.dtype), df.to(fgate.dtype)


_forward = operator(
    "dtilde_matrix(Tensor igate, Tensor fgate) -> Tensor",
    _compute,
    lambda igate, fgate: igate.new_empty((*igate.shape[:-1], igate.shape[-2])),
)
_backward = operator(
    "dtilde_matrix_backward(Tensor dD, Tensor fgate) -> (Tensor, Tensor)",
    _compute_backward,
    lambda dD, fgate: (fgate.new_empty(fgate.shape), fgate.new_empty(fgate.shape)),
)


def _to_front(size, in_dims, args):
    return [
        x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in zip(args, in_dims, strict=True)
    ]


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(igate, fgate):
        return _forward(igate, fgate)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, dD):
        return _Backward.apply(dD, *ctx.saved_tensors)

    @staticmethod
    def vmap(info, in_dims, *args):
        return _Forward.apply(*_to_front(info.batch_size, in_dims, args)), 0


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(dD, fgate):
        return _backward(dD, fgate)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        no_second_derivative("dtilde_matrix")

    @staticmethod
    def vmap(info, in_dims, *args):
        return _Backward.apply(*_to_front(info.batch_size, in_dims, args)), (0, 0)


_differentiable = transformable(_Forward)
