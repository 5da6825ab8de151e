"""Log weights of the steps of a chunk, as the mLSTM's kernels read them: sums of log gates by bisection.

Sums of the log gates a and i are rounded at their own size. They therefore determine only m, which is a unit. All
weights are sums of log gates in units of exp(m), so that they are exact to roundoff however large the gates are::

    α_t = a_t + m_{t−1} − m_t        ι_j = i_j − m_j        E[t,j] = exp(F[t,j] + ι_j)        F[t,j] = Σ_{j<s≤t} α_s

Where m is large, its rounding adds up over the steps, to the drift δ_t of `jax_impl._mlstm.drift`. The units are
therefore exp(m_t + δ_t): no weight is above 1, whatever the gates are.

Inside a chunk of L = 2^6 steps, the pairs t > j whose indices differ first in bit ℓ lie in the right and the left half
of one block of 2^(ℓ+1) steps. Their log decay is a sum of two entries of one vector, level ℓ::

    F[t,j] = Σ_{mid≤s≤t} α_s + Σ_{j<s<mid} α_s = level_ℓ[t] + level_ℓ[j]

so six vectors of L entries represent the whole L × L matrix without a difference (nothing cancels; −∞ is allowed). The
gradient of the matrix comes back as its sums over rows and over columns, level by level.

Arrays are ``(c, N, L)``, float32, where c counts the chunks of all sequences.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._gates import finite_stabiliser, log_sigmoid, stabilised_decay
from jax_impl._pallas import L

LEVELS = L.bit_length() - 1


class ChunkRanges(NamedTuple):
    """The assignment of chunks to sequences.

    Attributes:
        begin, count: first chunk and number of chunks of each sequence, ``(B,)`` int32, within bounds.
        sequence: the sequence that a chunk belongs to, ``(c,)``.
        first: whether a chunk is the first one of its sequence, ``(c,)``.
    """

    begin: jax.Array
    count: jax.Array
    sequence: jax.Array
    first: jax.Array


class ChunkWeights(NamedTuple):
    """Log weights and weights of every step, ``(c, N, L)`` unless stated otherwise.

    Attributes:
        a: log forget gates.
        iota: input gates in units of exp(unit).
        levels: the vectors of all levels, ``(c, N, 6, L)``.
        m: stabilisers; `m_before` is the one before each step.
        unit: m + δ.
        e: weight of the chunk's incoming memory at each step.
        written: weight of each step's write in the chunk's outgoing memory.
        decay: weight of the incoming memory in the outgoing memory, ``(c, N)``.
        m_last, drift_last: stabiliser after each sequence, and its δ, ``(B, N)``.
    """

    a: jax.Array
    iota: jax.Array
    levels: jax.Array
    m: jax.Array
    m_before: jax.Array
    unit: jax.Array
    e: jax.Array
    written: jax.Array
    decay: jax.Array
    m_last: jax.Array
    drift_last: jax.Array


def chunk_weights(i: jax.Array, f: jax.Array, m_initial: jax.Array, ranges: ChunkRanges) -> ChunkWeights:
    """All gate arithmetic of the forward pass: elementwise operations and scans of logarithmic depth."""
    a = log_sigmoid(f)
    prefix = before_by_level(a)
    largest = _largest(i, prefix)
    m_end, m_start = _stabilisers(prefix[-1][..., -1], largest[..., -1], m_initial, ranges)
    m = jnp.maximum(prefix[-1] + m_start[..., None], largest)
    # The same bits as the m with which the next chunk starts.
    m = m.at[..., -1].set(m_end)
    m_before = jnp.concatenate([m_start[..., None], m[..., :-1]], axis=-1)
    alpha, iota, drift = _without_drift(stabilised_decay(a, m_before, m), i - finite_stabiliser(m), ranges)
    levels, before, after = log_decays(alpha)
    last = jnp.clip(ranges.begin + ranges.count - 1, 0, i.shape[0] - 1)
    return ChunkWeights(
        a=a,
        iota=iota,
        levels=levels,
        m=m,
        m_before=m_before,
        unit=m + drift,
        e=jnp.exp(before),
        written=jnp.exp(after + iota),
        decay=jnp.exp(before[..., -1]),
        m_last=jnp.where((ranges.count > 0)[:, None], m_end[last], m_initial),
        drift_last=jnp.where((ranges.count > 0)[:, None], drift[last, :, -1], 0),
    )


def _without_drift(alpha: jax.Array, iota: jax.Array, ranges: ChunkRanges) -> tuple[jax.Array, jax.Array, jax.Array]:
    """α and ι in units of exp(m + δ), none above 0; and δ."""
    prefix = before_by_level(alpha)
    largest = _largest(iota, prefix)
    zeros = jnp.zeros((ranges.begin.shape[0], alpha.shape[1]), alpha.dtype)
    end, start = _stabilisers(prefix[-1][..., -1], largest[..., -1], zeros, ranges)
    drift = jnp.maximum(prefix[-1] + start[..., None], largest).at[..., -1].set(end)
    alpha = alpha + jnp.concatenate([start[..., None], drift[..., :-1]], axis=-1)
    most = finite_stabiliser(jnp.maximum(alpha, iota))
    return alpha - most, iota - most, drift


def log_decays(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The levels ``(…, 6, L)``, ``Σ_{s≤t} a_s`` and ``Σ_{s>t} a_s``: linear in ``a`` and computed by sums only."""
    prefix, suffix, levels = a, jnp.zeros_like(a), []
    for level in range(LEVELS):
        prefix, suffix = _halves(prefix, level), _halves(suffix, level)
        levels.append(jnp.stack([suffix[..., 0, :], prefix[..., 1, :]], axis=-2).reshape(a.shape))
        left = prefix[..., 0, -1:]
        right = suffix[..., 1, :1] + prefix[..., 1, :1]
        prefix = jnp.stack([prefix[..., 0, :], prefix[..., 1, :] + left], axis=-2).reshape(a.shape)
        suffix = jnp.stack([suffix[..., 0, :] + right, suffix[..., 1, :]], axis=-2).reshape(a.shape)
    return jnp.stack(levels, axis=-2), prefix, suffix


