"""The mLSTM chunk by chunk, forward and backward, from the kernels of `kernels.mlstm_tiles`.

Source: Beck et al., arXiv:2503.14376 (TFLA), with the normaliser differentiated. In a chunk of L = 64 steps that
starts from the memory (C, n, m), with q̂ = q/√K and log weights from `kernels.mlstm_gates`::

    P[t,j] = (q̂_t·k_j) exp(F[t,j] + i_j − m_t)        ν_t = Σ_j P[t,j] + e_t n·q̂_t
    h_t = (Σ_j P[t,j] v_j + e_t Cᵀq̂_t) / Y_t          Y_t = max(|ν_t|, exp(−min(m_t, 64))) + eps

Backwards m is a constant but for the final state's own (the contract). With δ = dh/Y and dν = −(dh·h)/Y where |ν|
is above its floor, else 0, the gradient of a decay gate is what flows across its step: inside the chunk (W = P⊙dP),
from the incoming memory to a read, from a write to the outgoing memory, and through from the one to the other.

Running memories and their gradients are float32; operands of products are rounded to their dtype (`kernels._pallas`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._gates import sigmoid, sum_before
from jax_impl.kernels._pallas import TERMS, L, split, unavailable
from jax_impl.kernels.mlstm_gates import Chunks, Gates, decay_gradient, gates
from jax_impl.kernels.mlstm_tiles import Mix, mix, scores, scores_gradient, states, tiles_of
from reference.arguments import MLSTMState
from reference.backends import Row

LARGEST_M = 64.0
"""The stabiliser at which the normaliser's floor exp(−m) stops falling: exp(−64) is still a float32."""

ROW = Row(
    backend="pallas",
    operation="mlstm",
    devices=("gpu", "cuda", "cpu"),
    dtypes=tuple(TERMS),
    largest=(("K", 512), ("V", 512)),
    packed=True,
    unavailable=unavailable,
)


class Values(NamedTuple):
    """Rows of every chunk: q, k ``(c·L, N, K)``, v ``(c·L, N, V)`` in the values' dtype; i, f ``(c, N, L)`` float32."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    i: jax.Array
    f: jax.Array


class Setting(NamedTuple):
    """``eps`` is added to the normaliser; ``interpret`` is whether the GPU interpreter runs the kernels."""

    eps: float
    interpret: bool


def forward(
    setting: Setting, x: Values, initial: MLSTMState, chunks: Chunks
) -> tuple[jax.Array, jax.Array, MLSTMState]:
    """h ``(c·L, N, V)``, ν ``(c, N, L)`` and the state after each sequence.

    Args:
        x: rows of every chunk; a chunk that its sequence does not fill ends with blank steps (i = −∞, f = +∞, zeros).
        initial: state before each sequence, ``(B, N, ·)`` float32.
        chunks: which chunks make up which sequence.
    """
    g = gates(x.i, x.f, initial.m, chunks)
    q, k, v = (_operand(part) for part in x[:3])
    C, n, C_last, n_last = _memories(setting, k, v, g, initial, chunks)
    scale = x.q.shape[-1] ** -0.5
    P, within = scores(tiles_of(q.shape[0], 0, setting.interpret), q, k, _vectors(g, x.i), scale)
    nu = within + scale * g.e * _read(x.q, n)
    weights = _stack(1 / _normaliser(setting, nu, g.m), scale * g.e, jnp.zeros_like(nu))
    how = Mix(transpose_A=False, transpose_M=False, outer=False, dotted=False, dtype=x.v.dtype)
    (h,) = mix(tiles_of(v.shape[0], v.shape[-1], setting.interpret), how, P, v, q, C, weights)
    K, V = x.q.shape[-1], x.v.shape[-1]
    return h[..., :V], nu, MLSTMState(C_last[..., :K, :V], n_last[..., :K], g.m_last)


def backward(
    setting: Setting,
    x: Values,
    initial: MLSTMState,
    chunks: Chunks,
    h: jax.Array,
    nu: jax.Array,
    last: MLSTMState,
    dh: jax.Array,
    dlast: MLSTMState,
) -> tuple[Values, MLSTMState]:
    """Gradients of the rows and of the initial state, given `forward`'s results and their cotangents."""
    g = gates(x.i, x.f, initial.m, chunks)
    terms, K, V = TERMS[x.v.dtype.name], x.q.shape[-1], x.v.shape[-1]
    scale = K**-0.5
    q, k, v, dh_ = (_operand(part) for part in (*x[:3], dh))
    C, n, _, _ = _memories(setting, k, v, g, initial, chunks)

    floor = _floor(g.m)
    Y = jnp.maximum(jnp.abs(nu), floor) + setting.eps
    dh_h = _by_step(jnp.sum(dh.astype(jnp.float32) * h.astype(jnp.float32), axis=-1))
    dnu = jnp.where(jnp.abs(nu) > floor, -dh_h / Y * jnp.sign(nu), 0)

    vectors = jnp.concatenate([_vectors(g, x.i), _stack(1 / Y, dnu)], axis=2)
    P, dS, rows, columns, W = scores_gradient(tiles_of(terms, 0, setting.interpret), q, k, v, dh_, vectors, scale)
    read = _stack(scale * g.e / Y, scale * g.e * dnu, *_twice(g.decay))
    tiles_K, tiles_V = (tiles_of(terms, part.shape[-1], setting.interpret) for part in (q, v))
    dC, dn, dC0, dn0, inner = states(
        tiles_V,
        q,
        dh_,
        read,
        _pad(dlast.C, (-2, -1)),
        _pad(dlast.n, (-1,)),
        chunks.begin,
        chunks.count,
        C,
        reverse=True,
    )

    ones = jnp.ones_like(Y)
    written = _stack(ones, g.written, g.written)
    dotted = Mix(transpose_A=False, transpose_M=True, outer=True, dotted=True, dtype=x.q.dtype)
    dq, r = mix(tiles_K, dotted, dS, k, dh_, C, _stack(ones, read[:, :, 0], read[:, :, 1]), n, q)
    dk, w = mix(tiles_K, dotted._replace(transpose_A=True), dS, q, v, dC, written, dn, k)
    plain = Mix(transpose_A=True, transpose_M=False, outer=False, dotted=False, dtype=x.v.dtype)
    (dv,) = mix(tiles_V, plain, P, dh_, k, dC, written)

    r, w = jnp.sum(r, axis=2), jnp.sum(w, axis=2)
    through = g.decay * (jnp.sum(inner, axis=(2, 3)) + jnp.sum(n * dn, axis=-1))
    da = decay_gradient(rows + columns, r, jnp.zeros_like(w), g.a) + sum_before(w) + through[..., None]
    di = W + w

    inner_last = _inner(last, dlast)
    at, g_last = _attained(x.i, g, chunks), dlast.m - inner_last
    step = jnp.arange(x.i.shape[0])[:, None, None] * L + jnp.arange(L)
    of_chunk = chunks.sequence
    di += jnp.where(step == at[of_chunk][..., None], g_last[of_chunk][..., None], 0)
    da += jnp.where(step > at[of_chunk][..., None], g_last[of_chunk][..., None], 0)

    dC0, dn0 = dC0[..., :K, :V], dn0[..., :K]
    dm0 = _inner(initial, MLSTMState(dC0, dn0, None)) + jnp.where(at < 0, g_last, 0)
    return Values(dq[..., :K], dk[..., :K], dv[..., :V], di, da * sigmoid(-x.f)), MLSTMState(dC0, dn0, dm0)


