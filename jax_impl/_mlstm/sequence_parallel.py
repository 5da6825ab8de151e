"""The mLSTM over sequences whose steps are sharded over a mesh axis, inside ``shard_map``.

Every device summarises its steps (`Summary`), receives the combination of the summaries of all devices before its own
(`incoming`, the only communication but for final states), and computes its steps from the state that this gives, with
the passes that also compute whole sequences. A packing has at most one sequence that crosses the border before a
device: the summary of a device is that of the sequence to which its last token belongs, with the initial state if the
sequence begins there.

The scan takes ``1 + ⌈log₂(P − 1)⌉`` rounds on P devices, in each of which a device sends one summary to one other: a
shift by one device, then distances 1, 2, 4, …. An all-gather would send P − 1 summaries to every device, which is as
much on 2 and 4 devices and more on all others. A pipeline from device to device would send one summary, in P − 1
rounds.

The gradient is that of this composition, so that the backward pass sends as much in the opposite direction. The
stabiliser of a memory that is passed on counts as a constant in its C and n, because h does not depend on it; its own
derivative counts only for the final state's m.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._arrays import einsum, zeros_like_states
from jax_impl._chunk_layout import to_chunks
from jax_impl._gates import (
    finite_stabiliser,
    log_sigmoid,
    running_largest,
    sigmoid,
    stabilised_decay,
    sum_before,
    sum_from,
)
from jax_impl._handwritten_gradient import handwritten_gradient
from jax_impl._mesh_axes import place, vary_like, varying_axes
from jax_impl._mlstm.arguments import Arguments, Options, Result, Tokens
from jax_impl._mlstm.drift import Carried, pass_on, without_drift
from jax_impl._mlstm.inter_chunk import expand, stabilisers
from jax_impl._mlstm.state import given_or_zeros
from jax_impl._packing import indices
from reference.arguments import Call, MLSTMState


def check_sharded(call: Call, sequence_axis: Any, tokens: Iterable[Any], whole: Mapping[str, Any]) -> None:
    """Raise unless tokens vary over the axis that shards them, and all that belongs to whole sequences does not.

    Args:
        tokens: the arrays that are sharded; the first is `q`.
        whole: arrays of whole sequences by the names that errors mention; None for those that are not given.
    """
    axes = {sequence_axis} if isinstance(sequence_axis, str) else {*sequence_axis}
    shown = " and ".join(repr(axis) for axis in sorted(axes))
    if not any(axes <= varying_axes(x) for x in tokens):
        expected = f"it to vary over {shown}, as in a shard_map that shards the steps, with check_vma=True"
        call.refuse(ValueError, "q", f"the same array on all devices of {shown}", expected)
    for argument, x in whole.items():
        if x is not None and axes & varying_axes(x):
            expected = "the same array on all devices: it belongs to the whole sequences"
            call.refuse(ValueError, argument, f"an array that varies over {shown}", expected)


class Writes(NamedTuple):
    """The arrays on which the memory depends, dense and all of one shard: k ``(B, S, N, K)``, v, i, f."""

    k: jax.Array
    v: jax.Array
    i: jax.Array
    f: jax.Array


class Summary(NamedTuple):
    """The effect of some steps on the memory.

    Attributes:
        state: what the steps write into an empty memory.
        a: the sum of the log forget gates, ``(B, N)``.
        rest: what rounding took from that sum; without it large gates would make the memory of an earlier device
            inexact.
    """

    state: MLSTMState
    a: jax.Array
    rest: jax.Array


def sharded(options: Options, arguments: Arguments, local: Any) -> Result:
    """h of this device's steps, and the final state of the whole sequences on every device.

    Args:
        local: ``(arguments) → result``, the mLSTM of this device's steps with their incoming state.
    """
    tokens = arguments.tokens
    given = given_or_zeros(arguments.initial_state, tokens.q, tokens.v, arguments.B)
    if arguments.cu_seqlens is None:
        result = local(Arguments(tokens=tokens, initial_state=dense_incoming(options, tokens, given)))
        owns = ends_here(options)
    else:
        index, devices = _place(options)
        cu_seqlens, T = arguments.cu_seqlens, tokens.q.shape[0]
        begin = (index * T).astype(cu_seqlens.dtype)
        of_first, of_last = (_sequence_of(cu_seqlens, begin + at) for at in (0, T - 1))
        start = cu_seqlens[of_last] - begin
        own = summarise(options, _of_last_sequence(tokens, start))
        before = jax.tree.map(lambda x: x[of_last][None], given)
        own = _where(start >= 0, _begun(before, own), own)
        state = incoming(options, own, index, devices)
        crosses = (indices(arguments.B) == of_first) & (cu_seqlens[of_first] < begin)
        local_bounds = jnp.clip(cu_seqlens - begin, 0, T)
        result = local(Arguments(tokens=tokens, initial_state=_where(crosses, state, given), cu_seqlens=local_bounds))
        last = cu_seqlens[1:] - 1
        owns = (last >= begin) & (last < begin + T) & (jnp.diff(cu_seqlens) > 0)
        # A sequence without steps ends with its initial state, which the first device knows as well as all others.
        owns |= (jnp.diff(cu_seqlens) == 0) & (index == 0)
    if result.state is None:
        return result
    return Result(h=result.h, state=from_owner(options, owns, result.state))


def dense_incoming(options: Options, tokens: Tokens, given: MLSTMState) -> MLSTMState:
    """The state with which this device's steps of dense sequences begin, if all steps begin with ``given``."""
    index, devices = _place(options)
    own = summarise(options, Writes(*tokens[1:]))
    own = _where(index == 0, _begun(given, own), own)
    return _where(index == 0, given, incoming(options, own, index, devices))


