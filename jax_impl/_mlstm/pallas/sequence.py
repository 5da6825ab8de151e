"""The mLSTM chunk by chunk, forward and backward, made of the kernels `states`, `scores` and `mix`.

Source: Beck et al., arXiv:2503.14376 (TFLA), with the normaliser differentiated. In a chunk of L = 64 steps that
starts from the memory (C, n, m), with q̂ = q/√K and log weights in units of exp(m) from `gates`::

    G[t,j] = (q̂_t·k_j) exp(F[t,j] + ι_j)        ν_t = Σ_j G[t,j] + e_t n·q̂_t
    h_t = (Σ_j G[t,j] v_j + e_t Cᵀq̂_t) / Y_t          Y_t = max(|ν_t|, exp(−min(m_t, 64))) + eps

The backward pass treats m as a constant, except for the gradient of the final state's own m. With δ = dh/Y and dν =
−(dh·h)/Y where |ν| is above its floor, else 0, the gradient of a decay gate is the sum over all paths that cross its
step: inside the chunk (W = G⊙dG), from the incoming memory to a read, from a write to the outgoing memory, and from the
incoming to the outgoing memory.

Running memories and their gradients are float32; operands of products are rounded to their dtype (`jax_impl._pallas`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._gates import sigmoid, sum_before
from jax_impl._mlstm.drift import Carried, pass_on
from jax_impl._mlstm.pallas.gates import ChunkRanges, ChunkWeights, chunk_weights, log_decays_gradient
from jax_impl._mlstm.pallas.mix import Orientation, mix
from jax_impl._mlstm.pallas.mix import weight_rows as mix_weights
from jax_impl._mlstm.pallas.plan import plan_for
from jax_impl._mlstm.pallas.scores import scores, scores_gradient, vector_rows, vector_rows_of_gradient
from jax_impl._mlstm.pallas.states import States, states
from jax_impl._mlstm.pallas.states import weight_rows as state_weights
from jax_impl._mlstm.state import (
    StateGradients,
    join_stabiliser_gradient,
    normaliser_floor,
    split_stabiliser_gradient,
    weighted,
)
from jax_impl._pallas import FLOAT, TERMS, L, split, unavailable
from reference.arguments import MLSTMState
from reference.backends import Row

LARGEST = (("K", 512), ("V", 512))
"""Largest head dims that the kernels take."""

ROW = Row(
    backend="pallas",
    operation="mlstm",
    devices=("gpu", "cuda", "cpu"),
    dtypes=tuple(TERMS),
    largest=LARGEST,
    packed=True,
    unavailable=unavailable,
)


class Rows(NamedTuple):
    """Rows of every chunk, or their gradients: q, k ``(c·L, N, K)`` and v ``(c·L, N, V)`` in the dtype of the values; i
    and f ``(c, N, L)`` in float32."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    i: jax.Array
    f: jax.Array


class Outputs(NamedTuple):
    """The outputs of the forward pass, which the backward pass reads.

    Attributes:
        h: ``(c·L, N, V)``.
        nu: ν, ``(c, N, L)``.
        last: the state after each sequence.
        weight: the weight in it of the memory that the kernels computed, ``(B, N)``; see `jax_impl._mlstm.drift`.
    """

    h: jax.Array
    nu: jax.Array
    last: MLSTMState
    weight: jax.Array


