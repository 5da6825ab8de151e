"""The definition of the mLSTM as a PyTorch loop, differentiated by autograd through everything that it computes.

`mlstm` is what a reader of `docs/spec.md` writes first: one step after the other, in the accumulation dtype, with no
backward pass of its own. The stabiliser m is differentiated like every other intermediate value. Its exact contribution
to the gradient of h is zero, so what comes out of those paths is the rounding of large terms that cancel.
`mlstm_parallel` is the same with all steps at once, as attention.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

LARGEST_M = 64.0
Normalise = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


Operand = Callable[[torch.Tensor], torch.Tensor]


class State(NamedTuple):
    C: torch.Tensor
    n: torch.Tensor
    m: torch.Tensor


def divide(numerator: torch.Tensor, normaliser: torch.Tensor) -> torch.Tensor:
    return numerator / normaliser


def divide_by_constant(numerator: torch.Tensor, normaliser: torch.Tensor) -> torch.Tensor:
    """A wrong gradient that public kernels have: the normaliser is taken for a constant."""
    return numerator / normaliser.detach()


def as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x


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
    overflows = m < -math.log(torch.finfo(m.dtype).max)
    floor = torch.exp(-torch.where(overflows, 0.0, m).clamp(max=LARGEST_M))
    return torch.where(overflows, torch.inf, torch.where(m > LARGEST_M, floor * frozen(m), floor))


def write(
    state: State, k: torch.Tensor, v: torch.Tensor, i: torch.Tensor, a: torch.Tensor, detach_m: bool = False
) -> State:
    """The memory after a step."""
    carried = a + state.m
    m = torch.where(carried >= i, carried, i)
    if detach_m:
        m = m.detach()
    decay, gain = weight(carried, m)[..., None], weight(i, m)[..., None]
    C = decay[..., None] * state.C + (gain * k)[..., :, None] * v[..., None, :]
    return State(C, decay * state.n + gain * k, m)


def normaliser_of(nu: torch.Tensor, m: torch.Tensor, eps: float, floor_is_one: bool) -> torch.Tensor:
    """``max(|ν|, floor) + eps``, with a floor of ``exp(−min(m, 64))`` or of 1."""
    floor, size = frozen(m) if floor_is_one else floor_of(m), nu.abs()
    return torch.where(size > floor, size, floor) + eps * frozen(m)


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
    floor_is_one: bool = False,
    normalise: Normalise = divide,
    detach_m: bool = False,
    operand: Operand = as_it_is,
) -> torch.Tensor | tuple[torch.Tensor, State]:
    """`mlstm` of the contract for dense calls.

    Args:
        chunk_size: of no meaning to a loop over steps.
        floor_is_one: whether the normaliser's floor is 1, as in the fwbw interface.
        normalise: how the normaliser divides.
        detach_m: whether m is left out of the gradient, which is right for cotangents of h alone.
        operand: what becomes of an operand of a product that is computed with fewer digits.
    """
    dtype = v.dtype
    q, k, v, i, a, state = _widened(q, k, v, i, f, initial_state)
    h = []
    for t in range(q.shape[1]):
        state = write(state, k[:, t], v[:, t], i[:, t], a[:, t], detach_m)
        q_hat = operand(q[:, t] / q.shape[-1] ** 0.5)
        numerator = operand(torch.einsum("bnkv,bnk->bnv", operand(state.C), q_hat))
        nu = torch.einsum("bnk,bnk->bn", state.n, q_hat)
        h.append(normalise(numerator, normaliser_of(nu, state.m, eps, floor_is_one)[..., None]))
    result = torch.stack(h, dim=1).to(dtype) if h else torch.zeros_like(v, dtype=dtype)
    return (result, state) if return_state else result


def mlstm_parallel(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    i: torch.Tensor,
    f: torch.Tensor,
    *,
    initial_state: tuple | None = None,
    return_state: bool = False,
    eps: float = 0.0,
    floor_is_one: bool = False,
    detach_m: bool = False,
    operand: Operand = as_it_is,
    running_sums: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, State]:
    """All steps at once, with a matrix of weights (S, S); the arguments are those of `mlstm`.

    Args:
        running_sums: whether decays are differences of cumulative sums, as public kernels form them; for forget gates
            that are finite alone.
    """
    dtype = v.dtype
    q, k, v, i, a, state = _widened(q, k, v, i, f, initial_state)
    S = q.shape[1]
    if not S:
        h = torch.zeros_like(v, dtype=dtype)
        return (h, state) if return_state else h
    q, k, v, i, a = (x.transpose(1, 2) for x in (q / q.shape[-1] ** 0.5, k, v, i, a))
    lower = torch.ones(S, S, dtype=torch.bool, device=q.device).tril()
    if running_sums:
        total = a.cumsum(dim=-1)
        decays = total[..., :, None] - total[..., None, :]
    else:
        decays = torch.where(lower.tril(-1), a[..., :, None], 0.0).cumsum(dim=-2)
    D = torch.where(lower, decays + i[..., None, :], -torch.inf)
    carried, written = a.cumsum(dim=-1) + state.m[..., None], D.max(dim=-1).values
    m = torch.where(carried >= written, carried, written)
    if detach_m:
        m = m.detach()
    E, e = weight(D, m[..., None]), weight(carried, m)[..., None]
    P = operand(operand(q) @ operand(k).mT) * E
    numerator = operand(operand(P) @ operand(v)) + e * operand(operand(q) @ operand(state.C))
    nu = P.sum(dim=-1) + (e * (q @ state.n[..., None]))[..., 0]
    h = (numerator / normaliser_of(nu, m, eps, floor_is_one)[..., None]).transpose(1, 2).to(dtype)
    last = E[..., -1, :, None] * k
    C = e[..., -1, :, None] * state.C + last.mT @ v
    state = State(C, e[..., -1, :] * state.n + last.sum(dim=-2), m[..., -1])
    return (h, state) if return_state else h


def _widened(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, i: torch.Tensor, f: torch.Tensor, initial_state: tuple | None
) -> tuple:
    """The arguments in the accumulation dtype, log forget gates, and the initial state."""
    wide = torch.float64 if v.dtype == torch.float64 else torch.float32
    q, k, v, i, f = (x.to(wide) for x in (q, k, v, i, f))
    B, _, N, K = q.shape
    state = initial_state or (q.new_zeros(B, N, K, v.shape[-1]), q.new_zeros(B, N, K), q.new_zeros(B, N))
    return q, k, v, i, torch.nn.functional.logsigmoid(f), State(*state)