def ends_here(options: Options) -> jax.Array:
    """Whether the last steps of dense sequences are on this device."""
    index, devices = _place(options)
    return index == devices - 1


def from_first_device(options: Options, state: MLSTMState) -> MLSTMState:
    """The states that the first device holds, on every device."""
    index, _ = _place(options)
    return from_owner(options, index == 0, state)


def from_owner(options: Options, owns: jax.Array, state: MLSTMState) -> MLSTMState:
    """The states of the devices that own them, by sequence, on every device; their cotangent counts once."""
    assert options.sequence_axis is not None
    return jax.lax.psum(_where(owns, state, jax.tree.map(jnp.zeros_like, state)), options.sequence_axis)


def incoming(options: Options, own: Summary, index: jax.Array, devices: int) -> MLSTMState:
    """The state that the steps of all devices before this one leave of an empty memory: an exclusive scan."""
    shape = own.state.C.shape
    before = _unpacked(_received(options, _packed(own), 1, devices), shape)
    before = _where(index > 0, before, _nothing(own))
    distance = 1
    while distance < devices - 1:
        earlier = _unpacked(_received(options, _packed(before), distance, devices), shape)
        before = _where(index >= distance, combine(earlier, before), before)
        distance *= 2
    state = before.state
    if not options.return_state:
        return state._replace(m=jax.lax.stop_gradient(state.m))
    return _with_exact_m(state)


def combine(earlier: Summary, later: Summary) -> Summary:
    """The summary of the steps of both. Where the later ones empty the memory nothing passes, not even a NaN."""
    emptied = later.a == -jnp.inf
    earlier = _where(emptied, _nothing(earlier), earlier)
    a = jnp.where(emptied | (earlier.a == -jnp.inf), -jnp.inf, earlier.a + later.a)
    part = a - earlier.a
    lost = (earlier.a - (a - part)) + (later.a - part)
    rest = jnp.where(jnp.isfinite(a), lost + earlier.rest + later.rest, 0)
    carried = later.a + earlier.state.m
    m = jnp.where(later.state.m > carried, later.state.m, carried)

    fixed, m_earlier, m_later = map(jax.lax.stop_gradient, (m, earlier.state.m, later.state.m))
    decay = jnp.exp(stabilised_decay(later.a, m_earlier, fixed) + later.rest)
    gain = jnp.exp(m_later - finite_stabiliser(fixed))
    C = decay[..., None, None] * earlier.state.C + gain[..., None, None] * later.state.C
    n = decay[..., None] * earlier.state.n + gain[..., None] * later.state.n
    return Summary(state=MLSTMState(C=C, n=n, m=m), a=a, rest=jax.lax.stop_gradient(rest))


def _begun(before: MLSTMState, steps: Summary) -> Summary:
    """The summary of steps before which the memory is ``before``, whatever earlier devices hold."""
    zero = jnp.zeros_like(steps.a)
    combined = combine(Summary(state=_with_constant_m(before), a=zero, rest=zero), steps)
    return combined._replace(a=jnp.full_like(zero, -jnp.inf), rest=zero)