def forward(rows: Rows, initial: MLSTMState, ranges: ChunkRanges, *, eps: float, interpret: bool) -> Outputs:
    """The forward pass.

    Args:
        rows: the rows of every chunk; those after the end of a sequence write and forget nothing (i = −∞, f = +∞,
            zeros).
        initial: state before each sequence, ``(B, N, ·)`` float32.
        ranges: the assignment of chunks to sequences.
        eps: added to the normaliser.
        interpret: whether the GPU interpreter runs the kernels.
    """
    weights = chunk_weights(rows.i, rows.f, initial.m, ranges)
    q, k, v = (_operand(part) for part in rows[:3])
    found = _memories(k, v, weights, initial, ranges, interpret)
    scale = rows.q.shape[-1] ** -0.5
    plan = plan_for(q.shape[0], 0, interpret)
    G, within = scores(plan, q=q, k=k, vectors=vector_rows(weights), scale=scale)
    nu = within + scale * weights.e * _read(rows.q, found.n)
    Y = _normaliser(nu, weights.unit, eps)
    h, _ = mix(
        plan_for(v.shape[0], v.shape[-1], interpret),
        A=G,
        X=v,
        Y=q,
        M=found.C,
        weights=mix_weights(1 / Y, scale * weights.e, jnp.zeros_like(nu)),
        orientation=Orientation(transpose_A=False, transpose_M=False),
        dtype=rows.v.dtype,
    )
    K, V = rows.q.shape[-1], rows.v.shape[-1]
    last = MLSTMState(C=found.C_last[..., :K, :V], n=found.n_last[..., :K], m=weights.m_last)
    last, weight = pass_on(Carried(state=last, drift=weights.drift_last))
    return Outputs(h=h[..., :V], nu=nu, last=last, weight=weight)


def backward(
    rows: Rows,
    initial: MLSTMState,
    ranges: ChunkRanges,
    outputs: Outputs,
    *,
    dh: jax.Array,
    dlast: MLSTMState,
    eps: float,
    interpret: bool,
) -> tuple[Rows, MLSTMState]:
    """Gradients of the rows and of the initial state, given the outputs of `forward` and the cotangents."""
    weights = chunk_weights(rows.i, rows.f, initial.m, ranges)
    terms, K, V = TERMS[rows.v.dtype.name], rows.q.shape[-1], rows.v.shape[-1]
    scale = K**-0.5
    q, k, v, dh_ = (_operand(part) for part in (*rows[:3], dh))
    memory = _memories(k, v, weights, initial, ranges, interpret)
    nu = outputs.nu

    floor = normaliser_floor(weights.unit)
    Y = jnp.maximum(jnp.abs(nu), floor) + eps
    dh_h = _by_step(jnp.sum(dh.astype(FLOAT) * outputs.h.astype(FLOAT), axis=-1))
    dnu = jnp.where(jnp.abs(nu) <= floor, 0, -dh_h / Y * jnp.sign(nu))

    of_scores = scores_gradient(
        plan_for(terms, 0, interpret),
        q=q,
        k=k,
        v=v,
        dh=dh_,
        vectors=vector_rows_of_gradient(weights, Y, dnu),
        scale=scale,
    )
    read_C, read_n = scale * weights.e / Y, scale * weights.e * dnu
    plan_K, plan_V = (plan_for(terms, part.shape[-1], interpret) for part in (q, v))
    d = weighted(split_stabiliser_gradient(outputs.last, dlast), outputs.weight)
    of_memory = states(
        plan_V,
        x=q,
        y=dh_,
        weights=state_weights(read_C, read_n, weights.decay),
        initial_C=_pad(d.C, (-2, -1)),
        initial_n=_pad(d.n, (-1,)),
        ranges=ranges,
        against=memory.C,
        reverse=True,
    )
    assert of_memory.inner is not None

    ones = jnp.ones_like(Y)
    written = mix_weights(ones, weights.written, weights.written)
    dq, r = mix(
        plan_K,
        A=of_scores.dscores,
        X=k,
        Y=dh_,
        M=memory.C,
        weights=mix_weights(ones, read_C, read_n),
        orientation=Orientation(transpose_A=False, transpose_M=True),
        dtype=rows.q.dtype,
        vector=memory.n,
        Z=q,
    )
    dk, w = mix(
        plan_K,
        A=of_scores.dscores,
        X=q,
        Y=v,
        M=of_memory.C,
        weights=written,
        orientation=Orientation(transpose_A=True, transpose_M=True),
        dtype=rows.q.dtype,
        vector=of_memory.n,
        Z=k,
    )
    dv, _ = mix(
        plan_V,
        A=of_scores.G_per_Y,
        X=dh_,
        Y=k,
        M=of_memory.C,
        weights=written,
        orientation=Orientation(transpose_A=True, transpose_M=False),
        dtype=rows.v.dtype,
    )
    assert r is not None and w is not None

    r, w = jnp.sum(r, axis=2), jnp.sum(w, axis=2)
    inner = jnp.sum(of_memory.inner, axis=(2, 3)) + jnp.sum(memory.n * of_memory.n, axis=-1)
    through = weights.decay * inner
    dlevels = of_scores.W_by_row + of_scores.W_by_column
    da = log_decays_gradient(dlevels, r, jnp.zeros_like(w), weights.a) + sum_before(w) + through[..., None]
    di = of_scores.W_by_step + w

    at = _attaining_step(rows.i, weights, ranges)
    step = jnp.arange(rows.i.shape[0])[:, None, None] * L + jnp.arange(L)
    at_chunk, g_chunk = at[ranges.sequence][..., None], d.g[ranges.sequence][..., None]
    di += jnp.where(step == at_chunk, g_chunk, 0)
    da += jnp.where(step > at_chunk, g_chunk, 0)

    dC0, dn0 = of_memory.C_last[..., :K, :V], of_memory.n_last[..., :K]
    g_initial = jnp.where(at < 0, d.g, 0)
    dinitial = join_stabiliser_gradient(initial, StateGradients(C=dC0, n=dn0, g=g_initial))
    return Rows(q=dq[..., :K], k=dk[..., :K], v=dv[..., :V], i=di, f=da * sigmoid(-rows.f)), dinitial


