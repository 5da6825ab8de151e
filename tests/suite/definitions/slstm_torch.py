"""The definition of the sLSTM as a PyTorch loop, differentiated by autograd through everything that it computes.

The stabiliser m is differentiated, too: its paths to the gradient of h cancel but for their rounding.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from tests.suite.definitions.gru_torch import ClippedGradient
from tests.suite.definitions.mlstm_torch import weight

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class State(NamedTuple):
    c: torch.Tensor
    n: torch.Tensor
    m: torch.Tensor
    h: torch.Tensor


def head_by_head(h: torch.Tensor, W: torch.Tensor) -> torch.Tensor:
    """Row vectors ``(B, N, H)`` times ``(N, H, H)``."""
    return torch.einsum("bni,nij->bnj", h, W)


def slstm(
    z: torch.Tensor,
    i: torch.Tensor,
    f: torch.Tensor,
    o: torch.Tensor,
    weight_z: torch.Tensor,
    weight_i: torch.Tensor,
    weight_f: torch.Tensor,
    weight_o: torch.Tensor,
    *,
    initial_state: tuple,
    return_state: bool = False,
    forget_gate: str = "sigmoid",
    gradient_clipping: float | None = None,
    product: Product = head_by_head,
) -> torch.Tensor | tuple[torch.Tensor, State]:
    """`slstm` of the contract for dense calls in the accumulation dtype.

    Args:
        product: computes ``h W``.
    """
    state, y = State(*initial_state), []
    for t in range(z.shape[1]):
        u_z, u_i, u_f, u_o = (
            x[:, t] + product(state.h, W)
            for x, W in zip((z, i, f, o), (weight_z, weight_i, weight_f, weight_o), strict=True)
        )
        a = u_f if forget_gate == "exp" else torch.nn.functional.logsigmoid(u_f)
        carried = a + state.m
        m = torch.where(carried >= u_i, carried, u_i)
        decay, gain = weight(carried, m), weight(u_i, m)
        c, n = decay * state.c + gain * torch.tanh(u_z), decay * state.n + gain
        nothing = n == 0
        h = torch.where(nothing, 0.0, torch.sigmoid(u_o) * c / torch.where(nothing, 1.0, n))
        y.append(h)
        state = State(c, n, m, h if gradient_clipping is None else ClippedGradient.apply(h, abs(gradient_clipping)))
    h = torch.stack(y, dim=1) if y else torch.zeros_like(z)
    return (h, state) if return_state else h
