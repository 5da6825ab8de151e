"""mLSTM: a matrix memory with exponential input gates, in its recurrent, parallel and chunkwise forms.

Source: Beck et al., xLSTM, arXiv:2405.04517, equations 19 to 27 and appendix A; the chunkwise form as in Beck et al.,
arXiv:2503.14376. `mlstm_recurrent` is the definition; the other forms are the same function computed in another order.

Per head, with ``a_t = log σ(f_t)`` and ``q̂ = q/√K``::

    m_t = max(a_t + m_{t−1}, i_t)
    C_t = exp(a_t + m_{t−1} − m_t) C_{t−1} + exp(i_t − m_t) k_t v_tᵀ
    n_t = exp(a_t + m_{t−1} − m_t) n_{t−1} + exp(i_t − m_t) k_t
    h_t = C_tᵀ q̂_t / (max(|n_t·q̂_t|, exp(−min(m_t, 64))) + eps)
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal, TypedDict, Unpack, overload

import numpy as np

from reference._arrays import NUMPY, float64
from reference._backends import KernelBackend, choose
from reference._decay import causal_forget_matrix, dtilde_matrix
from reference._gates import exp_difference, log_sigmoid, sigmoid, stabilised_decay
from reference.arguments import MLSTMState, check_flag, check_mlstm, check_mlstm_step

LARGEST_M = 64.0
"""The stabiliser above which the normaliser's floor exp(−m) no longer falls; exp(−64) is still a float32."""


class _Options(TypedDict, total=False):
    """The keywords of `mlstm` that do not change the type of its result."""

    initial_state: MLSTMState | None
    cu_seqlens: np.ndarray | None
    max_seqlen: int | None
    chunk_size: int | None
    eps: float
    kernel_backend: KernelBackend | str | None


@overload
def mlstm(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    i: np.ndarray,
    f: np.ndarray,
    *,
    return_state: Literal[False] = ...,
    **options: Unpack[_Options],
) -> np.ndarray: ...
@overload
def mlstm(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    i: np.ndarray,
    f: np.ndarray,
    *,
    return_state: Literal[True],
    **options: Unpack[_Options],
) -> tuple[np.ndarray, MLSTMState]: ...
@overload
def mlstm(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    i: np.ndarray,
    f: np.ndarray,
    *,
    return_state: bool,
    **options: Unpack[_Options],
) -> np.ndarray | tuple[np.ndarray, MLSTMState]: ...
def mlstm(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    i: np.ndarray,
    f: np.ndarray,
    *,
    initial_state: MLSTMState | None = None,
    return_state: bool = False,
    cu_seqlens: np.ndarray | None = None,
    max_seqlen: int | None = None,
    chunk_size: int | None = None,
    eps: float = 0.0,
    kernel_backend: KernelBackend | str | None = None,
) -> np.ndarray | tuple[np.ndarray, MLSTMState]:
    """The mLSTM over whole sequences, dense or packed.

    Per head, with ``a_t = log σ(f_t)`` and ``q̂ = q/√K``::

        m_t = max(a_t + m_{t−1}, i_t)
        C_t = exp(a_t + m_{t−1} − m_t) C_{t−1} + exp(i_t − m_t) k_t v_tᵀ
        n_t = exp(a_t + m_{t−1} − m_t) n_{t−1} + exp(i_t − m_t) k_t
        h_t = C_tᵀ q̂_t / (max(|n_t·q̂_t|, exp(−min(m_t, 64))) + eps)

    Args:
        q: queries, ``(B, S, N, K)``, or ``(T, N, K)`` with `cu_seqlens`.
        k: keys, same shape as `q`.
        v: values, ``(B, S, N, V)`` or ``(T, N, V)``.
        i: input gate preactivations, ``(B, S, N)`` or ``(T, N)``, below +∞; at −∞ the step writes nothing.
        f: forget gate preactivations, same shape as `i`; −∞ empties the memory, +∞ keeps all of it.
        initial_state: ``(C, n, m)`` before the first step; None means ``C = n = m = 0``.
        return_state: also return the state after the last step.
        cu_seqlens: ``(B+1,)``, the start and end of each packed sequence.
        max_seqlen: an upper bound on the sequence lengths; checked, but never required.
        chunk_size: None for the recurrent form, else the number of steps per chunk of the chunkwise form. The value
            does not depend on it.
        eps: added to the normaliser, for parity with kernels that do so.
        kernel_backend: None or ``numpy``.

    Returns:
        h, with the shape of `v`; with `return_state`, ``(h, MLSTMState)``. All are float64.

    Raises:
        TypeError: an argument is not a floating-point array, or dtypes differ.
        ValueError: shapes disagree, an option is out of range, or `cu_seqlens` is not a valid packing.
    """
    check_flag("mlstm", "return_state", return_state)
    call = check_mlstm(NUMPY, q, k, v, i, f, initial_state, cu_seqlens, max_seqlen, chunk_size, eps)
    choose(call, q, kernel_backend, packed=cu_seqlens is not None)

    def whole(*arrays, state):
        options = {} if chunk_size is None else {"chunk_size": chunk_size}
        form = mlstm_recurrent if chunk_size is None else mlstm_chunkwise
        h, last = form(*arrays, initial_state=state, eps=eps, **options)
        return (h,), last

    arrays = [float64(x) for x in (q, k, v, i, f)]
    state = _initial_state(arrays, initial_state, cu_seqlens)
    if cu_seqlens is None:
        (h,), last = whole(*arrays, state=state)
    else:
        (h,), last = _each_sequence(whole, arrays, cu_seqlens, state=state)
    return (h, last) if return_state else h


