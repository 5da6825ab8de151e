"""The arithmetic of `chunkwise` for chunks of packed tokens, which may hold several sequences (`packed_sequences`).

At the first step of a sequence m restarts, and the decay of everything before is 0; this separates the sequences in all
products of a chunk. Two things remain. A step may read the initial state of its own sequence; this read is an input,
because it needs no chunk. And a sequence may end in the middle of a chunk; a step has a weight in that final state,
as it has one in the outgoing memory.

Products across sequences are no products of the definition and may be too large for the dtype. They are dropped where
their weight is 0. All inputs are usable (`isolation`), but products of one sequence may be too large as well: memories
and δ that are not finite are kept from other sequences.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._arrays import einsum
from jax_impl._gates import (
    finite_stabiliser,
    forget_matrix_gradient,
    log_sigmoid,
    log_weights,
    running_largest,
    sigmoid,
    stabilised_decay,
)
from jax_impl._mlstm.chunkwise import Chunks, ChunkwiseOptions
from jax_impl._mlstm.drift import Carried, returned_stabiliser, without_drift
from jax_impl._mlstm.inter_chunk import EndedSequence, Memory, expand, memories, memory_gradients, stabilisers
from jax_impl._mlstm.isolation import spoil
from jax_impl._mlstm.packed_sequences import FinalContributions, FinalCotangents, InitialReadGradients, Sequences
from jax_impl._mlstm.state import StateGradients, normaliser_floor
from reference.arguments import MLSTMState


class ForwardPass(NamedTuple):
    """The results of the forward pass, named as in `chunkwise`.

    Attributes:
        unit: m + drift, the log of the unit of each step.
        attained: whether i_t attains m_t, ``(c, N, L)``.
        e_initial: the weight of the initial memory of a step's sequence at that step, 0 if it began in an earlier
            chunk; None if all initial states are zeros.
        last: the memory after the last chunk.
        final_m, final_weight: m of a final state that would end with a step, and the weight in it of the memory after
            the step, ``(c, N, L)``; see `drift`.
    """

    unit: jax.Array
    attained: jax.Array
    start: Memory
    E: jax.Array
    e: jax.Array
    e_initial: jax.Array | None
    G: jax.Array
    last: Carried
    final_m: jax.Array
    final_weight: jax.Array


class ChunkGradients(NamedTuple):
    """Gradients of the inputs in chunks (with respect to q̂, not q), and of the states.

    Attributes:
        before: the gradient of the memory before the first chunk.
        g: the gradient of the final stabiliser of a step's sequence where no later step attains it, else 0
            (`StateGradients`); None if the final states have no cotangents.
        initial: the gradients that reach initial states; None if all are zeros.
    """

    chunks: Chunks
    before: StateGradients
    g: jax.Array | None
    initial: InitialReadGradients | None


def forward(options: ChunkwiseOptions, x: Chunks, before: Carried, sequences: Sequences) -> ForwardPass:
    """The forward pass up to the numerator.

    Args:
        x: ``(c, N, L, ·)``.
        before: the memory before the first chunk, ``(N, ·)``.
    """
    state = before.state
    a = log_sigmoid(x.f)
    restarted = jnp.where(sequences.first, -jnp.inf, a)
    b = jnp.cumsum(restarted, axis=-1, dtype=a.dtype)
    candidates = jnp.where(sequences.first, jnp.maximum(a + sequences.initial_m, x.i), x.i)
    largest = running_largest(restarted, candidates)
    m_start = stabilisers(b[..., -1], largest[..., -1], state.m)
    m = jnp.maximum(b + m_start[..., None], largest)
    m_before = jnp.concatenate([m_start[..., None], m[..., :-1]], axis=-1)
    m_before = jnp.where(sequences.first, sequences.initial_m, m_before)

    decay = stabilised_decay(a, m_before, m)
    w = without_drift(m, decay, x.i - finite_stabiliser(m), before.drift, sequences.first)
    connected = jnp.where(sequences.first, -jnp.inf, w.decay)
    E = jnp.exp(log_weights(connected, w.gain))
    e = jnp.exp(jnp.cumsum(connected, axis=-1, dtype=connected.dtype))
    G = _weigh(E, _dot(options, "tk,jk->tj", x.q, x.k))

    written = E[..., -1, :, None] * x.k
    added = Memory(C=_dot(options, "jk,jv->kv", written, x.v), n=jnp.sum(written, axis=-2))
    e_initial = None
    if sequences.initial is not None:
        # Of the sequences that begin in the chunk, only a step's own one is connected to it.
        begun = jnp.where(sequences.first, w.decay, -jnp.inf)
        e_initial = jnp.exp(running_largest(connected, begun))
        added = _sum(added, _scaled(e_initial[..., -1], sequences.initial.outgoing))
    start, last = memories(e[..., -1], added, Memory(C=state.C, n=state.n), sequences.begun)
    final_m, final_weight = returned_stabiliser(m, w.drift, jnp.zeros_like(m))
    return ForwardPass(
        unit=m + w.drift,
        attained=x.i > a + m_before,
        start=start,
        E=E,
        e=e,
        e_initial=e_initial,
        G=G,
        last=Carried(state=MLSTMState(C=last.C, n=last.n, m=m[-1, :, -1]), drift=w.drift[-1, :, -1]),
        final_m=final_m,
        final_weight=final_weight,
    )


def output(options: ChunkwiseOptions, x: Chunks, p: ForwardPass, sequences: Sequences) -> jax.Array:
    """h of every step, ``(c, N, L, V)``."""
    numerator = _dot(options, "tj,jv->tv", p.G, x.v)
    numerator += _weigh(p.e[..., None], _dot(options, "tk,kv->tv", x.q, p.start.C))
    if sequences.initial is not None and p.e_initial is not None:
        numerator += _weigh(p.e_initial[..., None], sequences.initial.C)
    nu, floor = _normaliser(x, p, sequences)
    return numerator / (jnp.maximum(jnp.abs(nu), floor) + options.eps)[..., None]


def final_contributions(p: ForwardPass, sequences: Sequences) -> FinalContributions:
    """The contributions of the chunks to the final states."""
    return FinalContributions(
        written=_written_at_end(p, sequences),
        initial=None if p.e_initial is None else p.final_weight * p.e_initial,
        m=p.final_m,
        incoming=_scaled(_kept_at_end(p, sequences), p.start),
    )


def backward(
    options: ChunkwiseOptions,
    x: Chunks,
    p: ForwardPass,
    dh: jax.Array,
    dafter: StateGradients,
    sequences: Sequences,
    final: FinalCotangents | None,
) -> ChunkGradients:
    """Gradients of the inputs and of the states; the docstring of `chunkwise.backward` explains the terms.

    In the sums over paths that cross a step, memories that reach an initial or final state count like the incoming and
    the outgoing memory: they are read at the last step of a sequence in the chunk, as part of r.

    Args:
        dafter: gradient of the state after the last chunk.
        final: the cotangents of the final states of the sequences; None if they have none.
    """
    decay, initial = p.e[..., -1], sequences.initial
    nu, floor = _normaliser(x, p, sequences)
    Y = jnp.maximum(jnp.abs(nu), floor) + options.eps
    delta = dh / Y[..., None]
    lost = ~jnp.all(jnp.isfinite(delta), axis=-1)
    delta_v = _where_weighted(p.E, _dot(options, "tv,jv->tj", delta, x.v))
    C_delta = _where_weighted(p.e[..., None], _dot(options, "tv,kv->tk", delta, p.start.C))
    delta_h = jnp.sum(p.G * delta_v, axis=-1) + p.e * jnp.sum(x.q * C_delta, axis=-1)
    if initial is not None and p.e_initial is not None:
        delta_initial = jnp.sum(initial.C * delta, axis=-1)
        delta_h += _weigh(p.e_initial, delta_initial)
    delta_h /= Y
    dnu = jnp.where(lost, jnp.nan, jnp.where(jnp.abs(nu) <= floor, 0, -delta_h * jnp.sign(nu)))
    dG = _where_weighted(p.E, delta_v + dnu[..., None])
    W, dscores = p.G * dG, p.E * dG
    from_start = _weigh(p.e[..., None], C_delta + dnu[..., None] * p.start.n[..., None, :])

    finite = jnp.where(lost[..., None], 0, delta)
    read = p.e[..., None] * x.q
    added = Memory(
        C=_dot(options, "tk,tv->kv", read, finite),
        n=jnp.sum(read * _where_weighted(p.e, dnu)[..., None], axis=-2),
    )
    added = spoil(jnp.any(lost & (p.e > 0), axis=-1), added)
    attains, ended = jnp.any(p.attained & (sequences.number == sequences.number[..., :1]), axis=-1), None
    if final is not None:
        added = _sum(added, _scaled(_kept_at_end(p, sequences), final.incoming))
        ended = EndedSequence(here=sequences.ended[..., 0], g=final.g[..., 0])
    dend, dbefore = memory_gradients(decay, added, attains, dafter, ended, sequences.begun)

    written = p.E[..., -1, :, None]
    to_end = _weigh(written, _dot(options, "jv,kv->jk", x.v, dend.C) + dend.n[..., None, :])
    of_reads = jnp.sum(W, axis=-2)
    dv = spoil(jnp.isnan(of_reads), _dot(options, "tj,tv->jv", p.G, finite))
    dv += _weigh(written, _dot(options, "jk,kv->jv", x.k, dend.C))
    if final is not None:
        at_end = _written_at_end(p, sequences)[..., None]
        to_end += _weigh(at_end, final.k)
        dv += _weigh(at_end, final.v)
    dq = _dot(options, "tj,jk->tk", dscores, x.k) + from_start
    dk = _dot(options, "tj,tk->jk", dscores, x.q) + to_end

    r = jnp.sum(x.q * from_start, axis=-1)
    w = jnp.sum(x.k * to_end, axis=-1)
    dend_memory = Memory(C=dend.C, n=dend.n)
    r = _add_at_last_step(r, _weigh(decay, _inner_product(p.start, dend_memory)))
    if final is not None:
        r += jnp.where(
            sequences.last, _weigh(p.final_weight * p.e, _inner_product(p.start, final.incoming)[..., None]), 0
        )
    of_initial = None
    if initial is not None and p.e_initial is not None:
        r += _weigh(p.e_initial, delta_initial + dnu * initial.n)
        r = _add_at_last_step(r, _weigh(p.e_initial[..., -1], _inner_product(initial.outgoing, dend_memory)))
        if final is not None and final.initial is not None:
            r += jnp.where(sequences.last, _weigh(p.final_weight * p.e_initial, final.initial), 0)
        of_initial = InitialReadGradients(
            C=p.e_initial[..., None] * delta,
            n=p.e_initial * dnu,
            outgoing=_scaled(p.e_initial[..., -1], dend_memory),
            weight=p.final_weight * p.e_initial,
        )
    da = forget_matrix_gradient(W) + sequences.sum_from(r) + sequences.sum_before(w)
    di = of_reads + w

    g_before = None
    if final is not None:
        g, at = jnp.where(sequences.ended, final.g, dend.g[..., None]), sequences.last_of(p.attained)
        step = jnp.arange(x.i.shape[-1]).reshape(1, 1, -1)
        g_before = jnp.where(step > at, g, 0)
        di += jnp.where(step == at, g, 0)
        da += g_before
    return ChunkGradients(
        chunks=Chunks(q=dq, k=dk, v=dv, i=di, f=da * sigmoid(-x.f)), before=dbefore, g=g_before, initial=of_initial
    )


def _normaliser(x: Chunks, p: ForwardPass, sequences: Sequences) -> tuple[jax.Array, jax.Array]:
    """ν and its floor, ``(c, N, L)``."""
    nu = jnp.sum(p.G, axis=-1) + _weigh(p.e, jnp.sum(x.q * p.start.n[..., None, :], axis=-1))
    if sequences.initial is not None and p.e_initial is not None:
        nu += _weigh(p.e_initial, sequences.initial.n)
    return nu, normaliser_floor(p.unit)


def _written_at_end(p: ForwardPass, sequences: Sequences) -> jax.Array:
    """The weight of a step's write in the final memory of its sequence, ``(c, N, L)``; 0 if it ends later."""
    return jnp.sum(jnp.where(sequences.last[..., :, None], p.final_weight[..., None] * p.E, 0), axis=-2)


