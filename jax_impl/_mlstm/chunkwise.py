"""The mLSTM chunk by chunk: the array functions behind `mlstm`, `mlstm_step` and the fwbw interface.

Source: Beck et al., arXiv:2503.14376 (TFLA), with the normaliser differentiated. The layout is ``(c, *rest, L, ·)``:
the chunk axis, then the axes that run in parallel (sequences, heads), then the steps of a chunk. All arrays are in the
accumulation dtype, and q̂ = q/√K. In a chunk that starts from the memory (C, n, m)::

    b_t = Σ_{s≤t} a_s        m_t = max(b_t + m, max_{j≤t} Σ_{j<s≤t} a_s + i_j)        (a = log σ(f))
    α_t = a_t + m_{t−1} − m_t        ι_j = i_j − m_j        (m₀ = m)
    E[t,j] = exp(Σ_{j<s≤t} α_s + ι_j)        e_t = exp(Σ_{s≤t} α_s)        G = (q̂kᵀ) ⊙ E
    h_t = (Σ_j G[t,j] v_j + e_t Cᵀq̂_t) / Y_t        ν_t = Σ_j G[t,j] + e_t n·q̂_t        Y_t = max(|ν_t|, floor_t) + eps

α and ι are the gates in units of the stabiliser. None is above 0 except by rounding, so no sum of them cancels, and
weights are exact to roundoff however large the gates are; sums of a and i would be rounded at the size of m. Where m is
so large that its own roundoff adds up, the unit is exp(m + drift) instead of exp(m) (`drift`).

Everything inside the chunks is computed for all of them at once; only m, then (C, n), and in the backward pass their
gradients, pass from chunk to chunk. The backward pass treats m as a constant, except for the gradient of the final
state's own m (`StateGradients`). Packed sequences have a variant of their own (`packed_chunks`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._arrays import einsum
from jax_impl._gates import (
    finite_stabiliser,
    log_sigmoid,
    log_weights,
    log_weights_gradient,
    running_largest,
    sigmoid,
    stabilised_decay,
    sum_before,
    sum_from,
)
from jax_impl._mlstm.drift import Carried, LogWeights, without_drift
from jax_impl._mlstm.inter_chunk import Memory, final_memory, memories, memory_gradients, stabilisers
from jax_impl._mlstm.state import StateGradients, normaliser_floor
from reference.arguments import MLSTMState


class ChunkwiseOptions(NamedTuple):
    """The static options of the arithmetic.

    Attributes:
        L: steps per chunk.
        eps: added to the normaliser.
        stabilize_correctly: whether the normaliser's floor is exp(−min(m, 64)); otherwise it is 1.
        precision: the precision of the products.
    """

    L: int
    eps: float
    stabilize_correctly: bool
    precision: str


class Chunks(NamedTuple):
    """Inputs in chunks, or their gradients: q̂, k ``(c, *rest, L, K)``, v ``(…, V)``, i and f ``(c, *rest, L)``."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    i: jax.Array
    f: jax.Array


class LogGates(NamedTuple):
    """Log forget gates and their sums from the start of each chunk, ``(c, *rest, L)``."""

    a: jax.Array
    b: jax.Array


class Precomputed(NamedTuple):
    """Results that a backward pass may be given instead of recomputing them; None for those that it recomputes.

    Attributes:
        gates: log forget gates.
        m: stabilisers, ``(c, *rest, L)``.
        G: decayed scores, ``(c, *rest, L, L)``.
        start: memory at the start of each chunk, ``(c, *rest, K, V)``, ``(c, *rest, K)``, ``(c, *rest)``.
        weights: log weights of every step.
    """

    gates: LogGates | None = None
    m: jax.Array | None = None
    G: jax.Array | None = None
    start: MLSTMState | None = None
    weights: LogWeights | None = None


NOTHING_PRECOMPUTED = Precomputed()


class ForwardPass(NamedTuple):
    """The results of the forward pass, named as in the docstring of this module.

    Attributes:
        unit: m + drift, the log of the unit of each step.
        start: the memory at the start of every chunk.
        last: the memory after the last chunk.
    """

    gates: LogGates
    m: jax.Array
    unit: jax.Array
    start: MLSTMState
    E: jax.Array
    e: jax.Array
    G: jax.Array
    last: Carried


