"""Reverse cumulative sums and decay matrices in PyTorch, differentiated by autograd."""

import torch


def rev_cumsum(x: torch.Tensor) -> torch.Tensor:
    return x.flip(-1).cumsum(-1).flip(-1)


def rev_cumsum_off(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(rev_cumsum(x)[..., 1:], (0, min(1, x.shape[-1])))


def causal_forget_matrix(forget_gates: torch.Tensor) -> torch.Tensor:
    S = forget_gates.shape[-1]
    lower = torch.ones(S, S, dtype=torch.bool, device=forget_gates.device).tril()
    sums = torch.where(lower.tril(-1), forget_gates[..., :, None], 0.0).cumsum(dim=-2)
    return torch.where(lower, sums, -torch.inf)


def dtilde_matrix(igate: torch.Tensor, fgate: torch.Tensor) -> torch.Tensor:
    """A sum of matrices, so that all rows of its cotangent reach the input gates, the masked ones too."""
    return causal_forget_matrix(torch.nn.functional.logsigmoid(fgate[..., 0])) + igate.mT
