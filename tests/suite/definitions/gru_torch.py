"""The definition of the GRU as a PyTorch loop, differentiated by autograd."""

import torch

from tests.suite.definitions.mlstm_torch import Operand, as_it_is


class ClippedGradient(torch.autograd.Function):
    """The identity, whose gradient is clipped elementwise to ±bound."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor, bound: float) -> torch.Tensor:
        ctx.bound = bound  # pyright: ignore[reportAttributeAccessIssue]
        return x.clone()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor) -> tuple:
        bound: float = ctx.bound  # pyright: ignore[reportAttributeAccessIssue]
        return gradients[0].clamp(-bound, bound), None


def gru(
    input: torch.Tensor,
    weight: torch.Tensor,
    forget_input: torch.Tensor,
    forget_weight: torch.Tensor,
    reset_input: torch.Tensor,
    reset_weight: torch.Tensor,
    *,
    input_state: torch.Tensor | None = None,
    recurrent_bias: torch.Tensor | None = None,
    gradient_clipping: float | None = None,
    operand: Operand = as_it_is,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`gru` of the contract for dense calls; with a recurrent bias, that with the reset gate after the product.

    Args:
        operand: what becomes of an operand of a product that is computed with fewer digits.
    """
    dtype = input.dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    tokens, weights = (input, forget_input, reset_input), (weight, forget_weight, reset_weight)
    N = max(*(x.shape[-2] for x in tokens), *(W.shape[0] for W in weights))
    x, xf, xr = (part.to(wide).repeat_interleave(N // part.shape[-2], dim=-2) for part in tokens)
    W, Wf, Wr = (operand(part.to(wide).repeat_interleave(N // part.shape[0], dim=0)) for part in weights)
    bias = None if recurrent_bias is None else recurrent_bias.to(wide).repeat_interleave(N // len(weight), dim=0)
    state = x.new_zeros(x.shape[0], N, x.shape[-1]) if input_state is None else input_state
    h, y = state, []

    def times(h: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bni,nij->bnj", operand(h), W)

    for t in range(x.shape[1]):
        r, f = torch.sigmoid(times(h, Wr) + xr[:, t]), torch.sigmoid(times(h, Wf) + xf[:, t])
        z = torch.tanh((times(r * h, W) if bias is None else r * (times(h, W) + bias)) + x[:, t])
        after = f * h + (1 - f) * z
        y.append(after)
        h = after if gradient_clipping is None else ClippedGradient.apply(after, abs(gradient_clipping))
    states = torch.stack(y, dim=1) if y else x.new_zeros(x.shape[0], 0, N, x.shape[-1])
    return states.to(dtype), h