class ChunkGradients(NamedTuple):
    """Gradients of the inputs in chunks (with respect to q̂, not q) and of the initial state."""

    chunks: Chunks
    initial_state: StateGradients


def log_gates(f: jax.Array) -> LogGates:
    a = log_sigmoid(f)
    return LogGates(a=a, b=jnp.cumsum(a, axis=-1, dtype=a.dtype))


def forward(
    options: ChunkwiseOptions,
    x: Chunks,
    before: Carried,
    precomputed: Precomputed = NOTHING_PRECOMPUTED,
) -> ForwardPass:
    """The forward pass up to the numerator.

    Args:
        before: the memory before the first chunk, ``(*rest, ·)``.
        precomputed: results that are used instead of being computed.
    """
    initial = before.state
    gates = log_gates(x.f) if precomputed.gates is None else precomputed.gates
    m, m_start = _stabilisers(gates, x.i, initial.m, precomputed)
    w = precomputed.weights
    if w is None:
        decay = stabilised_decay(gates.a, _before(m_start, m), m)
        w = without_drift(m, decay, x.i - finite_stabiliser(m), before.drift)
    E = jnp.exp(log_weights(w.decay, w.gain))
    e = jnp.exp(jnp.cumsum(w.decay, axis=-1, dtype=m.dtype))
    G = _dot(options, "tk,jk->tj", x.q, x.k) * E if precomputed.G is None else precomputed.G

    written = E[..., -1, :, None] * x.k
    added = Memory(C=_dot(options, "jk,jv->kv", written, x.v), n=_dot(options, "j,jk->k", E[..., -1, :], x.k))
    decay, memory = e[..., -1], Memory(C=initial.C, n=initial.n)
    if precomputed.start is None:
        start, last = memories(decay, added, memory)
    else:
        start = Memory(C=precomputed.start.C, n=precomputed.start.n)
        last = final_memory(decay, added, start, memory)
    m_last, drift_last = (initial.m, before.drift) if m.shape[0] == 0 else (m[-1, ..., -1], w.drift[-1, ..., -1])
    return ForwardPass(
        gates=gates,
        m=m,
        unit=m + w.drift,
        start=MLSTMState(C=start.C, n=start.n, m=m_start),
        E=E,
        e=e,
        G=G,
        last=Carried(state=MLSTMState(C=last.C, n=last.n, m=m_last), drift=drift_last),
    )


def output(options: ChunkwiseOptions, x: Chunks, p: ForwardPass) -> jax.Array:
    """h of every step, ``(c, *rest, L, V)``."""
    numerator = _dot(options, "tj,jv->tv", p.G, x.v)
    numerator += p.e[..., None] * _dot(options, "tk,kv->tv", x.q, p.start.C)
    nu, floor = _normaliser(options, x, p)
    return numerator / (jnp.maximum(jnp.abs(nu), floor) + options.eps)[..., None]


