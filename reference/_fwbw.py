"""The fwbw interface of xlstm_jax: the forward and the backward pass of the mLSTM, with a context between them.

Layout: ``q, k (B, T, K)``, ``v (B, T, V)``, ``i, f (B, T)`` or ``(B, T, 1)``; heads are an outer axis that the caller
maps over. This module is also the textbook of the chunkwise backward pass (as in Beck et al., arXiv:2503.14376, with
the normaliser differentiated). In a chunk of L steps that starts from the memory (C, n, m)::

    b_t = Σ_{s≤t} a_s        F[t,j] = Σ_{j<s≤t} a_s        (the gates; a = log σ(f))
    m_t = max(b_t + m, max_{j≤t} F[t,j] + i_j)             (M)
    E[t,j] = exp(F[t,j] + i_j − m_t)        e_t = exp(b_t + m − m_t)
    G[t,j] = (q̂_t·k_j) E[t,j]                              (G)
    h_t = (Σ_j G[t,j] v_j + e_t Cᵀq̂_t) / Y_t               ν_t = Σ_j G[t,j] + e_t n·q̂_t

The gradient of a decay gate is the sum over all paths that cross its step: from a write to a read inside the chunk
(W = G ⊙ dG), from the incoming memory to a read (r), from a write to the outgoing memory (w), and from the incoming to
the outgoing memory. A path that is cut by a reset contributes exactly 0.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from reference._arrays import NUMPY, float64
from reference._decay import causal_forget_matrix, causal_forget_matrix_backward
from reference._gates import exp_difference, log_sigmoid, sigmoid
from reference._mlstm import normaliser_floor
from reference._scan import rev_cumsum
from reference.arguments import (
    MLSTMState,
    check_fwbw,
    check_fwbw_context,
    check_fwbw_cotangents,
    frozen_config,
    mLSTMBackendFwbwConfig,
    normalise_config,
)


class Gates(NamedTuple):
    """Log decay in a chunk: a per step, b from the start of the chunk to each step, F between every two steps."""

    a: np.ndarray
    b: np.ndarray
    F: np.ndarray


@dataclass(frozen=True)
class FwbwContext:
    """Residuals that `fwbw_forward` passes to `fwbw_backward`: the inputs, and whatever the configuration asks to keep.

    Attributes:
        q, k, v, i, f: the inputs in float64, gates ``(B, T)``.
        state: the initial state.
        gate_shapes: the shapes in which i and f were passed.
        config: a copy of the configuration.
        G, gates, M, c: a list with one entry per chunk (scores, `Gates`, stabilisers, memory at its start), or None if
            the backward pass recomputes it.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    i: np.ndarray
    f: np.ndarray
    state: MLSTMState
    gate_shapes: tuple[tuple[int, ...], tuple[int, ...]]
    config: mLSTMBackendFwbwConfig
    G: list[np.ndarray] | None = None
    gates: list[Gates] | None = None
    M: list[np.ndarray] | None = None
    c: list[MLSTMState] | None = None


