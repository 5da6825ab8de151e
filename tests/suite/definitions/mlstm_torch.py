"""The definition of the mLSTM as a PyTorch loop, differentiated by autograd through everything that it computes.

It is what a reader of `docs/spec.md` writes first: one step after the other, in the accumulation dtype, with no
backward pass of its own. The stabiliser m is differentiated like every other intermediate value. Its exact contribution
to the gradient of h is zero, so what comes out of those paths is the rounding of large terms that cancel.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

LARGEST_M = 64.0
Normalise = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class State(NamedTuple):
    C: torch.Tensor
    n: torch.Tensor
    m: torch.Tensor


def divide(numerator: torch.Tensor, normaliser: torch.Tensor) -> torch.Tensor:
    return numerator / normaliser


def divide_by_constant(numerator: torch.Tensor, normaliser: torch.Tensor) -> torch.Tensor:
    """A wrong gradient that public kernels have: the normaliser is taken for a constant."""
    return numerator / normaliser.detach()


def weight(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """``exp(x − m)``, and 0 where x is −∞, whatever m is."""
    nothing = torch.isneginf(x)
    return torch.where(nothing, 0.0, torch.exp(torch.where(nothing, 0.0, x) - torch.where(nothing, 0.0, m)))


def frozen(m: torch.Tensor) -> torch.Tensor:
    """1, whose derivative holds m at its value in what is measured in units of ``exp(m)``."""
    finite = torch.where(torch.isneginf(m), 0.0, m)
    return torch.exp(finite.detach() - finite)


def floor_of(m: torch.Tensor) -> torch.Tensor:
    """``exp(−min(m, 64))``; where that overflows, an infinity without a gradient."""
    overflows = m < -torch.log(torch.tensor(torch.finfo(m.dtype).max, dtype=m.dtype))
    small = torch.where(overflows, 0.0, m).clamp(max=LARGEST_M)
    floor = torch.where(m > LARGEST_M, torch.exp(small) ** -1 * frozen(m), torch.exp(-small))
    return torch.where(overflows, torch.inf, floor)


def write(state: State, k: torch.Tensor, v: torch.Tensor, i: torch.Tensor, a: torch.Tensor) -> State:
    """The memory after a step."""
    carried = a + state.m
    m = torch.where(carried >= i, carried, i)
    decay, gain = weight(carried, m)[..., None], weight(i, m)[..., None]
    C = decay[..., None] * state.C + (gain * k)[..., :, None] * v[..., None, :]
    return State(C, decay * state.n + gain * k, m)


def read(state: State, q: torch.Tensor, eps: float, normalise: Normalise) -> torch.Tensor:
    """What a query finds, divided by the normaliser."""
    q = q / q.shape[-1] ** 0.5
    numerator = torch.einsum("bnkv,bnk->bnv", state.C, q)
    nu = torch.einsum("bnk,bnk->bn", state.n, q).abs()
    floor = floor_of(state.m)
    normaliser = torch.where(nu > floor, nu, floor) + eps * frozen(state.m)
    return normalise(numerator, normaliser[..., None])


def mlstm(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    i: torch.Tensor,
    f: torch.Tensor,
    *,
    initial_state: tuple | None = None,
    return_state: bool = False,
    chunk_size: int | None = None,
    eps: float = 0.0,
    normalise: Normalise = divide,
    detach_m: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, State]:
    """`mlstm` of the contract for dense calls.

    Args:
        chunk_size: of no meaning to a loop over steps.
        normalise: how the normaliser divides.
        detach_m: whether m is left out of the gradient, which is right for cotangents of h alone.
    """
    dtype = v.dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    q, k, v, i, a = (x.to(wide) for x in (q, k, v, i, torch.nn.functional.logsigmoid(f.to(wide))))
    B, S, N, K = q.shape
    if initial_state is None:
        state = State(q.new_zeros(B, N, K, v.shape[-1]), q.new_zeros(B, N, K), q.new_zeros(B, N))
    else:
        state = State(*initial_state)
    h = []
    for t in range(S):
        state = write(state, k[:, t], v[:, t], i[:, t], a[:, t])
        if detach_m:
            state = state._replace(m=state.m.detach())
        h.append(read(state, q[:, t], eps, normalise))
    result = torch.stack(h, dim=1).to(dtype) if h else torch.zeros_like(v, dtype=dtype)
    return (result, state) if return_state else result