def backward(
    options: ChunkwiseOptions,
    x: Chunks,
    p: ForwardPass,
    dh: jax.Array,
    dlast: StateGradients,
) -> ChunkGradients:
    """Gradients of the inputs (with respect to q̂, not q) and of the initial state.

    With δ = dh/Y, the gradient of a read is ``dν = −(dh·h)/Y`` where |ν| is above its floor, else 0, and
    ``dG[t,j] = δ_t·v_j + dν_t``. The gradient of a decay gate is the sum over all paths that cross its step: from a
    write to a read inside the chunk (W = G ⊙ dG), from the incoming memory to a read (r), from a write to the outgoing
    memory (w), and from the incoming to the outgoing memory. A path that is cut by a reset contributes nothing, so that
    after a reset the gradient is exactly 0.
    """
    decay, C, n = p.e[..., -1], p.start.C, p.start.n
    nu, floor = _normaliser(options, x, p)
    Y = jnp.maximum(jnp.abs(nu), floor) + options.eps
    # Divided before it is multiplied: dh·v times a score may be beyond the largest number where dh·v/Y times it is not.
    delta = dh / Y[..., None]
    delta_v = _dot(options, "tv,jv->tj", delta, x.v)
    C_delta = _dot(options, "tv,kv->tk", delta, C)
    q_C_delta = jnp.sum(x.q * C_delta, axis=-1)
    delta_h = (jnp.sum(p.G * delta_v, axis=-1) + p.e * q_C_delta) / Y
    dnu = jnp.where(jnp.abs(nu) <= floor, 0, -delta_h * jnp.sign(nu))
    dG = delta_v + dnu[..., None]
    W, dscores = p.G * dG, p.E * dG
    from_start = p.e[..., None] * (C_delta + dnu[..., None] * n[..., None, :])

    read = p.e[..., None] * x.q
    added = Memory(C=_dot(options, "tk,tv->kv", read, delta), n=_dot(options, "tk,t->k", read, dnu))
    attained = x.i > p.gates.a + _before(p.start.m, p.m)
    attains = jnp.any(attained, axis=-1)
    dend, dinitial = memory_gradients(decay, added, attains, dlast)

    written = p.E[..., -1, :, None]
    to_end = written * (_dot(options, "jv,kv->jk", x.v, dend.C) + dend.n[..., None, :])
    dq = _dot(options, "tj,jk->tk", dscores, x.k) + from_start
    dk = _dot(options, "tj,tk->jk", dscores, x.q) + to_end
    dv = _dot(options, "tj,tv->jv", p.G, delta) + written * _dot(options, "jk,kv->jv", x.k, dend.C)

    r = p.e * (q_C_delta + dnu * _dot(options, "tk,k->t", x.q, n))
    w = jnp.sum(x.k * to_end, axis=-1)
    through = decay * (jnp.sum(C * dend.C, axis=(-2, -1)) + jnp.sum(n * dend.n, axis=-1))
    da, di = log_weights_gradient(W)
    da += sum_from(r) + sum_before(w) + through[..., None]
    di += w

    step = jnp.arange(attained.shape[-1]).reshape((1,) * (attained.ndim - 1) + (-1,))
    at = jnp.max(jnp.where(attained, step, -1), axis=-1, keepdims=True)
    di += jnp.where(step == at, dend.g[..., None], 0)
    da += jnp.where(step > at, dend.g[..., None], 0)
    return ChunkGradients(chunks=Chunks(q=dq, k=dk, v=dv, i=di, f=da * sigmoid(-x.f)), initial_state=dinitial)


def _normaliser(options: ChunkwiseOptions, x: Chunks, p: ForwardPass) -> tuple[jax.Array, jax.Array]:
    """ν and its floor, ``(c, *rest, L)``."""
    nu = jnp.sum(p.G, axis=-1) + p.e * _dot(options, "tk,k->t", x.q, p.start.n)
    return nu, normaliser_floor(p.unit) if options.stabilize_correctly else jnp.ones_like(p.m)


def _before(start: jax.Array, m: jax.Array) -> jax.Array:
    """The stabiliser before every step, ``(c, *rest, L)``."""
    return jnp.concatenate([start[..., None], m[..., :-1]], axis=-1)


def _stabilisers(
    gates: LogGates, i: jax.Array, initial: jax.Array, precomputed: Precomputed
) -> tuple[jax.Array, jax.Array]:
    """m at every step, and at the start of every chunk."""
    start = None if precomputed.start is None else precomputed.start.m
    if precomputed.m is not None:
        if start is None:
            start = jnp.concatenate([initial[None], precomputed.m[..., -1]])[:-1]
        return precomputed.m, start
    largest = running_largest(gates.a, i)
    if start is None:
        start = stabilisers(gates.b[..., -1], largest[..., -1], initial)
    return jnp.maximum(gates.b + start[..., None], largest), start


def _dot(options: ChunkwiseOptions, letters: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """An einsum over the axes of one chunk, applied to all chunks at once."""
    inputs, result = letters.split("->")
    return einsum(f"...{inputs.replace(',', ',...')}->...{result}", x, y, options.precision)
