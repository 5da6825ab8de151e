"""Decay matrices composed of PyTorch's own operators, on any device."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from reference.backends import Row
from torch_impl._arrays import ACCUMULATION
from torch_impl._operators import Directions


def masked_cumsum(a: Tensor, above: float = -torch.inf) -> Tensor:
    """``Σ_{j<s≤t} a_s`` at ``[t, j]``, and ``above`` above the diagonal."""
    S = a.shape[-1]
    below = torch.ones(S, S, dtype=torch.bool, device=a.device).tril(-1)
    F = torch.where(below, a[..., :, None], 0.0).cumsum(-2)
    return F.masked_fill(below.mT, above)


def causal_forget_matrix(forget_gates: Tensor) -> Tensor:
    """F of log gates ``(..., S)``, in their dtype; differentiable."""
    F = masked_cumsum(forget_gates.to(ACCUMULATION[forget_gates.dtype]))
    return F if F.dtype is forget_gates.dtype else F.to(forget_gates.dtype)


def dtilde_matrix(igate: Tensor, fgate: Tensor) -> Tensor:
    """D̃ of preactivations ``(..., S, 1)``, in their dtype."""
    dtype = ACCUMULATION[igate.dtype]
    D = masked_cumsum(logsigmoid(fgate[..., 0].to(dtype))) + igate.to(dtype).mT
    return D if dtype is igate.dtype else D.to(igate.dtype)


def dtilde_matrix_backward(dD: Tensor, fgate: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of igate and fgate, by the special rule of D̃."""
    dtype = ACCUMULATION[fgate.dtype]
    dD = dD if dD.dtype is dtype else dD.to(dtype)
    # across[t, s−1] = Σ_{j<s} dD[t,j], needed where t ≥ s.
    across = dD.tril(-1).cumsum(-1).tril(-1).sum(-2)
    da = torch.cat([torch.zeros_like(across[..., :1]), across[..., :-1]], dim=-1)[..., : across.shape[-1]]
    df = da[..., None] * logsigmoid(-fgate.to(dD.dtype)).exp()
    return dD.sum(-2)[..., None].to(fgate.dtype), df.to(fgate.dtype)


ROWS = (
    Row(backend="torch", operation="causal_forget_matrix", implementation=causal_forget_matrix),
    Row(
        backend="torch",
        operation="dtilde_matrix",
        implementation=Directions(forward=dtilde_matrix, backward=dtilde_matrix_backward),
    ),
)