def mlstm_step(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    i: np.ndarray,
    f: np.ndarray,
    state: MLSTMState,
    *,
    eps: float = 0.0,
    kernel_backend: KernelBackend | str | None = None,
) -> tuple[np.ndarray, MLSTMState]:
    """One step of the mLSTM, as used to generate text; the shapes are those of `mlstm` without ``S``.

    Args:
        q, k: ``(B, N, K)``.
        v: ``(B, N, V)``.
        i, f: ``(B, N)``.
        state: the memory before the step.
        eps, kernel_backend: as in `mlstm`.

    Returns:
        ``(h, state)``: h, ``(B, N, V)``, and the memory after the step. All are float64.

    Raises:
        TypeError, ValueError: as in `mlstm`.
    """
    call = check_mlstm_step(NUMPY, q, k, v, i, f, state, eps)
    choose(call, q, kernel_backend)
    q, k, v, i, f = (float64(x) for x in (q, k, v, i, f))
    state = MLSTMState(*(float64(part) for part in state))
    state = _write(k, v, i, log_sigmoid(f), state)
    return _read(q, state, eps), state


@np.errstate(over="ignore")
def _write(k: np.ndarray, v: np.ndarray, i: np.ndarray, a: np.ndarray, state: MLSTMState) -> MLSTMState:
    """The memory after a step: decay the old memory, add ``k vᵀ``, and scale both to the new stabiliser."""
    C, n, m = state
    m_new = np.maximum(a + m, i)
    decay = np.exp(stabilised_decay(a, m, m_new))
    gain = exp_difference(i, m_new)
    C = decay[..., None, None] * C + gain[..., None, None] * k[..., :, None] * v[..., None, :]
    n = decay[..., None] * n + gain[..., None] * k
    return MLSTMState(C, n, m_new)


def _read(q: np.ndarray, state: MLSTMState, eps: float) -> np.ndarray:
    """The memory's answer to the query: ``Cᵀq̂`` divided by the normaliser."""
    C, n, m = state
    q = q / np.sqrt(q.shape[-1])
    numerator = np.einsum("...kv,...k->...v", C, q)
    nu = np.einsum("...k,...k->...", n, q)
    return numerator / (np.maximum(np.abs(nu), normaliser_floor(m)) + eps)[..., None]


def normaliser_floor(m: np.ndarray) -> np.ndarray:
    """``exp(−min(m, 64))``: 1 in the units of the true memory ``C·exp(m)``, as far as float32 can represent it."""
    with np.errstate(over="ignore"):
        return np.exp(-np.minimum(m, LARGEST_M))


def mlstm_recurrent(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    i: np.ndarray,
    f: np.ndarray,
    *,
    initial_state: MLSTMState | None = None,
    eps: float = 0.0,
) -> tuple[np.ndarray, MLSTMState]:
    """The definition: one step after the other.

    Args:
        q, k, v, i, f, initial_state, eps: as in `mlstm`, dense layout.

    Returns:
        ``(h, final state)``, float64.
    """
    check_mlstm(NUMPY, q, k, v, i, f, initial_state, None, None, None, eps, "mlstm_recurrent")
    q, k, v, i, f = (float64(x) for x in (q, k, v, i, f))
    state = _initial_state((q, k, v, i, f), initial_state)
    a = log_sigmoid(f)
    h = np.empty(v.shape)
    for t in range(q.shape[1]):
        state = _write(k[:, t], v[:, t], i[:, t], a[:, t], state)
        h[:, t] = _read(q[:, t], state, eps)
    return h, state


