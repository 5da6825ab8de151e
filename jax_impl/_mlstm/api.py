"""mLSTM: a matrix memory with exponential input gates, computed by chunks, linear in S in time and in memory.

Source: Beck et al., xLSTM, arXiv:2405.04517, equations 19 to 27; the chunkwise form (`chunkwise`) as in Beck et al.,
arXiv:2503.14376. Per head, with ``a_t = log σ(f_t)`` and ``q̂ = q/√K``::

    m_t = max(a_t + m_{t−1}, i_t)
    C_t = exp(a_t + m_{t−1} − m_t) C_{t−1} + exp(i_t − m_t) k_t v_tᵀ
    n_t = exp(a_t + m_{t−1} − m_t) n_{t−1} + exp(i_t − m_t) k_t
    h_t = C_tᵀ q̂_t / (max(|n_t·q̂_t|, exp(−min(m_t, 64))) + eps)
"""

from typing import Any, Literal, TypedDict, Unpack, overload

import jax

from jax_impl._arrays import JAX, is_array, matmul_precision
from jax_impl._backends import KernelBackend, choose, request, request_builder
from jax_impl._call_cache import cached_by_signature
from jax_impl._chunk_layout import chunk_length
from jax_impl._mesh_axes import place
from jax_impl._mlstm.arguments import Options
from jax_impl._mlstm.autograd import run_mlstm, run_mlstm_step
from jax_impl._mlstm.chunkwise import ChunkwiseOptions
from jax_impl._mlstm.head_ranges import cpu_is_one_device
from jax_impl._mlstm.sequence_parallel import check_sharded
from reference.arguments import MLSTMState, check_flag, check_mlstm, check_mlstm_step
from reference.backends import Request

BLOCK, BLOCK_ON_CPU = 32768, 1024
"""Number of steps, counted over sequences and heads, that are computed at once: enough to fill a GPU, or what fits in a
CPU's cache. The memory between blocks is saved for the gradient and the rest is recomputed, so that this number bounds
the memory in use apart from inputs and results."""


class _Options(TypedDict, total=False):
    """The keywords of `mlstm` that do not change the type of its result."""

    initial_state: MLSTMState | None
    cu_seqlens: jax.Array | None
    max_seqlen: int | None
    chunk_size: int | None
    eps: float
    kernel_backend: KernelBackend | str | None
    sequence_axis: str | tuple[str, ...] | None


