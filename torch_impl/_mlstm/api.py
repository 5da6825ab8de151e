"""mLSTM: a matrix memory with exponential input gates, over whole sequences or by single steps.

Source: Beck et al., xLSTM, arXiv:2405.04517, equations 19 to 27; computed in chunks as in Beck et al., arXiv:2503.14376
(`torch_impl._mlstm.chunkwise`). Per head, with ``a_t = log σ(f_t)`` and ``q̂ = q/√K``::

    m_t = max(a_t + m_{t−1}, i_t)
    C_t = exp(a_t + m_{t−1} − m_t) C_{t−1} + exp(i_t − m_t) k_t v_tᵀ
    n_t = exp(a_t + m_{t−1} − m_t) n_{t−1} + exp(i_t − m_t) k_t
    h_t = C_tᵀ q̂_t / (max(|n_t·q̂_t|, exp(−min(m_t, 64))) + eps)
"""

from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from reference.arguments import MLSTMState, check_flag, check_mlstm, check_mlstm_step
from reference.backends import Request
from torch_impl._arrays import TORCH, autocast_dtype, cast
from torch_impl._backends import KernelBackend, choose, explains, request
from torch_impl._call_cache import cached_by_signature
from torch_impl._collectives import group_of
from torch_impl._mlstm.agreement import refuse_together
from torch_impl._mlstm.arguments import Arguments, StepArguments
from torch_impl._mlstm.autograd import SEQUENCES, STEP
from torch_impl._mlstm.sequence_parallel import check_local, sharded
from torch_impl._sequence_groups import as_operator_option

# An exported program that takes or returns a state is saved by this name. A state is three tensors, so that
# torch.load(weights_only=True), which also reads such a program, may make one.
pytree._register_namedtuple(MLSTMState, serialized_type_name="gatespec.MLSTMState")
torch.serialization.add_safe_globals([MLSTMState])


class _Options(TypedDict, total=False):
    """The keywords of `mlstm` that do not change the type of its result."""

    initial_state: MLSTMState | None
    cu_seqlens: Tensor | None
    max_seqlen: int | None
    chunk_size: int | None
    eps: float
    kernel_backend: KernelBackend | str | None
    sequence_group: Any