def _memories(
    k: jax.Array, v: jax.Array, weights: ChunkWeights, initial: MLSTMState, ranges: ChunkRanges, interpret: bool
) -> States:
    return states(
        plan_for(v.shape[0], v.shape[-1], interpret),
        x=k,
        y=v,
        weights=state_weights(weights.written, weights.written, weights.decay),
        initial_C=_pad(initial.C, (-2, -1)),
        initial_n=_pad(initial.n, (-1,)),
        ranges=ranges,
    )


def _operand(x: jax.Array) -> jax.Array:
    """Rows as terms, ``(terms, c·L, N, ·)``, with the head dim padded to a multiple of the tile size."""
    return split(_pad(x, (-1,)), TERMS[x.dtype.name])


def _pad(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    """Pad axes with zeros to a multiple of the tile size, at least one tile."""
    widths = [(0, 0)] * x.ndim
    for axis in axes:
        widths[axis] = (0, -x.shape[axis] % L if x.shape[axis] else L)
    return jnp.pad(x, widths) if any(after for _, after in widths) else x


def _by_step(x: jax.Array) -> jax.Array:
    """``(c·L, N)`` → ``(c, N, L)``."""
    return jnp.swapaxes(x.reshape(-1, L, x.shape[-1]), 1, 2)


def _read(q: jax.Array, n: jax.Array) -> jax.Array:
    """``q_t·n`` with the n of the chunk that the step belongs to, ``(c, N, L)``."""
    c, N, K = n.shape[0], n.shape[1], q.shape[-1]
    rows = q.astype(FLOAT).reshape(c, L, N, K)
    return jnp.swapaxes(jnp.sum(rows * n[:, None, :, :K], axis=-1), 1, 2)


def _normaliser(nu: jax.Array, unit: jax.Array, eps: float) -> jax.Array:
    return jnp.maximum(jnp.abs(nu), normaliser_floor(unit)) + eps


def _attaining_step(i: jax.Array, weights: ChunkWeights, ranges: ChunkRanges) -> jax.Array:
    """The last step whose input gate attained m, counted over all chunks, ``(B, N)``; negative if there is none."""
    step = jnp.arange(i.shape[0])[:, None, None] * L + jnp.arange(L)
    latest = jnp.max(jnp.where(i > weights.a + weights.m_before, step, -1), axis=-1)
    B = ranges.begin.shape[0]
    return jnp.maximum(jax.ops.segment_max(latest, ranges.sequence, num_segments=B), -1)