def fwbw_forward(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    i: np.ndarray,
    f: np.ndarray,
    config: mLSTMBackendFwbwConfig | dict,
    initial_C: np.ndarray | None = None,
    initial_n: np.ndarray | None = None,
    initial_m: np.ndarray | None = None,
) -> tuple[Any, FwbwContext]:
    """Forward pass of the mLSTM, with the equations of `mlstm`; also returns the context for `fwbw_backward`.

    Args:
        q, k: ``(B, T, K)``.
        v: ``(B, T, V)``.
        i, f: gate preactivations, ``(B, T)`` or ``(B, T, 1)``.
        config: the configuration or its dict.
        initial_C, initial_n, initial_m: ``(B, K, V)``, ``(B, K)``, ``(B,)``; allowed only with ``use_initial_state``,
            where None means zeros.

    Returns:
        ``(h, context)``, or ``((h, (C, n, m)), context)`` with ``return_state``; h is ``(B, T, V)``. All are float64.

    Raises:
        TypeError, ValueError: as in `mlstm`; also if `config` is not a configuration, if a state is given with
            ``use_initial_state=False``, or if only a part of the state is given.
    """
    config = frozen_config(config, "fwbw_forward")
    call = check_fwbw(NUMPY, q, k, v, i, f, config, initial_C, initial_n, initial_m)
    B, T, K, V = (call[letter] for letter in "BTKV")
    if initial_C is None:
        state = MLSTMState(np.zeros((B, K, V)), np.zeros((B, K)), np.zeros(B))
    else:
        state = MLSTMState(float64(initial_C), float64(initial_n), float64(initial_m))
    flat_i, flat_f = (float64(gate).reshape(B, T) for gate in (i, f))
    context = FwbwContext(float64(q), float64(k), float64(v), flat_i, flat_f, state, (i.shape, f.shape), config)

    h = np.empty(v.shape)
    kept: dict[str, list] = {"G": [], "gates": [], "M": [], "c": []}
    last = state
    for number, chunk in enumerate(_chunks(T, config)):
        pieces = _chunk_forward(context, chunk, number, config, start=last)
        h[:, chunk] = pieces.h
        for name in kept:
            kept[name].append(getattr(pieces, name))
        last = _chunk_end(context, chunk, pieces)
    keeps = {"G": config.keep_G, "gates": config.keep_gates, "M": config.keep_M, "c": config.keep_c}
    context = replace(context, **{name: pieces for name, pieces in kept.items() if keeps[name]})
    last = MLSTMState(*(part.copy() for part in last))
    return ((h, last) if config.return_state else h), context


class _Chunk(NamedTuple):
    """All intermediate results of a chunk's forward pass, named as in the docstring of this module."""

    gates: Gates
    M: np.ndarray
    E: np.ndarray
    e: np.ndarray
    G: np.ndarray
    c: MLSTMState
    nu: np.ndarray
    floor: np.ndarray
    h: np.ndarray


def _chunks(T: int, config: mLSTMBackendFwbwConfig) -> Iterator[slice]:
    """The steps of each chunk; the last chunk may be shorter."""
    L = config.chunk_size or 64
    return (slice(start, min(start + L, T)) for start in range(0, T, L))


@np.errstate(over="ignore")
def _chunk_forward(
    context: FwbwContext, chunk: slice, number: int, config: mLSTMBackendFwbwConfig, start: MLSTMState
) -> _Chunk:
    """The forward pass of one chunk from the memory at its ``start``; uses results that the context already holds."""
    q_hat = context.q[:, chunk] / np.sqrt(context.q.shape[-1])
    i = context.i[:, chunk]
    if context.gates is None:
        a = log_sigmoid(context.f[:, chunk])
        gates = Gates(a, np.cumsum(a, axis=-1), causal_forget_matrix(a))
    else:
        gates = context.gates[number]
    D = np.where(np.isneginf(gates.F), -np.inf, gates.F + i[:, None, :])
    carried = gates.b + start.m[:, None]
    M = np.maximum(carried, D.max(axis=-1)) if context.M is None else context.M[number]
    E = exp_difference(D, M[..., None])
    e = exp_difference(carried, M)
    G = (q_hat @ context.k[:, chunk].mT) * E if context.G is None else context.G[number]
    nu = G.sum(axis=-1) + e * np.einsum("btk,bk->bt", q_hat, start.n)
    floor = normaliser_floor(M) if config.stabilize_correctly else np.ones_like(M)
    numerator = G @ context.v[:, chunk] + e[..., None] * (q_hat @ start.C)
    h = numerator / np.maximum(np.abs(nu), floor)[..., None]
    return _Chunk(gates, M, E, e, G, start, nu, floor, h)