@np.errstate(over="ignore")
def mlstm_parallel(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    i: np.ndarray,
    f: np.ndarray,
    *,
    initial_state: MLSTMState | None = None,
    eps: float = 0.0,
) -> tuple[np.ndarray, MLSTMState]:
    """All steps at once, as attention with the decay D̃ as its mask; the cost is quadratic in S.

    With ``b_t = Σ_{s≤t} a_s``, the log weight of the initial memory at step t is ``b_t + m_0``, the log weight of the
    write of step j is ``D̃[t,j]``, and m_t is the largest of these::

        h_t = (Σ_j exp(D̃[t,j] − m_t) (q̂_t·k_j) v_j + exp(b_t + m_0 − m_t) C_0ᵀq̂_t) / normaliser

    The differences are sums of ``α_t = a_t + m_{t−1} − m_t`` and ``ι_j = i_j − m_j``, none of which is above 0, so that
    large gates do not cancel in them: ``D̃[t,j] − m_t = Σ_{j<s≤t} α_s + ι_j`` and ``b_t + m_0 − m_t = Σ_{s≤t} α_s``.

    Args:
        q, k, v, i, f, initial_state, eps: as in `mlstm`, dense layout.

    Returns:
        ``(h, final state)``, float64.
    """
    check_mlstm(NUMPY, q, k, v, i, f, initial_state, None, None, None, eps, "mlstm_parallel")
    q, k, v, i, f = (np.moveaxis(float64(x), 1, 2) for x in (q, k, v, i, f))
    C, n, m_0 = _initial_state((q, k, v, i, f), initial_state, heads_first=True)
    if q.shape[2] == 0:
        return np.moveaxis(v, 2, 1), MLSTMState(C, n, m_0)
    q = q / np.sqrt(q.shape[-1])
    a, D = log_sigmoid(f), dtilde_matrix(i[..., None], f[..., None])
    carried = np.cumsum(a, axis=-1) + m_0[..., None]
    m = np.maximum(carried, D.max(axis=-1))
    alpha = stabilised_decay(a, np.concatenate([m_0[..., None], m[..., :-1]], axis=-1), m)
    E = np.exp(causal_forget_matrix(alpha)) * exp_difference(i, m)[..., None, :]
    e = np.exp(np.cumsum(alpha, axis=-1))
    scores = np.einsum("bntk,bnjk->bntj", q, k) * E
    numerator = scores @ v + e[..., None] * (q @ C)
    nu = scores.sum(axis=-1) + e * np.einsum("bntk,bnk->bnt", q, n)
    h = numerator / (np.maximum(np.abs(nu), normaliser_floor(m)) + eps)[..., None]
    kept, written = e[..., -1], E[..., -1, :]
    C_last = kept[..., None, None] * C + np.einsum("bnjk,bnjv->bnkv", written[..., None] * k, v)
    n_last = kept[..., None] * n + np.einsum("bnj,bnjk->bnk", written, k)
    return np.moveaxis(h, 2, 1), MLSTMState(C_last, n_last, m[..., -1])


def mlstm_chunkwise(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    i: np.ndarray,
    f: np.ndarray,
    *,
    initial_state: MLSTMState | None = None,
    chunk_size: int = 64,
    eps: float = 0.0,
) -> tuple[np.ndarray, MLSTMState]:
    """The parallel form inside chunks, the recurrent form between them; the cost is linear in S.

    Args:
        q, k, v, i, f, initial_state, eps: as in `mlstm`, dense layout.
        chunk_size: L, the number of steps per chunk; the last chunk may be shorter.

    Returns:
        ``(h, final state)``, float64.
    """
    check_mlstm(NUMPY, q, k, v, i, f, initial_state, None, None, chunk_size, eps, "mlstm_chunkwise")
    q, k, v, i, f = (float64(x) for x in (q, k, v, i, f))
    state = _initial_state((q, k, v, i, f), initial_state)
    h = np.empty(v.shape)
    for start in range(0, q.shape[1], chunk_size):
        chunk = np.s_[:, start : start + chunk_size]
        h[chunk], state = mlstm_parallel(q[chunk], k[chunk], v[chunk], i[chunk], f[chunk], initial_state=state, eps=eps)
    return h, state