@overload
def mlstm(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    i: jax.Array,
    f: jax.Array,
    *,
    return_state: Literal[False] = ...,
    **options: Unpack[_Options],
) -> jax.Array: ...
@overload
def mlstm(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    i: jax.Array,
    f: jax.Array,
    *,
    return_state: Literal[True],
    **options: Unpack[_Options],
) -> tuple[jax.Array, MLSTMState]: ...
@overload
def mlstm(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    i: jax.Array,
    f: jax.Array,
    *,
    return_state: bool,
    **options: Unpack[_Options],
) -> jax.Array | tuple[jax.Array, MLSTMState]: ...
def mlstm(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    i: jax.Array,
    f: jax.Array,
    *,
    initial_state: MLSTMState | None = None,
    return_state: bool = False,
    cu_seqlens: jax.Array | None = None,
    max_seqlen: int | None = None,
    chunk_size: int | None = None,
    eps: float = 0.0,
    kernel_backend: KernelBackend | str | None = None,
    sequence_axis: str | tuple[str, ...] | None = None,
) -> jax.Array | tuple[jax.Array, MLSTMState]:
    """The mLSTM over whole sequences, dense or packed.

    Per head, with ``a_t = log σ(f_t)`` and ``q̂ = q/√K``::

        m_t = max(a_t + m_{t−1}, i_t)
        C_t = exp(a_t + m_{t−1} − m_t) C_{t−1} + exp(i_t − m_t) k_t v_tᵀ
        n_t = exp(a_t + m_{t−1} − m_t) n_{t−1} + exp(i_t − m_t) k_t
        h_t = C_tᵀ q̂_t / (max(|n_t·q̂_t|, exp(−min(m_t, 64))) + eps)

    Differentiable once, in reverse mode, with respect to every floating-point argument. The gradient is exact; the
    backward pass recomputes what it needs from the inputs. Gates, states and sums are in the accumulation dtype:
    float64 for float64 values, else float32.

    Args:
        q: queries, ``(B, S, N, K)``, or ``(T, N, K)`` with `cu_seqlens`.
        k: keys, same shape as `q`.
        v: values, ``(B, S, N, V)`` or ``(T, N, V)``.
        i: input gate preactivations, ``(B, S, N)`` or ``(T, N)``, below +∞; at −∞ the step writes nothing. Their dtype
            is that of `v`, or float32 if `v` has a 16-bit dtype.
        f: forget gate preactivations, same shape as `i`; −∞ empties the memory, +∞ keeps all of it.
        initial_state: ``(C, n, m)`` before the first step, in the accumulation dtype; None means ``C = n = m = 0``.
        return_state: also return the state after the last step.
        cu_seqlens: ``(B+1,)``, the start and end of each packed sequence; may be traced, and is then not checked: one
            that does not end at T (with `sequence_axis`, at the number of tokens of all devices) gives unspecified
            numbers. A NaN or an infinite value spoils results of its own sequence and head alone: in q the h of its
            token, elsewhere h from its token on and the final state, and always all gradients.
        max_seqlen: an upper bound on the sequence lengths; checked if `cu_seqlens` can be read, but never required.
        chunk_size: steps per chunk; None chooses one to suit S. The value does not depend on it.
        eps: added to the normaliser, for parity with kernels that do so; its gradient treats m as a constant.
        kernel_backend: the backend to use; None means a kernel that a run on such hardware has proven, else XLA.
        sequence_axis: inside ``jax.shard_map`` (with ``check_vma``), the mesh axis over which the steps are sharded, or
            a tuple of them. The arrays q to f are then the steps of this device, ``(B, S_local, N, ·)`` or ``(T_local,
            N, ·)``, while `cu_seqlens`, `initial_state` and the returned state are those of the whole sequences, the
            same on every device of the axis. On P > 1 devices each sends ``1 + ⌈log₂(P − 1)⌉`` messages of
            ``B·N·(K·V + K + 3)`` numbers of the accumulation dtype (B = 1 for packed sequences), whatever S is; the
            backward pass sends as much. A returned state is one all-reduce of ``B·N·(K·V + K + 1)`` numbers, and so is
            the gradient of an initial state.

    Returns:
        h, with the shape and dtype of `v`; with `return_state`, ``(h, MLSTMState)``, the state in the accumulation
        dtype.

    Raises:
        TypeError: an argument is not a floating-point array, or dtypes differ.
        ValueError: shapes disagree, an option is out of range, `cu_seqlens` is not a valid packing, `kernel_backend`
            does not support the call, or `sequence_axis` is no axis over which the arrays are sharded.
        NotImplementedError: the function is differentiated in forward mode, or twice.
    """
    # The options depend on the values of the packing, and on those of a chunk size; no cache may read an array.
    cached = cu_seqlens is None and sequence_axis is None and not is_array(chunk_size)
    decide = _cached_options if cached else _options
    options = decide(
        *(q, k, v, i, f, initial_state, cu_seqlens, max_seqlen, chunk_size, eps, return_state),
        *(kernel_backend, matmul_precision(), sequence_axis),
    )
    packing = None if cu_seqlens is None else cu_seqlens.astype("int32")
    h, state = run_mlstm(options, q, k, v, i, f, _as_state(initial_state), packing)
    return (h, state) if return_state else h