@overload
def mlstm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    *,
    return_state: Literal[False] = ...,
    **options: Unpack[_Options],
) -> Tensor: ...
@overload
def mlstm(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, *, return_state: Literal[True], **options: Unpack[_Options]
) -> tuple[Tensor, MLSTMState]: ...
@overload
def mlstm(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, *, return_state: bool, **options: Unpack[_Options]
) -> Tensor | tuple[Tensor, MLSTMState]: ...
def mlstm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    *,
    initial_state: MLSTMState | None = None,
    return_state: bool = False,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    chunk_size: int | None = None,
    eps: float = 0.0,
    kernel_backend: KernelBackend | str | None = None,
    sequence_group: Any = None,
) -> Tensor | tuple[Tensor, MLSTMState]:
    """The mLSTM over whole sequences, dense or packed.

    Per head, with ``a_t = log σ(f_t)`` and ``q̂ = q/√K``::

        m_t = max(a_t + m_{t−1}, i_t)
        C_t = exp(a_t + m_{t−1} − m_t) C_{t−1} + exp(i_t − m_t) k_t v_tᵀ
        n_t = exp(a_t + m_{t−1} − m_t) n_{t−1} + exp(i_t − m_t) k_t
        h_t = C_tᵀ q̂_t / (max(|n_t·q̂_t|, exp(−min(m_t, 64))) + eps)

    Gradients are exact, including those of the initial state and those that come from the cotangents of the final
    state. The backward pass recomputes the forward pass from the inputs and, on a CPU, from the memory at every few
    hundred steps. States and decay are computed in float32, or in float64 for float64 values.

    Args:
        q: queries, ``(B, S, N, K)``, or ``(T, N, K)`` with `cu_seqlens`.
        k: keys, same shape as `q`.
        v: values, ``(B, S, N, V)`` or ``(T, N, V)``. Under autocast q, k and v are cast to its dtype.
        i: input gate preactivations, ``(B, S, N)`` or ``(T, N)``, below +∞, in the dtype of `v` or float32; at −∞ the
            step writes nothing. Under autocast gates and states are cast to float32.
        f: forget gate preactivations, same shape as `i`; −∞ empties the memory, +∞ keeps all of it.
        initial_state: ``(C, n, m)`` before the first step, ``(B, N, K, V)``, ``(B, N, K)``, ``(B, N)``, in the
            accumulation dtype; None means ``C = n = m = 0``.
        return_state: also return the state after the last step.
        cu_seqlens: ``(B+1,)``, the start and end of each packed sequence.
        max_seqlen: an upper bound on the sequence lengths; checked, but never required.
        chunk_size: steps per chunk; None chooses a length to suit the sizes. The value does not depend on it.
        eps: added to the normaliser, for parity with kernels that do so.
        kernel_backend: the backend to use; an error if it does not support the call. None means a kernel that a run on
            such hardware has proven, else composed code.
        sequence_group: the ``torch.distributed.ProcessGroup``, or ``DeviceMesh`` of one dimension, over whose ranks the
            steps are sharded. The tensors q to f are then the steps of this rank, ``(B, S_local, N, ·)`` or ``(T_local,
            N, ·)``, as many as it likes, 0 included, while `cu_seqlens`, `initial_state` and the returned state are
            those of the whole sequences, the same on every rank. The cotangent of a returned state is the same on every
            rank and counts once; the gradient of `initial_state` is the same on every rank. All ranks call, and run the
            backward pass, alike. On P > 1 ranks each sends at most ``1 + ⌈log₂(P − 1)⌉`` messages of ``B·N·(K·V + K +
            3)`` numbers of the accumulation dtype (B = 1 for packed sequences), whatever S is; the backward pass sends
            as much. A returned state is one all-reduce of ``B·N·(K·V + K + 1)`` numbers, and so is the gradient of an
            initial state. Before all that the ranks compare their calls (25 numbers each), which is read on the host.

    Returns:
        h, with the shape and dtype of `v`; with `return_state`, ``(h, MLSTMState)``.

    Raises:
        TypeError: an argument is not a floating-point tensor, or dtypes differ.
        ValueError: shapes disagree, an option is out of range, `cu_seqlens` is not a valid packing, or the requested
            backend does not support the call. With `sequence_group`, also if the ranks disagree about the call in
            anything but the number of their tokens, or a mesh has several dimensions; all ranks raise the same error.
        NotImplementedError: a second derivative is requested.
    """
    if sequence_group is not None:
        return _sharded_mlstm(
            *(q, k, v, i, f, initial_state, return_state, cu_seqlens, max_seqlen, chunk_size, eps, kernel_backend),
            sequence_group,
        )
    if return_state is not True and return_state is not False:
        check_flag("mlstm", "return_state", return_state)
    if (low := autocast_dtype(q)) is not None:
        q, k, v, i, f, initial_state = _autocast(low, q, k, v, i, f, initial_state)
    # The values of a packing are checked at every call, everything else once for each signature.
    check = _mlstm_cached if cu_seqlens is None and kernel_backend is None else _mlstm_checked
    backend = check(q, k, v, i, f, initial_state, cu_seqlens, max_seqlen, chunk_size, eps, kernel_backend)
    arguments = _arguments(q, k, v, i, f, initial_state, return_state, cu_seqlens, chunk_size, eps, backend)
    h, C, n, m, *_ = SEQUENCES(arguments, *arguments[:8])
    return (h, MLSTMState(C, n, m)) if return_state else h


def _arguments(q, k, v, i, f, initial_state, return_state, cu_seqlens, chunk_size, eps, backend) -> Arguments:
    C, n, m = (None, None, None) if initial_state is None else initial_state
    return Arguments(
        q=q, k=k, v=v, i=i, f=f, C=C, n=n, m=m, cu_seqlens=cu_seqlens, chunk_size=as_operator_option(chunk_size),
        eps=float(eps), stabilize_correctly=True, return_state=return_state, backend=backend,
    )  # fmt: skip


def _sharded_mlstm(
    q, k, v, i, f, initial_state, return_state, cu_seqlens, max_seqlen, chunk_size, eps, kernel_backend, sequence_group
) -> Tensor | tuple[Tensor, MLSTMState]:
    """`mlstm` of the steps of this rank; a group of one rank has them all."""
    group = group_of("mlstm", "sequence_group", sequence_group)
    if group.size == 1:
        options = dict(initial_state=initial_state, return_state=return_state, cu_seqlens=cu_seqlens)
        options |= dict(max_seqlen=max_seqlen, chunk_size=chunk_size, eps=eps, kernel_backend=kernel_backend)
        return mlstm(q, k, v, i, f, **options)
    try:
        check_flag("mlstm", "return_state", return_state)
        if (low := autocast_dtype(q)) is not None:
            q, k, v, i, f, initial_state = _autocast(low, q, k, v, i, f, initial_state)
        backend = _shard_checked(
            q, k, v, i, f, initial_state, cu_seqlens, max_seqlen, chunk_size, eps, kernel_backend, group
        )
    except (TypeError, ValueError) as error:
        if torch.compiler.is_compiling():
            raise
        refuse_together(error, group)
    arguments = _arguments(q, k, v, i, f, initial_state, return_state, cu_seqlens, chunk_size, eps, backend)
    h, state = sharded(arguments, group)
    return h if state is None else (h, state)


