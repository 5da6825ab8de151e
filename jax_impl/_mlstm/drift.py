"""The units in which a call holds its memories, so that the rounding of large stabilisers does not add up.

Memories are held in units of exp(m). What rounding adds to m at a step, or takes from it, is in the log weights of that
step. Where m is large this adds up over the steps, until weights leave the range. Inside a call it is therefore summed
as the *drift* of m: the stabiliser of log weights that are in units of exp(m). Memories are in units of exp(m + drift),
in which no weight is above 1. A call returns a single number, m + drift rounded (`pass_on`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._gates import finite_stabiliser, running_largest
from jax_impl._mesh_axes import vary_like
from jax_impl._mlstm.inter_chunk import stabilisers
from reference.arguments import MLSTMState

_LITTLE = 2.0**-14
"""The largest log weight that counts as roundoff: the sum of a million of them is in range."""

LARGEST_EXACT = 10.0
"""The size of an m, in inverse machine epsilons, from which its rounding alone may put a memory out of range."""

_FAR = 40.0
"""The log of n in its unit, in size, from which the m that a call returns is rounded to the other side."""


class Carried(NamedTuple):
    """A memory that passes from chunk to chunk.

    Attributes:
        state: C and n in units of exp(m + drift), and m.
        drift: ``(*rest)``, like m.
    """

    state: MLSTMState
    drift: jax.Array


class LogWeights(NamedTuple):
    """Log weights of every step in units of exp(m + drift), ``(c, *rest, L)``.

    Attributes:
        decay, gain: those of the memory before the step and of the step's write; none is above 0.
        drift: the roundoff of all m up to the step.
    """

    decay: jax.Array
    gain: jax.Array
    drift: jax.Array


def begin(initial: MLSTMState) -> Carried:
    return Carried(state=initial, drift=_zeros(initial.m))


def without_drift(
    m: jax.Array, decay: jax.Array, gain: jax.Array, initial: jax.Array, first: jax.Array | None = None
) -> LogWeights:
    """Log weights in units of exp(m + drift), given those in units of exp(m).

    On a CPU the drift is computed only where it can count; other devices would have to wait for that decision.

    Args:
        m: the stabiliser after every step, ``(c, *rest, L)``.
        decay, gain: log weights of the memory before every step and of its write, likewise.
        initial: the drift before the first chunk, ``(*rest)``.
        first: whether a packed sequence begins at a step; its initial memory is in units of exp(m).
    """
    counts = jax.lax.platform_dependent(m, initial, cpu=_roundoff_counts, default=_always)
    return jax.lax.cond(counts, _summed, _ignored, m, decay, gain, initial, first)


def _summed(m: jax.Array, decay: jax.Array, gain: jax.Array, initial: jax.Array, first: Any) -> LogWeights:
    connected, candidates = decay, gain
    if first is not None:
        connected = jnp.where(first, -jnp.inf, decay)
        candidates = jnp.where(first, jnp.maximum(decay, gain), gain)
    b = jnp.cumsum(connected, axis=-1, dtype=m.dtype)
    largest = running_largest(connected, candidates)
    start = stabilisers(b[..., -1], largest[..., -1], initial)
    drift = jnp.maximum(b + start[..., None], largest)
    before = jnp.concatenate([start[..., None], drift[..., :-1]], axis=-1)
    decay += before if first is None else jnp.where(first, 0, before)
    # The larger of the two is exactly 0, so that no roundoff of the drift itself adds up.
    most = finite_stabiliser(jnp.maximum(decay, gain))
    return LogWeights(decay=decay - most, gain=gain - most, drift=drift)


def _ignored(m: jax.Array, decay: jax.Array, gain: jax.Array, initial: jax.Array, first: Any) -> LogWeights:
    return LogWeights(decay=decay, gain=gain, drift=_zeros(m))


def _always(m: jax.Array, initial: jax.Array) -> jax.Array:
    return vary_like(jnp.array(True), m)


@jax.custom_batching.custom_vmap
def _roundoff_counts(m: jax.Array, initial: jax.Array) -> jax.Array:
    """Whether the rounding of any m may add more than `_LITTLE` to a log weight.

    Mapped, it is one answer for all calls, because a condition per call would compute both sides for each.
    """
    return jnp.any(_is_large(m)) | jnp.any(initial != 0)


@_roundoff_counts.def_vmap
def _(size: int, batched: Any, m: jax.Array, initial: jax.Array) -> tuple[jax.Array, bool]:
    return _roundoff_counts(m, initial), False


def pass_on(last: Carried) -> tuple[MLSTMState, jax.Array]:
    """The state that a call returns, and the weight in it of the memory that the call carried, ``(*rest)``."""
    state, drift = last
    m, weight = returned_stabiliser(state.m, drift, jnp.log(jnp.max(jnp.abs(state.n), axis=-1)))
    return MLSTMState(C=weight[..., None, None] * state.C, n=weight[..., None] * state.n, m=m), weight


def returned_stabiliser(m: jax.Array, drift: jax.Array, size: jax.Array) -> tuple[jax.Array, jax.Array]:
    """m + drift as one number, and the weight in units of it of a memory in units of exp(m + drift).

    Args:
        size: the log of n in units of exp(m + drift).
    """
    unit = m + drift
    unit = _towards_range(unit, size + ((m - unit) + drift))
    return unit, jnp.exp(jnp.where(is_exact(unit), (m - unit) + drift, 0))


def _towards_range(m: jax.Array, size: jax.Array) -> jax.Array:
    """m, or the next number above or below it where a memory, in size ``exp(size)``, would leave the range.

    What rounding takes from the m of a state is lost to the next call. Where that has the same sign in many calls, it
    would add up in the memory.
    """
    towards = jnp.where(size > _FAR, jnp.inf, -jnp.inf).astype(m.dtype)
    rounds = (jnp.abs(size) > _FAR) & jnp.isfinite(size) & is_exact(m) & _is_large(m)
    return jnp.where(rounds, jnp.nextafter(m, towards), m)


def after_single_step(m: jax.Array, decay: jax.Array, gain: jax.Array, n: jax.Array) -> jax.Array:
    """The m that a single step returns: m, or the next number above or below it where n would leave the range.

    A step cannot pass on what rounding took from its m, as the steps of one call do by the drift. Where that has the
    same sign for many steps, it would add up in the memory.

    Args:
        m: the rounded stabiliser, ``(…)``.
        decay, gain: log weights of the step in units of exp(m).
        n: the memory before the step, ``(…, K)``.
    """
    size = jnp.log(_largest_by_halves(jnp.abs(n))) + decay
    return _towards_range(m, jnp.where(decay >= gain, size, 0))


def bounded(m: jax.Array, decay: jax.Array, gain: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The log weights of a single step in units of exp(m), of which the larger is 0 but for rounding.

    Where m is so large that its rounding alone may put a memory out of range, the larger one counts as 0.
    """
    excess = jnp.where(is_exact(m), 0, finite_stabiliser(jnp.maximum(decay, gain)))
    return decay - excess, gain - excess


def _largest_by_halves(x: jax.Array) -> jax.Array:
    """The largest element of the last axis. XLA would compare more than 32 in several kernels, and eight take less time
    than 32, which it compares one after the other."""
    while (size := x.shape[-1]) > 8 and size % 2 == 0:
        x = jnp.maximum(x[..., : size // 2], x[..., size // 2 :])
    return jnp.max(x, axis=-1, initial=0)


def _zeros(like: jax.Array) -> jax.Array:
    return vary_like(jnp.zeros_like(like), like)


def is_exact(m: jax.Array) -> jax.Array:
    """Whether the rounding of each m alone leaves a memory in range."""
    return jnp.abs(m) < LARGEST_EXACT / float(jnp.finfo(m.dtype).eps)


def _is_large(m: jax.Array) -> jax.Array:
    """Whether the rounding of each m may add more than `_LITTLE` to a log weight; not so for −∞, an empty memory."""
    return (jnp.abs(m) > 2 * _LITTLE / float(jnp.finfo(m.dtype).eps)) & jnp.isfinite(m)