def _summary_forward(options: Options, x: Writes) -> tuple[Summary, Any]:
    B, S, N, K = x.k.shape
    dtype, precision = zeros_like_states(x.v, ())[0].dtype, options.chunkwise.precision
    if S == 0:
        zero = zeros_like_states(x.v, (B, N, K, x.v.shape[-1]), (B, N, K), (B, N))
        return _nothing(Summary(state=MLSTMState(*zero), a=zero[2], rest=zero[2])), (x, None)
    gates = _gates(options, x.i.astype(dtype), x.f.astype(dtype))
    written = gates.weights[..., None] * x.k.astype(dtype)
    C = einsum("bsnk,bsnv->bnkv", written, x.v.astype(dtype), precision)
    state, unit = pass_on(Carried(state=MLSTMState(C=C, n=jnp.sum(written, axis=1), m=gates.m), drift=gates.drift))
    return Summary(state=state, a=gates.a, rest=gates.rest), (x, gates._replace(weights=unit[:, None] * gates.weights))


def _summary_backward(options: Options, residuals: Any, d: Summary) -> Writes:
    """Gradients, with m as a constant in C and n; the cotangent of m goes to the step that attains it."""
    x, gates = residuals
    if gates is None:
        return jax.tree.map(jnp.zeros_like, x)
    dtype, precision, w = d.a.dtype, options.chunkwise.precision, gates.weights[..., None]
    k, v = x.k.astype(dtype), x.v.astype(dtype)
    dk = w * (einsum("bnkv,bsnv->bsnk", d.state.C, v, precision) + d.state.n[:, None])
    dv = w * einsum("bnkv,bsnk->bsnv", d.state.C, k, precision)
    k_dk = jnp.sum(k * dk, axis=-1)
    step, at, g = indices(k.shape[1])[:, None], gates.attained_at[:, None], d.state.m[:, None]
    di = k_dk + jnp.where(step == at, g, 0)
    da = jnp.moveaxis(sum_before(jnp.moveaxis(k_dk, 1, 2)), 2, 1) + d.a[:, None] + jnp.where(step > at, g, 0)
    found = Writes(k=dk, v=dv, i=di, f=da * sigmoid(-x.f.astype(dtype)))
    return Writes(*(gradient.astype(like.dtype) for gradient, like in zip(found, x, strict=True)))


summarise = handwritten_gradient("mlstm", Writes, _summary_forward, _summary_backward)
"""``(options, writes) →`` their `Summary`."""


class _Gates(NamedTuple):
    """Results that depend on the gates of a shard alone.

    Attributes:
        weights: the weight of every step's write in the memory after all steps, ``(B, S, N)``.
        m, drift: the log of the unit of that memory, see `drift`, ``(B, N)`` each.
        a, rest: as in `Summary`.
        attained_at: the step that attains m, or −1, ``(B, N)``.
    """

    weights: jax.Array
    m: jax.Array
    drift: jax.Array
    a: jax.Array
    rest: jax.Array
    attained_at: jax.Array


def _gates(options: Options, i: jax.Array, f: jax.Array) -> _Gates:
    """From gate preactivations ``(B, S, N)``; stabilisers are computed by chunks."""
    S = i.shape[1]
    i, f = (_to_chunks(options, x, padding) for x, padding in ((i, -jnp.inf), (f, jnp.inf)))
    a = log_sigmoid(f)
    largest, empty = running_largest(a, i), vary_like(jnp.full(i.shape[1:3], -jnp.inf, i.dtype), i)
    b = jnp.cumsum(a, axis=-1, dtype=a.dtype)
    start = stabilisers(b[..., -1], largest[..., -1], empty)
    m = jnp.maximum(b + start[..., None], largest)
    before = jnp.concatenate([start[..., None], m[..., :-1]], axis=-1)
    attained = i > a + before
    log = without_drift(m, stabilised_decay(a, before, m), i - finite_stabiliser(m), jnp.zeros_like(empty))

    decay, gain, a, attained = map(_steps, (log.decay, log.gain, a, attained))
    later = jnp.pad(decay[..., 1:], [(0, 0), (0, 0), (0, 1)])
    sums = jnp.cumsum(a, axis=-1, dtype=a.dtype)
    total = sums[..., -1]
    lost = jnp.sum(stabilised_decay(a, jnp.pad(sums[..., :-1], [(0, 0), (0, 0), (1, 0)]), sums), axis=-1)
    at = jnp.max(jnp.where(attained, indices(attained.shape[-1]), -1), axis=-1)
    return _Gates(
        weights=jnp.moveaxis(jnp.exp(sum_from(later) + gain)[..., :S], 2, 1),
        m=m[-1, ..., -1],
        drift=log.drift[-1, ..., -1],
        a=total,
        rest=jnp.where(jnp.isfinite(total), lost, 0),
        attained_at=at,
    )