def _autocast(low: torch.dtype, q: Any, k: Any, v: Any, i: Any, f: Any, state: Any) -> tuple[Any, ...]:
    if isinstance(state, tuple | list):
        state = tuple(cast(part, torch.float32) for part in state)
    return *(cast(x, low) for x in (q, k, v)), *(cast(x, torch.float32) for x in (i, f)), state


def _mlstm_checked(q, k, v, i, f, initial_state, cu_seqlens, max_seqlen, chunk_size, eps, kernel_backend) -> str:
    call = check_mlstm(TORCH, q, k, v, i, f, initial_state, cu_seqlens, max_seqlen, chunk_size, eps)
    return choose(request(call, v, cu_seqlens is not None), kernel_backend).value


_mlstm_cached = cached_by_signature(_mlstm_checked)


def _unknown(T: int) -> None:
    """The number of tokens of all ranks, which only these together know."""


def _shard_checked(q, k, v, i, f, initial_state, cu_seqlens, max_seqlen, chunk_size, eps, kernel_backend, group) -> str:
    """The backend for the steps of this rank; how many the other ranks have is checked with them."""
    call = check_mlstm(
        *(TORCH, q, k, v, i, f, initial_state, cu_seqlens, max_seqlen, chunk_size, eps), tokens_of_all=_unknown
    )
    check_local(call, q, group)
    return choose(request(call, v, cu_seqlens is not None), kernel_backend).value


@explains("mlstm")
def _mlstm_request(
    q, k, v, i, f, *,
    initial_state=None, return_state=False, cu_seqlens=None, max_seqlen=None, chunk_size=None, eps=0.0,
    sequence_group=None,
) -> Request:  # fmt: skip
    check_flag("mlstm", "return_state", return_state)
    if (low := autocast_dtype(q)) is not None:
        q, k, v, i, f, initial_state = _autocast(low, q, k, v, i, f, initial_state)
    others = None
    if sequence_group is not None and group_of("mlstm", "sequence_group", sequence_group).size > 1:
        others = _unknown
    call = check_mlstm(
        *(TORCH, q, k, v, i, f, initial_state, cu_seqlens, max_seqlen, chunk_size, eps), tokens_of_all=others
    )
    return request(call, v, cu_seqlens is not None)


def mlstm_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    state: MLSTMState,
    *,
    eps: float = 0.0,
    kernel_backend: KernelBackend | str | None = None,
) -> tuple[Tensor, MLSTMState]:
    """One step of the mLSTM, as used to generate text; the shapes are those of `mlstm` without ``S``.

    Args:
        q, k: ``(B, N, K)``.
        v: ``(B, N, V)``.
        i, f: ``(B, N)``.
        state: the memory before the step, in the accumulation dtype; it is not overwritten.
        eps, kernel_backend: as in `mlstm`.

    Returns:
        ``(h, state)``: h, ``(B, N, V)``, in the dtype of `v`, and the memory after the step.

    Raises:
        TypeError, ValueError, RuntimeError: as in `mlstm`.
    """
    if (low := autocast_dtype(q)) is not None:
        q, k, v, i, f, state = _autocast(low, q, k, v, i, f, state)
    check = _step_cached if kernel_backend is None else _step_checked
    backend = check(q, k, v, i, f, state, eps, kernel_backend)
    C, n, m = state
    arguments = StepArguments(q=q, k=k, v=v, i=i, f=f, C=C, n=n, m=m, eps=float(eps), backend=backend)
    h, C, n, m = STEP(arguments, q, k, v, i, f, C, n, m)
    return h, MLSTMState(C, n, m)


def _step_checked(q, k, v, i, f, state, eps, kernel_backend) -> str:
    return choose(request(check_mlstm_step(TORCH, q, k, v, i, f, state, eps), v), kernel_backend).value


_step_cached = cached_by_signature(_step_checked)


@explains("mlstm_step")
def _mlstm_step_request(q, k, v, i, f, state, *, eps=0.0) -> Request:
    if (low := autocast_dtype(q)) is not None:
        q, k, v, i, f, state = _autocast(low, q, k, v, i, f, state)
    return request(check_mlstm_step(TORCH, q, k, v, i, f, state, eps), v)