def mlstm_step(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    i: jax.Array,
    f: jax.Array,
    state: MLSTMState,
    *,
    eps: float = 0.0,
    kernel_backend: KernelBackend | str | None = None,
) -> tuple[jax.Array, MLSTMState]:
    """One step of the mLSTM, as used to generate text; the shapes are those of `mlstm` without ``S``.

    Args:
        q, k: ``(B, N, K)``.
        v: ``(B, N, V)``.
        i, f: ``(B, N)``.
        state: the memory before the step, in the accumulation dtype.
        eps, kernel_backend: as in `mlstm`.

    Returns:
        ``(h, state)``: h, ``(B, N, V)``, in the dtype of `v`, and the memory after the step.

    Raises:
        TypeError, ValueError, NotImplementedError: as in `mlstm`.
    """
    options = _cached_step_options(q, k, v, i, f, state, eps, kernel_backend, matmul_precision())
    return run_mlstm_step(options, q, k, v, i, f, _as_state(state))


def _options(
    q: Any,
    k: Any,
    v: Any,
    i: Any,
    f: Any,
    initial_state: Any,
    cu_seqlens: Any,
    max_seqlen: Any,
    chunk_size: Any,
    eps: Any,
    return_state: bool,
    kernel_backend: Any,
    precision: str,
    sequence_axis: Any,
) -> Options:
    """The options of a legal call; raises if the call is not legal."""
    asked = _request(
        *(q, k, v, i, f),
        initial_state=initial_state,
        return_state=return_state,
        cu_seqlens=cu_seqlens,
        max_seqlen=max_seqlen,
        chunk_size=chunk_size,
        eps=eps,
        sequence_axis=sequence_axis,
    )
    backend = choose(asked, kernel_backend)
    L = chunk_length(asked.sizes["T" if asked.packed else "S"], chunk_size)
    arithmetic = ChunkwiseOptions(L=L, eps=float(eps), stabilize_correctly=True, precision=precision)
    on_cpu = asked.device == "cpu"
    return Options(
        chunkwise=arithmetic,
        return_state=return_state,
        backend=backend.name,
        interpret=backend.interpret,
        block=BLOCK_ON_CPU if on_cpu else BLOCK,
        one_device=on_cpu and cpu_is_one_device(),
        sequence_axis=sequence_axis,
    )


_cached_options = cached_by_signature(_options)


@cached_by_signature
def _cached_step_options(
    q: Any, k: Any, v: Any, i: Any, f: Any, state: Any, eps: Any, kernel_backend: Any, precision: str
) -> Options:
    backend = choose(_request_step(q, k, v, i, f, state, eps=eps), kernel_backend)
    arithmetic = ChunkwiseOptions(L=1, eps=float(eps), stabilize_correctly=True, precision=precision)
    return Options(
        chunkwise=arithmetic, return_state=True, backend=backend.name, interpret=backend.interpret, block=BLOCK
    )


@request_builder("mlstm")
def _request(
    q: Any,
    k: Any,
    v: Any,
    i: Any,
    f: Any,
    *,
    initial_state: Any = None,
    return_state: bool = False,
    cu_seqlens: Any = None,
    max_seqlen: Any = None,
    chunk_size: Any = None,
    eps: Any = 0.0,
    sequence_axis: Any = None,
) -> Request:
    check_flag("mlstm", "return_state", return_state)
    arrays = (q, k, v, i, f, initial_state, cu_seqlens)
    if sequence_axis is None:
        call = check_mlstm(JAX, *arrays, max_seqlen, chunk_size, eps)
    else:
        _, devices = place("mlstm", sequence_axis, "sequence_axis")
        call = check_mlstm(JAX, *arrays, max_seqlen, chunk_size, eps, tokens_of_all=lambda T: devices * T)
        whole = {"cu_seqlens": cu_seqlens}
        if initial_state is not None:
            whole |= dict(zip(("initial_state.C", "initial_state.n", "initial_state.m"), initial_state, strict=True))
        check_sharded(call, sequence_axis, (q, k, v, i, f), whole)
    return request(call, v, cu_seqlens is not None)


@request_builder("mlstm_step")
def _request_step(q: Any, k: Any, v: Any, i: Any, f: Any, state: Any, *, eps: Any = 0.0) -> Request:
    return request(check_mlstm_step(JAX, q, k, v, i, f, state, eps), v)


def _as_state(state: Any) -> MLSTMState | None:
    """An `MLSTMState` made of any triple."""
    return state if state is None or type(state) is MLSTMState else MLSTMState(*state)