def _to_chunks(options: Options, x: jax.Array, padding: float) -> jax.Array:
    """``(B, S, N)`` in chunks, ``(c, B, N, L)``."""
    return jnp.moveaxis(to_chunks(x, 1, options.chunkwise.L, padding), 3, 2)


def _steps(x: jax.Array) -> jax.Array:
    """``(c, B, N, L)`` → ``(B, N, c·L)``."""
    c, B, N, L = x.shape
    return jnp.moveaxis(x, 0, 2).reshape(B, N, c * L)


def _sequence_of(cu_seqlens: jax.Array, token: jax.Array) -> jax.Array:
    """The sequence to which a token of the whole packing belongs."""
    found = jnp.searchsorted(cu_seqlens, token, side="right").astype(cu_seqlens.dtype) - 1
    return jnp.clip(found, 0, cu_seqlens.shape[0] - 2)


def _of_last_sequence(tokens: Tokens, start: jax.Array) -> Writes:
    """The tokens from ``start`` on, as a batch of one; others write nothing and forget nothing."""
    own = indices(tokens.i.shape[0]) >= start
    others = {"k": 0, "v": 0, "i": -jnp.inf, "f": jnp.inf}
    masked = {
        name: jnp.where(expand(own, getattr(tokens, name)), getattr(tokens, name), x) for name, x in others.items()
    }
    return jax.tree.map(lambda x: x[None], Writes(**masked))


def _nothing(like: Summary) -> Summary:
    """The summary of no steps."""
    C, n, m = jax.tree.map(jnp.zeros_like, like.state)
    return Summary(state=MLSTMState(C=C, n=n, m=jnp.full_like(m, -jnp.inf)), a=m, rest=m)


def _with_exact_m(state: MLSTMState) -> MLSTMState:
    """A memory whose m counts as a constant in C and n, as one of which m may change: ``C exp(m)`` would not."""
    m = finite_stabiliser(state.m)
    factor = jnp.exp(jax.lax.stop_gradient(m) - m)
    return MLSTMState(C=factor[..., None, None] * state.C, n=factor[..., None] * state.n, m=state.m)


def _with_constant_m(state: MLSTMState) -> MLSTMState:
    """Inverse of `_with_exact_m`: the derivative of ``C exp(m)`` with respect to m becomes one of C."""
    m = finite_stabiliser(state.m)
    factor = jnp.exp(m - jax.lax.stop_gradient(m))
    return MLSTMState(C=factor[..., None, None] * state.C, n=factor[..., None] * state.n, m=state.m)


def _place(options: Options) -> tuple[jax.Array, int]:
    """Index of this device and number of devices along the axis that shards the steps."""
    return place("mlstm", options.sequence_axis, "sequence_axis")


def _received(options: Options, message: jax.Array, distance: int, devices: int) -> jax.Array:
    """The message of the device that many places before this one; zeros if there is none."""
    assert options.sequence_axis is not None
    pairs = [(source, source + distance) for source in range(devices - distance)]
    return jax.lax.ppermute(message, options.sequence_axis, pairs)


def _packed(summary: Summary) -> jax.Array:
    """A summary as one array, ``(B, N, K·V + K + 3)``, so that one collective sends it."""
    C, n, m = summary.state
    return jnp.concatenate([C.reshape(*m.shape, -1), n, jnp.stack([m, summary.a, summary.rest], axis=-1)], axis=-1)


def _unpacked(message: jax.Array, shape: tuple[int, ...]) -> Summary:
    """Inverse of `_packed`, with the shape of C."""
    K, V = shape[-2:]
    C, n, scalars = jnp.split(message, (K * V, K * V + K), axis=-1)
    m, a, rest = (scalars[..., at] for at in range(3))
    return Summary(state=MLSTMState(C=C.reshape(shape), n=n, m=m), a=a, rest=rest)


def _where(condition: jax.Array, x: Any, y: Any) -> Any:
    """Choose between two trees, by axes from the first on."""
    return jax.tree.map(lambda x, y: jnp.where(expand(condition, x), x, y), x, y)