def _kept_at_end(p: ForwardPass, sequences: Sequences) -> jax.Array:
    """The weight of the incoming memory where its sequence ends, ``(c, N)``; 0 if it ends later."""
    return jnp.sum(jnp.where(sequences.last, p.final_weight * p.e, 0), axis=-1)


def _weigh(weight: jax.Array, x: jax.Array) -> jax.Array:
    """``weight·x``, and 0 where the weight is 0, whatever x is."""
    return weight * _where_weighted(weight, x)


def _where_weighted(weight: jax.Array, x: jax.Array) -> jax.Array:
    """x, and 0 where the weight is 0."""
    return jnp.where(weight == 0, 0, x)


def _add_at_last_step(x: jax.Array, y: jax.Array) -> jax.Array:
    """``(c, N, L)``, with ``(c, N)`` added to the last step."""
    return x.at[..., -1].add(y)


def _scaled(weight: jax.Array, memory: Memory) -> Memory:
    return jax.tree.map(lambda x: _weigh(expand(weight, x), x), memory)


def _sum(x: Memory, y: Memory) -> Memory:
    return jax.tree.map(jnp.add, x, y)


def _inner_product(x: Memory, y: Memory) -> jax.Array:
    """``⟨C, dC⟩ + ⟨n, dn⟩``."""
    return jnp.sum(x.C * y.C, axis=(-2, -1)) + jnp.sum(x.n * y.n, axis=-1)


def _dot(options: ChunkwiseOptions, letters: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """An einsum over the axes of one chunk, applied to all chunks and heads at once."""
    inputs, result = letters.split("->")
    return einsum(f"...{inputs.replace(',', ',...')}->...{result}", x, y, options.precision)