def _memories(
    setting: Setting, k: jax.Array, v: jax.Array, g: Gates, initial: MLSTMState, chunks: Chunks
) -> tuple[jax.Array, ...]:
    weights = _stack(g.written, g.written, *_twice(g.decay))
    return states(
        tiles_of(v.shape[0], v.shape[-1], setting.interpret),
        k,
        v,
        weights,
        _pad(initial.C, (-2, -1)),
        _pad(initial.n, (-1,)),
        chunks.begin,
        chunks.count,
    )


def _operand(x: jax.Array) -> jax.Array:
    """Rows as terms, ``(terms, c·L, N, ·)``, the head dim filled up to a multiple of the tile."""
    return split(_pad(x, (-1,)), TERMS[x.dtype.name])


def _pad(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Axes filled up with zeros to a multiple of the tile, at least one tile."""
    widths = [(0, 0)] * x.ndim
    for axis in axes:
        widths[axis] = (0, -x.shape[axis] % L if x.shape[axis] else L)
    return jnp.pad(x, widths) if any(after for _, after in widths) else x


def _vectors(g: Gates, i: jax.Array) -> jax.Array:
    return jnp.concatenate([g.levels, g.levels + i[:, :, None], _stack(i, g.m)], axis=2)


def _stack(*vectors: jax.Array) -> jax.Array:
    """``(c, N, L)`` each → ``(c, N, ·, L)``."""
    return jnp.stack(vectors, axis=2)


def _twice(x: jax.Array) -> list[jax.Array]:
    """``(c, N)`` → ``(c, N, L)``, two of them."""
    return [jnp.broadcast_to(x[..., None], (*x.shape, L))] * 2


def _by_step(x: jax.Array) -> jax.Array:
    """``(c·L, N)`` → ``(c, N, L)``."""
    return jnp.swapaxes(x.reshape(-1, L, x.shape[-1]), 1, 2)


def _read(q: jax.Array, n: jax.Array) -> jax.Array:
    """``q_t·n`` with the n of the step's chunk, ``(c, N, L)``."""
    c, N, K = n.shape[0], n.shape[1], q.shape[-1]
    rows = q.astype(jnp.float32).reshape(c, L, N, K)
    return jnp.swapaxes(jnp.sum(rows * n[:, None, :, :K], axis=-1), 1, 2)


def _floor(m: jax.Array) -> jax.Array:
    return jnp.exp(-jnp.minimum(m, LARGEST_M))


def _normaliser(setting: Setting, nu: jax.Array, m: jax.Array) -> jax.Array:
    return jnp.maximum(jnp.abs(nu), _floor(m)) + setting.eps


def _attained(i: jax.Array, g: Gates, chunks: Chunks) -> jax.Array:
    """The last step at which an input gate set m, numbered over all chunks, ``(B, N)``; below 0 where none did."""
    before = jnp.concatenate([g.m_start[..., None], g.m[..., :-1]], axis=-1)
    step = jnp.arange(i.shape[0])[:, None, None] * L + jnp.arange(L)
    latest = jnp.max(jnp.where(i > g.a + before, step, -1), axis=-1)
    B = chunks.begin.shape[0]
    return jnp.maximum(jax.ops.segment_max(latest, chunks.sequence, num_segments=B), -1)


def _inner(state: MLSTMState, dstate: MLSTMState) -> jax.Array:
    """⟨C, dC⟩ + ⟨n, dn⟩."""
    return jnp.sum(state.C * dstate.C, axis=(-2, -1)) + jnp.sum(state.n * dstate.n, axis=-1)