def _chunk_end(context: FwbwContext, chunk: slice, pieces: _Chunk) -> MLSTMState:
    """The memory at the end of a chunk: the decayed initial memory plus the writes of its steps."""
    kept, written = pieces.e[:, -1], pieces.E[:, -1]
    weighted_k = written[..., None] * context.k[:, chunk]
    C = kept[:, None, None] * pieces.c.C + weighted_k.mT @ context.v[:, chunk]
    n = kept[:, None] * pieces.c.n + weighted_k.sum(axis=1)
    return MLSTMState(C, n, pieces.M[:, -1])


def fwbw_backward(
    ctx: FwbwContext,
    dh: np.ndarray,
    config: mLSTMBackendFwbwConfig | dict,
    dc_last: np.ndarray | None = None,
    dn_last: np.ndarray | None = None,
    dm_last: np.ndarray | None = None,
) -> tuple[np.ndarray | None, ...]:
    """Gradient of `fwbw_forward`, from the last chunk to the first. The equations are in the docstring of this module.

    Args:
        ctx: the context that `fwbw_forward` returned.
        dh: cotangent of h, ``(B, T, V)``.
        config: the configuration of the forward pass.
        dc_last, dn_last, dm_last: cotangents of the final state; None means zeros.

    Returns:
        Gradients of ``q, k, v, i, f, initial_C, initial_n, initial_m``; the last three are None without
        ``use_initial_state``. All are float64.

    Raises:
        TypeError: as in `fwbw_forward`; also if `ctx` is not a context.
        ValueError: as in `fwbw_forward`; also if the context was made with another configuration.
    """
    config = normalise_config(config, "fwbw_backward")
    check_fwbw_context(ctx, FwbwContext, config)
    call = check_fwbw(NUMPY, ctx.q, ctx.k, ctx.v, ctx.i, ctx.f, config, None, None, None, "fwbw_backward")
    check_fwbw_cotangents(call, dh, dh, dc_last, dn_last, dm_last)
    given = [(dc_last, ctx.state.C), (dn_last, ctx.state.n), (dm_last, ctx.state.m)]
    dC, dn, dm = (np.zeros(part.shape) if d is None else float64(d) for d, part in given)
    dh = float64(dh)

    chunks = list(_chunks(ctx.q.shape[1], config))
    starts, last, attained_at = _starts(ctx, chunks, config)
    g = dm - np.einsum("bkv,bkv->b", last.C, dC) - np.einsum("bk,bk->b", last.n, dn)

    dq_hat, dk, dv, di, da = (np.zeros(x.shape) for x in (ctx.q, ctx.k, ctx.v, ctx.i, ctx.f))
    for number, chunk in reversed(list(enumerate(chunks))):
        p = _chunk_forward(ctx, chunk, number, config, starts[number])
        q_hat, k, v = ctx.q[:, chunk] / np.sqrt(ctx.q.shape[-1]), ctx.k[:, chunk], ctx.v[:, chunk]
        Y = np.maximum(np.abs(p.nu), p.floor)
        delta = dh[:, chunk] / Y[..., None]
        dnu = -np.einsum("btv,btv->bt", delta, p.h) * np.where(np.abs(p.nu) > p.floor, np.sign(p.nu), 0.0)

        dG = delta @ v.mT + dnu[..., None]
        W = p.G * dG
        dscores = p.E * dG
        from_start = p.e[..., None] * (delta @ p.c.C.mT + dnu[..., None] * p.c.n[:, None])
        to_end = p.E[:, -1, :, None] * (v @ dC.mT + dn[:, None])
        dq_hat[:, chunk] = dscores @ k + from_start
        dk[:, chunk] = dscores.mT @ q_hat + to_end
        dv[:, chunk] = p.G.mT @ delta + p.E[:, -1, :, None] * (k @ dC)

        r = np.einsum("btk,btk->bt", q_hat, from_start)
        w = np.einsum("btk,btk->bt", k, to_end)
        dC, dn = p.e[:, -1, None, None] * dC, p.e[:, -1, None] * dn
        through = np.einsum("bkv,bkv->b", p.c.C, dC) + np.einsum("bk,bk->b", p.c.n, dn)
        w_before = np.concatenate([np.zeros_like(w[:, :1]), np.cumsum(w, axis=-1)[:, :-1]], axis=-1)
        across = causal_forget_matrix_backward(p.gates.a, dF=W)["forget_gates"]
        da[:, chunk] = across + rev_cumsum(r) + w_before + through[:, None]
        di[:, chunk] = W.sum(axis=-2) + w
        dC = dC + (p.e[..., None] * q_hat).mT @ delta
        dn = dn + np.einsum("bt,btk->bk", p.e * dnu, q_hat)

    steps = np.arange(1, ctx.q.shape[1] + 1)
    di += g[:, None] * (steps == attained_at[:, None])
    da += g[:, None] * (steps > attained_at[:, None])
    df = da * sigmoid(-ctx.f)
    dm = np.einsum("bkv,bkv->b", ctx.state.C, dC) + np.einsum("bk,bk->b", ctx.state.n, dn) + g * (attained_at == 0)
    dinitial = (dC, dn, dm) if config.use_initial_state else (None, None, None)
    return (
        dq_hat / np.sqrt(ctx.q.shape[-1]),
        dk,
        dv,
        di.reshape(ctx.gate_shapes[0]),
        df.reshape(ctx.gate_shapes[1]),
        *dinitial,
    )