def mlstm_backward(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    i: np.ndarray,
    f: np.ndarray,
    *,
    initial_state: MLSTMState | None = None,
    dh: np.ndarray,
    dstate: MLSTMState | None = None,
    cu_seqlens: np.ndarray | None = None,
    max_seqlen: int | None = None,
    eps: float = 0.0,
) -> dict[str, Any]:
    """Gradient of `mlstm`: one loop forward that stores every memory, one loop backward.

    h does not depend on the stabiliser m (except where the contract says otherwise, and there m counts as a constant),
    so the backward pass treats m as a constant. With Y the normaliser and ``ν = n·q̂``, each step first differentiates
    its read::

        δ_t = dh_t / Y_t        dν_t = −(dh_t·h_t)/Y_t · sign(ν_t) where |ν_t| is above its floor, else 0
        dC += q̂_t δ_tᵀ          dn += dν_t q̂_t          dq̂_t = C_t δ_t + dν_t n_t

    then its write, with ``decay = exp(a_t + m_{t−1} − m_t)`` and ``gain = exp(i_t − m_t)``::

        dk_t = gain (dC v_t + dn)          dv_t = gain dCᵀk_t          di_t = k_t·dk_t
        da_t = decay (⟨C_{t−1}, dC⟩ + ⟨n_{t−1}, dn⟩)          dC ← decay dC          dn ← decay dn

    Only the final state contains m itself. Of its cotangent, ``g = dm_T − ⟨C_T, dC_T⟩ − ⟨n_T, dn_T⟩`` goes to whatever
    attained m_T: the write of step j (``di_j``) and the decay of every later step, or ``m_0`` (j = 0).

    Args:
        q, k, v, i, f, initial_state, cu_seqlens, max_seqlen, eps: as in `mlstm`.
        dh: cotangent of h.
        dstate: cotangents of the final state; None means zeros.

    Returns:
        Gradients by argument name, including ``initial_state`` (an `MLSTMState`) if one was given. All are float64.

    Raises:
        TypeError, ValueError: as in `mlstm`.
    """
    call = check_mlstm(NUMPY, q, k, v, i, f, initial_state, cu_seqlens, max_seqlen, None, eps, "mlstm_backward")
    call.kind(dh=dh)
    call.shape("dh", dh, "B S N V" if cu_seqlens is None else "T N V")
    arrays = [float64(x) for x in (q, k, v, i, f, dh)]
    state = _initial_state(arrays, initial_state, cu_seqlens)
    dlast = MLSTMState(*(np.zeros(part.shape) for part in state) if dstate is None else map(float64, dstate))

    whole = partial(_backward, eps=eps)
    if cu_seqlens is None:
        gradients, dinitial = whole(*arrays, state=state, dlast=dlast)
    else:
        gradients, dinitial = _each_sequence(whole, arrays, cu_seqlens, state=state, dlast=dlast)
    result = dict(zip("qkvif", gradients, strict=True))
    return result if initial_state is None else {**result, "initial_state": dinitial}


def mlstm_step_backward(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    i: np.ndarray,
    f: np.ndarray,
    state: MLSTMState,
    *,
    dh: np.ndarray,
    dstate: MLSTMState | None = None,
    eps: float = 0.0,
) -> dict[str, Any]:
    """Gradient of `mlstm_step`, computed as `mlstm_backward` of a sequence of one step.

    Args:
        q, k, v, i, f, state, eps: as in `mlstm_step`.
        dh: cotangent of h, ``(B, N, V)``.
        dstate: cotangents of the state after the step; None means zeros.

    Returns:
        Gradients by argument name; ``state`` is an `MLSTMState`. All are float64.
    """
    check_mlstm_step(NUMPY, q, k, v, i, f, state, eps, "mlstm_step_backward")
    sequence = (x[:, None] for x in (q, k, v, i, f))
    gradients = mlstm_backward(*sequence, initial_state=state, dh=dh[:, None], dstate=dstate, eps=eps)
    dinitial = gradients.pop("initial_state")
    return {**{name: gradient[:, 0] for name, gradient in gradients.items()}, "state": dinitial}