def before_by_level(a: jax.Array) -> list[jax.Array]:
    """Sums of a_s from the start of each step's block of 2^ℓ steps, for ℓ = 0 … 6."""
    prefix = [a]
    for level in range(LEVELS):
        halves = _halves(prefix[-1], level)
        sums = jnp.stack([halves[..., 0, :], halves[..., 1, :] + halves[..., 0, -1:]], axis=-2)
        prefix.append(sums.reshape(a.shape))
    return prefix


def log_decays_gradient(dlevels: jax.Array, dbefore: jax.Array, dafter: jax.Array, a: jax.Array) -> jax.Array:
    """Gradient of ``a``, given the gradients of the three results of `log_decays`."""
    _, transposed = jax.vjp(log_decays, a)
    (da,) = transposed((dlevels, dbefore, dafter))
    return da


def _largest(i: jax.Array, prefix: list[jax.Array]) -> jax.Array:
    """max_{j≤t} (F[t,j] + i_j) inside the chunk."""
    largest = i
    for level in range(LEVELS):
        most, sums = _halves(largest, level), _halves(prefix[level], level)
        right = jnp.maximum(most[..., 1, :], sums[..., 1, :] + most[..., 0, -1:])
        largest = jnp.stack([most[..., 0, :], right], axis=-2).reshape(i.shape)
    return largest


def _stabilisers(
    total: jax.Array, largest: jax.Array, m_initial: jax.Array, ranges: ChunkRanges
) -> tuple[jax.Array, jax.Array]:
    """m after and before every chunk, ``(c, N)``: ``m ← max(total + m, largest)``, starting each sequence from m₀."""
    first, initial = ranges.first[:, None], m_initial[ranges.sequence]
    decay = jnp.where(first, -jnp.inf, total)
    least = jnp.where(first, jnp.maximum(total + initial, largest), largest)

    def after(x: tuple, y: tuple) -> tuple:
        return x[0] + y[0], jnp.maximum(y[0] + x[1], y[1])

    _, end = jax.lax.associative_scan(after, (decay, least))
    return end, jnp.where(first, initial, jnp.concatenate([initial[:1], end[:-1]]))


def _halves(x: jax.Array, level: int) -> jax.Array:
    """``(…, L)`` → ``(…, blocks, 2, 2^level)``."""
    return x.reshape(*x.shape[:-1], -1, 2, 2**level)
