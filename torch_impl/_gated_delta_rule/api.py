"""Gated delta rule: a matrix memory that decays and whose writes replace what it holds, over whole sequences or by
single steps.

Source: Yang et al., arXiv:2412.06464; computed in chunks (`torch_impl._gated_delta_rule.chunkwise`). Per head, with row
vectors and q̂ = scale · q::

    S ← exp(g) S        S ← S + β kᵀ (v − k S)        o = q̂ S
"""

from typing import Any

import torch
from torch import Tensor

from reference.arguments import Call, check_gated_delta_step, check_linear_attention
from reference.backends import Request
from torch_impl._arrays import TORCH, autocast_dtype, cast
from torch_impl._backends import KernelBackend, choose, explains, request
from torch_impl._call_cache import cached_by_signature
from torch_impl._gated_delta_rule.arguments import Arguments, StepArguments
from torch_impl._gated_delta_rule.autograd import SEQUENCES, STEP
from torch_impl._sequence_groups import as_operator_option


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor | None = None,
    *,
    initial_state: Tensor | None = None,
    scale: float | None = None,
    qk_norm_eps: float | None = None,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    chunk_size: int | None = None,
    kernel_backend: KernelBackend | str | None = None,
) -> tuple[Tensor, Tensor]:
    """The gated delta rule over whole sequences, dense or packed.

    Per head, with row vectors and ``q̂ = scale · q``::

        S ← exp(g) S        S ← S + β kᵀ (v − k S)        o = q̂ S

    ``N``, the number of heads, is the largest of the head counts. Each count divides it, and head n reads head
    ``n // (N/Nx)`` of an array with Nx heads. Gradients are exact, including those of the initial state and those that
    come from the cotangent of the final state. The backward pass recomputes the forward pass from the arguments and the
    state at the start of every chunk. States and decays are computed in float32, or in float64 for float64 values.

    Args:
        q: queries, ``(B, S, Nq, K)``, or ``(T, Nq, K)`` with `cu_seqlens`.
        k: keys, ``(B, S, Nk, K)`` or ``(T, Nk, K)``.
        v: values, ``(B, S, Nv, V)`` or ``(T, Nv, V)``. Under autocast q, k and v are cast to its dtype.
        g: log decays, ``(B, S, Ng)`` or ``(T, Ng)``, in the dtype of `v` or float32; −∞ empties the memory. Under
            autocast g, beta and the state are cast to float32.
        beta: the part of what is missing from the memory that a step writes, ``(B, S, Nb)`` or ``(T, Nb)``, in the
            dtype of `v` or float32; None means 1.
        initial_state: S before the first step, ``(B, N, K, V)``, in the accumulation dtype; None means zeros.
        scale: by which q is multiplied; None means ``1/√K``.
        qk_norm_eps: ε, with which q and k are first divided by ``√(Σ x² + ε)``; None means that they are not.
        cu_seqlens: ``(B+1,)``, the start and end of each packed sequence.
        max_seqlen: an upper bound on the sequence lengths; checked, but never required.
        chunk_size: steps per chunk are at most this, and at most 32; None chooses a length to suit the sizes. The value
            does not depend on it.
        kernel_backend: the backend to use; an error if it does not support the call. None means a kernel that a run on
            such hardware has proven, else composed code.

    Returns:
        ``(o, state)``: o, ``(B, S, N, V)`` or ``(T, N, V)``, in the dtype of `v`, and S after the last step of each
        sequence, ``(B, N, K, V)``, in the accumulation dtype; an empty sequence returns its initial state.

    Raises:
        TypeError: an argument is not a floating-point tensor, or dtypes differ.
        ValueError: shapes disagree, a head count does not divide N, an option is out of range, `cu_seqlens` is not a
            valid packing, or the requested backend does not support the call.
        NotImplementedError: a second derivative is requested.
    """
    q, k, v, g, beta, initial_state = _autocast(q, k, v, g, beta, initial_state)
    check = _cached if cu_seqlens is None and kernel_backend is None else _checked
    options = (scale, qk_norm_eps, cu_seqlens, max_seqlen, chunk_size)
    backend = check(q, k, v, g, beta, initial_state, *options, kernel_backend)
    arguments = Arguments(
        *(q, k, v, g, beta, initial_state, cu_seqlens),
        scale=_scale(scale, q),
        qk_norm_eps=None if qk_norm_eps is None else float(qk_norm_eps),
        chunk_size=as_operator_option(chunk_size),
        backend=backend,
    )
    o, state, *_ = SEQUENCES(arguments, *arguments[:6])
    return o, state