@np.errstate(over="ignore")
def _backward(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    i: np.ndarray,
    f: np.ndarray,
    dh: np.ndarray,
    *,
    state: MLSTMState,
    dlast: MLSTMState,
    eps: float,
) -> tuple[tuple[np.ndarray, ...], MLSTMState]:
    S = q.shape[1]
    a = log_sigmoid(f)
    states = [state]
    attained_at = np.zeros(state.m.shape, dtype=int)
    for t in range(S):
        states.append(_write(k[:, t], v[:, t], i[:, t], a[:, t], states[-1]))
        attained_at = np.where(i[:, t] > a[:, t] + states[t].m, t + 1, attained_at)

    q_hat = q / np.sqrt(q.shape[-1])
    dq, dk, dv, di, da = (np.zeros(x.shape) for x in (q, k, v, i, a))
    dC, dn, _ = (part.copy() for part in dlast)
    g = dlast.m - _dot(states[S], dlast)
    for t in reversed(range(S)):
        C, n, m = states[t + 1]
        nu = np.einsum("bnk,bnk->bn", n, q_hat[:, t])
        floor = normaliser_floor(m)
        Y = np.maximum(np.abs(nu), floor) + eps
        h = np.einsum("bnkv,bnk->bnv", C, q_hat[:, t]) / Y[..., None]
        delta = dh[:, t] / Y[..., None]
        dnu = -np.einsum("bnv,bnv->bn", delta, h) * np.where(np.abs(nu) > floor, np.sign(nu), 0.0)
        dC += q_hat[:, t, :, :, None] * delta[:, :, None, :]
        dn += dnu[..., None] * q_hat[:, t]
        dq[:, t] = np.einsum("bnkv,bnv->bnk", C, delta) + dnu[..., None] * n

        gain = exp_difference(i[:, t], m)[..., None]
        dk[:, t] = gain * (np.einsum("bnkv,bnv->bnk", dC, v[:, t]) + dn)
        dv[:, t] = gain * np.einsum("bnkv,bnk->bnv", dC, k[:, t])
        di[:, t] = np.einsum("bnk,bnk->bn", k[:, t], dk[:, t]) + g * (attained_at == t + 1)
        decay = np.exp(stabilised_decay(a[:, t], states[t].m, m))
        dC, dn = decay[..., None, None] * dC, decay[..., None] * dn
        da[:, t] = _dot(states[t], MLSTMState(dC, dn, None)) + g * (attained_at < t + 1)

    dm = _dot(state, MLSTMState(dC, dn, None)) + g * (attained_at == 0)
    return (dq / np.sqrt(q.shape[-1]), dk, dv, di, da * sigmoid(-f)), MLSTMState(dC, dn, dm)


def _dot(state: MLSTMState, dstate: MLSTMState) -> np.ndarray:
    """``⟨C, dC⟩ + ⟨n, dn⟩`` per head."""
    return np.einsum("bnkv,bnkv->bn", state.C, dstate.C) + np.einsum("bnk,bnk->bn", state.n, dstate.n)


def _initial_state(
    arrays: Any, state: MLSTMState | None, cu_seqlens: np.ndarray | None = None, heads_first: bool = False
) -> MLSTMState:
    """A copy of ``state``; zeros if it is None."""
    if state is not None:
        return MLSTMState(*(float64(part) for part in state))
    q, _, v = arrays[:3]
    B = q.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
    N, K, V = q.shape[1 if heads_first else -2], q.shape[-1], v.shape[-1]
    return MLSTMState(np.zeros((B, N, K, V)), np.zeros((B, N, K)), np.zeros((B, N)))


def _each_sequence(
    operation: Callable, arrays: Sequence[np.ndarray], cu_seqlens: np.ndarray, **states: MLSTMState
) -> tuple[tuple[np.ndarray, ...], MLSTMState]:
    """Run ``operation`` on each packed sequence as a batch of one; pack the resulting token arrays and states."""
    if len(cu_seqlens) == 1:
        tokens, last = operation(*(x[None][:0] for x in arrays), **states)
        return tuple(x.reshape(0, *x.shape[2:]) for x in tokens), last
    results = []
    for b, (start, end) in enumerate(pairwise(cu_seqlens)):
        sequence = (x[None, int(start) : int(end)] for x in arrays)
        of_b = {name: MLSTMState(*(part[b : b + 1] for part in state)) for name, state in states.items()}
        results.append(operation(*sequence, **of_b))
    tokens, lasts = zip(*results, strict=True)
    packed = tuple(np.concatenate(parts, axis=1)[0] for parts in zip(*tokens, strict=True))
    return packed, MLSTMState(*(np.concatenate(parts) for parts in zip(*lasts, strict=True)))
