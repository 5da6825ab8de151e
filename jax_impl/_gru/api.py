"""Multi-head GRU with the reset gate inside the recurrent product, or after it.

Source: Cho et al. 2014, arXiv:1406.1078, equations 5 to 8, with the update gate written as a forget gate. The heads,
their grouping and the clipping of the state's gradient follow the GRU layer of xma. Per head, with row vectors::

    r = σ(h W_r + x_r)        f = σ(h W_f + x_f)        z = tanh((r⊙h) W + x)        h' = f⊙h + (1−f)⊙z
"""

import math
from typing import Any

import jax

from jax_impl._arrays import JAX, matmul_precision
from jax_impl._backends import KernelBackend, choose, request, request_builder
from jax_impl._call_cache import cached_by_signature
from jax_impl._gru.autograd import run_gru
from jax_impl._gru.steps import Options
from reference.arguments import check_gru, check_sequential
from reference.backends import Request

TOGETHER, TOGETHER_ON_CPU = 4096, 1024
"""Number of packed sequences that array code advances at once: enough to fill a GPU, or what fits in a CPU's cache."""

MERGED, MERGED_ON_CPU = math.inf, 2**20 - 1
"""Bound of `Options.merged`. A GPU does better with one product than with two. On a CPU the forget gate's product may
run on a second thread while the candidate waits for that of the reset gate; from 2²⁰ multiplications this is faster."""


def gru(
    input: jax.Array,
    weight: jax.Array,
    forget_input: jax.Array,
    forget_weight: jax.Array,
    reset_input: jax.Array,
    reset_weight: jax.Array,
    input_state: jax.Array | None = None,
    gradient_clipping: float | None = None,
    cu_seqlens: jax.Array | None = None,
    max_seqlen: int | None = None,
    *,
    reset_after: bool = False,
    recurrent_bias: jax.Array | None = None,
    kernel_backend: KernelBackend | str | None = None,
    sequence_axis: None = None,
) -> tuple[jax.Array, jax.Array]:
    """The GRU over whole sequences, dense or packed.

    Per head, with row vectors::

        r = σ(h W_r + x_r)        f = σ(h W_f + x_f)        z = tanh((r⊙h) W + x)        h' = f⊙h + (1−f)⊙z

    With `reset_after`, ``z = tanh(r⊙(h W + b) + x)``.

    ``N``, the number of heads, is the largest of the six head counts. Each count divides it, and head n reads head
    ``n // (N/Nx)`` of an input with Nx heads; weights are read in the same way. Differentiable once, in reverse mode,
    with respect to every floating-point argument; the backward pass recomputes the gates, and computes the gradients of
    the weights as products over many steps. The state and its gradient are in the accumulation dtype: float64 for
    float64 values, else float32.

    Args:
        input: x, ``(B, S, Nx, H)``, or ``(T, Nx, H)`` with `cu_seqlens`.
        weight: W, ``(Nw, H, H)``.
        forget_input: x_f, ``(B, S, Nxf, H)`` or ``(T, Nxf, H)``.
        forget_weight: W_f, ``(Nwf, H, H)``.
        reset_input: x_r, ``(B, S, Nxr, H)`` or ``(T, Nxr, H)``.
        reset_weight: W_r, ``(Nwr, H, H)``.
        input_state: h before the first step, ``(B, N, H)`` in the accumulation dtype; None means zeros.
        gradient_clipping: the bound c. The gradient that reaches h_t from step t+1 (at the last step: from the
            cotangent of the output state) is clipped elementwise to ±|c| before the cotangent of the output is added.
            The gradient of the initial state is not clipped. It does not affect the value.
        cu_seqlens: ``(B+1,)``, the start and end of each packed sequence; may be traced.
        max_seqlen: an upper bound on the sequence lengths; checked if `cu_seqlens` can be read, but never required.
        reset_after: whether the reset gate is applied after the recurrent product, as in ``torch.nn.GRU``.
        recurrent_bias: b, ``(Nw, H)``, only with `reset_after`; None means zeros.
        kernel_backend: the backend to use; None means a kernel that a run on such hardware has proven, else XLA.
        sequence_axis: only None, unlike in `mlstm`, because each step needs the one before it: shard the batch or the
            heads instead.

    Returns:
        ``(output, output_state)``: every h', ``(B, S, N, H)`` or ``(T, N, H)``, in the dtype of `input`, and the last
        h' of each sequence, ``(B, N, H)``, in the accumulation dtype; an empty sequence returns its initial state.

    Raises:
        TypeError: an argument is not a floating-point array, or dtypes differ.
        ValueError: shapes disagree, a head count does not divide N, `cu_seqlens` is not a valid packing,
            `sequence_axis` is given, `recurrent_bias` is given without `reset_after`, or `kernel_backend` does not
            support the call.
        NotImplementedError: a second derivative is taken.
    """
    check_sequential("gru", "sequence_axis", sequence_axis)
    # The options of a packed call depend on the values of the packing, which no cache may read.
    decide = _cached_options if cu_seqlens is None else _options
    options = decide(
        *(input, weight, forget_input, forget_weight, reset_input, reset_weight, input_state, gradient_clipping),
        *(cu_seqlens, max_seqlen, reset_after, recurrent_bias, kernel_backend, matmul_precision()),
    )
    packing = None if cu_seqlens is None else cu_seqlens.astype("int32")
    arrays = (input, weight, forget_input, forget_weight, reset_input, reset_weight, recurrent_bias)
    return run_gru(options, *arrays, input_state, packing)


def _options(
    input: Any,
    weight: Any,
    forget_input: Any,
    forget_weight: Any,
    reset_input: Any,
    reset_weight: Any,
    input_state: Any,
    gradient_clipping: Any,
    cu_seqlens: Any,
    max_seqlen: Any,
    reset_after: Any,
    recurrent_bias: Any,
    kernel_backend: Any,
    precision: str,
) -> Options:
    """The options of a legal call; raises if the call is not legal."""
    asked = _request(
        *(input, weight, forget_input, forget_weight, reset_input, reset_weight),
        *(input_state, gradient_clipping, cu_seqlens, max_seqlen, reset_after, recurrent_bias),
    )
    backend = choose(asked, kernel_backend)
    bound = None if gradient_clipping is None else abs(float(gradient_clipping))
    return Options(
        bound=bound,
        reset_after=reset_after,
        precision=precision,
        backend=backend.name,
        interpret=backend.interpret,
        together=TOGETHER_ON_CPU if asked.device == "cpu" else TOGETHER,
        merged=MERGED_ON_CPU if asked.device == "cpu" else MERGED,
    )


_cached_options = cached_by_signature(_options)


@request_builder("gru")
def _request(
    input: Any,
    weight: Any,
    forget_input: Any,
    forget_weight: Any,
    reset_input: Any,
    reset_weight: Any,
    input_state: Any = None,
    gradient_clipping: Any = None,
    cu_seqlens: Any = None,
    max_seqlen: Any = None,
    reset_after: Any = False,
    recurrent_bias: Any = None,
) -> Request:
    call = check_gru(
        JAX,
        input=input,
        weight=weight,
        forget_input=forget_input,
        forget_weight=forget_weight,
        reset_input=reset_input,
        reset_weight=reset_weight,
        input_state=input_state,
        gradient_clipping=gradient_clipping,
        cu_seqlens=cu_seqlens,
        max_seqlen=max_seqlen,
        reset_after=reset_after,
        recurrent_bias=recurrent_bias,
    )
    return request(call, input, cu_seqlens is not None)
