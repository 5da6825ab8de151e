"""Gated delta rule: a matrix memory that decays and whose writes replace what it holds, over whole sequences or by
single steps.

Source: Yang et al., arXiv:2412.06464; computed in chunks (`jax_impl._gated_delta_rule.composed`). Per head, with row
vectors and q̂ = scale · q::

    S ← exp(g) S        S ← S + β kᵀ (v − k S)        o = q̂ S
"""

from typing import Any

import jax

from jax_impl._arrays import JAX, matmul_precision
from jax_impl._backends import KernelBackend, choose, request, request_builder
from jax_impl._call_cache import cached_by_signature
from jax_impl._chunk_layout import chunk_length
from jax_impl._gated_delta_rule.arguments import Options
from jax_impl._gated_delta_rule.composed import LONGEST
from jax_impl._gated_delta_rule.run import run_gated_delta_rule, run_gated_delta_step
from reference.arguments import check_gated_delta_step, check_linear_attention
from reference.backends import Request


def gated_delta_rule(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    beta: jax.Array | None = None,
    *,
    initial_state: jax.Array | None = None,
    scale: float | None = None,
    qk_norm_eps: float | None = None,
    cu_seqlens: jax.Array | None = None,
    max_seqlen: int | None = None,
    chunk_size: int | None = None,
    kernel_backend: KernelBackend | str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The gated delta rule over whole sequences, dense or packed.

    Per head, with row vectors and ``q̂ = scale · q``::

        S ← exp(g) S        S ← S + β kᵀ (v − k S)        o = q̂ S

    ``N``, the number of heads, is the largest of the head counts. Each count divides it, and head n reads head
    ``n // (N/Nx)`` of an array with Nx heads. Differentiable any number of times, in both modes, with respect to every
    floating-point argument; in reverse mode the state at the start of every chunk is saved, and what follows from it is
    computed again. States and decays are in the accumulation dtype: float64 for float64 values, else float32.

    Args:
        q: queries, ``(B, S, Nq, K)``, or ``(T, Nq, K)`` with `cu_seqlens`.
        k: keys, ``(B, S, Nk, K)`` or ``(T, Nk, K)``.
        v: values, ``(B, S, Nv, V)`` or ``(T, Nv, V)``.
        g: log decays, ``(B, S, Ng)`` or ``(T, Ng)``, in the dtype of `v` or float32; −∞ empties the memory.
        beta: the part of what is missing from the memory that a step writes, ``(B, S, Nb)`` or ``(T, Nb)``, in the
            dtype of `v` or float32; None means 1.
        initial_state: S before the first step, ``(B, N, K, V)`` in the accumulation dtype; None means zeros.
        scale: by which q is multiplied; None means ``1/√K``.
        qk_norm_eps: ε, with which q and k are first divided by ``√(Σ x² + ε)``; None means that they are not.
        cu_seqlens: ``(B+1,)``, the start and end of each packed sequence; may be traced, and is then not checked.
        max_seqlen: an upper bound on the sequence lengths; checked if `cu_seqlens` can be read, but never required.
        chunk_size: steps per chunk are at most this, and at most 32; None chooses a length to suit the sizes. The value
            does not depend on it.
        kernel_backend: the backend to use; an error if it does not support the call.

    Returns:
        ``(o, state)``: o, ``(B, S, N, V)`` or ``(T, N, V)``, in the dtype of `v`, and S after the last step of each
        sequence, ``(B, N, K, V)``, in the accumulation dtype; an empty sequence returns its initial state.

    Raises:
        TypeError: an argument is not a floating-point array, or dtypes differ.
        ValueError: shapes disagree, a head count does not divide N, an option is out of range, `cu_seqlens` is not a
            valid packing, or `kernel_backend` does not support the call.
    """
    # The values of a packing are checked, which no cache may read.
    decide = _cached_options if cu_seqlens is None else _options
    options = decide(
        *(q, k, v, g, beta, initial_state, scale, qk_norm_eps, cu_seqlens, max_seqlen, chunk_size, kernel_backend),
        matmul_precision(),
    )
    packing = None if cu_seqlens is None else cu_seqlens.astype("int32")
    return run_gated_delta_rule(options, q, k, v, g, beta, initial_state, packing)


def _options(*call: Any) -> Options:
    """The options of a legal call; raises if the call is not legal."""
    *arguments, kernel_backend, precision = call
    q, _, _, _, _, _, scale, eps, cu_seqlens, _, chunk_size = arguments
    backend = choose(_request(*arguments), kernel_backend).name
    L = min(chunk_length(q.shape[0 if cu_seqlens is not None else 1], chunk_size, LONGEST), LONGEST)
    return _of_call(q, L, scale, eps, precision, backend)


def _of_call(q: Any, L: int, scale: Any, eps: Any, precision: str, backend: str) -> Options:
    return Options(
        L=L,
        scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
        qk_norm_eps=None if eps is None else float(eps),
        precision=precision,
        backend=backend,
    )


_cached_options = cached_by_signature(_options)


@request_builder("gated_delta_rule")
def _request(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any = None,
    initial_state: Any = None,
    scale: Any = None,
    qk_norm_eps: Any = None,
    cu_seqlens: Any = None,
    max_seqlen: Any = None,
    chunk_size: Any = None,
) -> Request:
    call = check_linear_attention(
        *(JAX, q, k, v, g, beta, initial_state, scale, qk_norm_eps, cu_seqlens, max_seqlen, chunk_size),
        function="gated_delta_rule",
        channels=False,
    )
    return request(call, v, cu_seqlens is not None)


def gated_delta_step(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    beta: jax.Array | None,
    state: jax.Array,
    *,
    scale: float | None = None,
    qk_norm_eps: float | None = None,
    kernel_backend: KernelBackend | str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """One step of the gated delta rule, as used to generate text; shapes are those of `gated_delta_rule` without ``S``.

    Args:
        q: ``(B, Nq, K)``.
        k: ``(B, Nk, K)``.
        v: ``(B, Nv, V)``.
        g: ``(B, Ng)``.
        beta: ``(B, Nb)``; None means 1.
        state: S before the step, ``(B, N, K, V)`` in the accumulation dtype; it is not overwritten.
        scale, qk_norm_eps, kernel_backend: as in `gated_delta_rule`.

    Returns:
        ``(o, state)``: o, ``(B, N, V)``, in the dtype of `v`, and S after the step.

    Raises:
        TypeError, ValueError: as in `gated_delta_rule`.
    """
    options = _cached_step_options(
        *(q, k, v, g, beta, state, scale, qk_norm_eps, kernel_backend, matmul_precision()),
    )
    return run_gated_delta_step(options, q, k, v, g, beta, state)


def _step_options(*call: Any) -> Options:
    *arguments, kernel_backend, precision = call
    backend = choose(_step_request(*arguments), kernel_backend).name
    return _of_call(arguments[0], 1, arguments[6], arguments[7], precision, backend)


_cached_step_options = cached_by_signature(_step_options)


@request_builder("gated_delta_step")
def _step_request(
    q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, scale: Any = None, qk_norm_eps: Any = None
) -> Request:
    return request(check_gated_delta_step(JAX, q, k, v, g, beta, state, scale, qk_norm_eps), v)