def _scale(scale: float | None, q: Tensor) -> float:
    return q.shape[-1] ** -0.5 if scale is None else float(scale)


def _autocast(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any) -> tuple[Any, ...]:
    if (low := autocast_dtype(q)) is None:
        return q, k, v, g, beta, state
    return *(cast(x, low) for x in (q, k, v)), *(cast(x, torch.float32) for x in (g, beta, state))


def _check(*arguments: Any) -> Call:
    return check_linear_attention(TORCH, *arguments, function="gated_delta_rule", channels=False)


def _checked(*arguments: Any) -> str:
    *given, kernel_backend = arguments
    v, cu_seqlens = given[2], given[8]
    return choose(request(_check(*given), v, cu_seqlens is not None), kernel_backend).value


_cached = cached_by_signature(_checked)


@explains("gated_delta_rule")
def _request(
    q, k, v, g, beta=None, *,
    initial_state=None, scale=None, qk_norm_eps=None, cu_seqlens=None, max_seqlen=None, chunk_size=None,
) -> Request:  # fmt: skip
    q, k, v, g, beta, S = _autocast(q, k, v, g, beta, initial_state)
    call = _check(q, k, v, g, beta, S, scale, qk_norm_eps, cu_seqlens, max_seqlen, chunk_size)
    return request(call, v, cu_seqlens is not None)


def gated_delta_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor | None,
    state: Tensor,
    *,
    scale: float | None = None,
    qk_norm_eps: float | None = None,
    kernel_backend: KernelBackend | str | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of the gated delta rule, as used to generate text; shapes are those of `gated_delta_rule` without ``S``.

    Args:
        q: ``(B, Nq, K)``.
        k: ``(B, Nk, K)``.
        v: ``(B, Nv, V)``.
        g: ``(B, Ng)``.
        beta: ``(B, Nb)``; None means 1.
        state: S before the step, ``(B, N, K, V)``, in the accumulation dtype; it is not overwritten.
        scale, qk_norm_eps, kernel_backend: as in `gated_delta_rule`.

    Returns:
        ``(o, state)``: o, ``(B, N, V)``, in the dtype of `v`, and S after the step.

    Raises:
        TypeError, ValueError, NotImplementedError: as in `gated_delta_rule`.
    """
    q, k, v, g, beta, state = _autocast(q, k, v, g, beta, state)
    check = _step_cached if kernel_backend is None else _step_checked
    backend = check(q, k, v, g, beta, state, scale, qk_norm_eps, kernel_backend)
    eps = None if qk_norm_eps is None else float(qk_norm_eps)
    arguments = StepArguments(q, k, v, g, beta, state, _scale(scale, q), eps, backend)
    o, state = STEP(arguments, *arguments[:6])
    return o, state


def _step_checked(*arguments: Any) -> str:
    *given, kernel_backend = arguments
    return choose(request(check_gated_delta_step(TORCH, *given), given[2]), kernel_backend).value


_step_cached = cached_by_signature(_step_checked)


@explains("gated_delta_step")
def _step_request(q, k, v, g, beta, state, *, scale=None, qk_norm_eps=None) -> Request:
    q, k, v, g, beta, state = _autocast(q, k, v, g, beta, state)
    return request(check_gated_delta_step(TORCH, q, k, v, g, beta, state, scale, qk_norm_eps), v)