@np.errstate(over="ignore")
def _starts(
    ctx: FwbwContext, chunks: list[slice], config: mLSTMBackendFwbwConfig
) -> tuple[list[MLSTMState], MLSTMState, np.ndarray]:
    """The memory at each chunk's start, the final memory, and the step (from 1; 0 is m₀) that attains the final m."""
    starts, last = [], ctx.state
    attained_at = np.zeros(last.m.shape, dtype=int)
    for number, chunk in enumerate(chunks):
        starts.append(last if ctx.c is None else ctx.c[number])
        p = _chunk_forward(ctx, chunk, number, config, starts[number])
        m_before = np.concatenate([starts[number].m[:, None], p.M[:, :-1]], axis=-1)
        steps = np.arange(chunk.start + 1, chunk.stop + 1)
        writes = ctx.i[:, chunk] > p.gates.a + m_before
        attained_at = np.maximum(attained_at, np.where(writes, steps, 0).max(axis=-1))
        last = _chunk_end(ctx, chunk, p)
    return starts, last, attained_at


def mlstm_fwbw_custom_grad(config: mLSTMBackendFwbwConfig | dict) -> Callable:
    """The forward pass as a function of arrays only, whose gradient is `fwbw_backward`.

    NumPy has no automatic differentiation. The gradient is therefore the attribute ``backward`` of the function; it
    takes the arguments, then the cotangents, and returns the eight gradients.

    Args:
        config: the configuration or its dict.

    Returns:
        ``function(q, k, v, i, f, initial_C=None, initial_n=None, initial_m=None)`` → ``h``, or ``(h, (C, n, m))`` with
        ``return_state``.

    Raises:
        TypeError, ValueError: `config` is not a valid configuration.
    """
    config = frozen_config(config, "mlstm_fwbw_custom_grad")

    def mlstm_fwbw(q, k, v, i, f, initial_C=None, initial_n=None, initial_m=None):
        return fwbw_forward(q, k, v, i, f, config, initial_C, initial_n, initial_m)[0]

    def backward(
        q, k, v, i, f, initial_C=None, initial_n=None, initial_m=None, *, dh, dc_last=None, dn_last=None, dm_last=None
    ):
        _, ctx = fwbw_forward(q, k, v, i, f, config, initial_C, initial_n, initial_m)
        return fwbw_backward(ctx, dh, config, dc_last, dn_last, dm_last)

    mlstm_fwbw.backward = backward
    return mlstm_fwbw
