"""The sLSTM as array code that XLA compiles: a loop over steps forward, and one over steps backward.

Dense sequences are time first, ``(S, N, B, ·)``, and scanned. Packed sequences are head first, ``(N, T, 1, ·)``, in
which the GRU's loops (`jax_impl._gru.packed`) advance all sequences together; an axis of size 1 stands where the GRU
has the heads of a group. The backward pass computes the gates of all steps at once, from the saved states, and the
gradients of the weights as products over all steps.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._arrays import accumulation, einsum
from jax_impl._gates import finite_stabiliser
from jax_impl._gru.packed import over_steps
from jax_impl._mesh_axes import vary_like
from jax_impl._packing import indices, sequence_of_tokens
from jax_impl._slstm.arguments import Arguments, Gates, Gradients, Options, Residuals, Result
from reference.arguments import SLSTMState

_FAR = 2.0**40
"""From this n on, or below its inverse, the roundoff of log weights takes n no further from 1."""

_LARGEST_LOST = 16.0
"""The largest roundoff of a log weight that counts: no step takes n out of range."""


class _Step(NamedTuple):
    """The activations of a step, or of many, and what it keeps and writes of the memory.

    Attributes:
        z, o: tanh(u_z) and σ(u_o).
        keep: exp(a + m − m_new).
        gain: exp(u_i − m_new).
        slope: ∂a/∂u_f.
        wrote: whether m_new is attained by u_i alone.
    """

    z: jax.Array
    o: jax.Array
    keep: jax.Array
    gain: jax.Array
    slope: jax.Array
    wrote: jax.Array


def _gates(options: Options, x: Gates, weights: Gates, state: SLSTMState) -> tuple[_Step, jax.Array]:
    """A step up to its weights, and m after it."""
    joined = jnp.concatenate(weights, axis=-1)
    recurrent = einsum("n...h,nhk->n...k", state.h, joined, precision=options.precision)
    u = Gates(*(x_g + part for x_g, part in zip(x, jnp.split(recurrent, 4, axis=-1), strict=True)))
    a, slope = (u.f, jnp.ones_like(u.f)) if options.exponential else (-jax.nn.softplus(-u.f), jax.nn.sigmoid(-u.f))
    carried = a + state.m
    m = jnp.maximum(carried, u.i)
    # With the least finite number in place of −∞, weights become 0 and not NaN.
    unit = finite_stabiliser(m)
    keep, gain = jnp.exp((carried - unit) + _lost(a, state, carried)), jnp.exp(u.i - unit)
    return _Step(jnp.tanh(u.z), jax.nn.sigmoid(u.o), keep, gain, slope, u.i > carried), m


def _lost(a: jax.Array, state: SLSTMState, carried: jax.Array) -> jax.Array:
    """The part that rounding took from ``a + m``, which belongs to the log weight of the memory.

    It adds up over the steps of a memory that only decays, and then counts as 0 before n leaves the range.
    """
    # Half of the least number: less it, no m is infinite.
    lost = (state.m - jnp.maximum(carried, 0.5 * jnp.finfo(carried.dtype).min)) + a
    near = (state.n == 0) | ((state.n > 1 / _FAR) & (state.n < _FAR))
    return jnp.where(near & (jnp.abs(lost) < _LARGEST_LOST), lost, 0)


def _quotient(x: jax.Array, n: jax.Array) -> jax.Array:
    """``x / n``; 0 where nothing has been written, or less than the smallest normal number."""
    empty = n < jnp.finfo(n.dtype).tiny
    return jnp.where(empty, 0, x / jnp.where(empty, 1, n))


def _advance(options: Options, weights: Gates, state: SLSTMState, x: Gates) -> SLSTMState:
    step, m = _gates(options, x, weights, state)
    c, n = step.keep * state.c + step.gain * step.z, step.keep * state.n + step.gain
    return SLSTMState(c, n, m, step.o * _quotient(c, n))


class _Carried(NamedTuple):
    """The gradient of a state as the backward pass carries it; g is the part of dm that is not yet assigned."""

    c: jax.Array
    n: jax.Array
    g: jax.Array
    h: jax.Array


class _Values(NamedTuple):
    """Values of one or many steps for the backward pass."""

    step: _Step
    before: SLSTMState
    after: SLSTMState
    dh: jax.Array


def _retreat(options: Options, transposed: Gates, d: _Carried, values: _Values) -> tuple[_Carried, Gates]:
    """Compute the gradient of the state before a step from that of the state after it, and those of the inputs."""
    step, before, after, dh = values
    dh = dh + (d.h if options.bound is None else jnp.clip(d.h, -options.bound, options.bound))
    dc = d.c + _quotient(dh * step.o, after.n)
    dn = d.n - _quotient(dh * after.h, after.n)
    of_write = jnp.where(step.wrote, d.g, 0)
    g = d.g - of_write
    du_z = step.gain * dc * (1 - step.z * step.z)
    du_i = step.gain * (step.z * dc + dn) + of_write
    du_o = dh * after.h * (1 - step.o)
    dc, dn = step.keep * dc, step.keep * dn
    du_f = (before.c * dc + before.n * dn + g) * step.slope
    du = Gates(z=du_z, i=du_i, f=du_f, o=du_o)
    joined = jnp.concatenate(transposed, axis=-2)
    reaching = einsum("n...k,nkh->n...h", jnp.concatenate(du, axis=-1), joined, precision=options.precision)
    return _Carried(dc, dn, g, reaching), du


def forward(options: Options, arguments: Arguments) -> tuple[Result, Residuals]:
    """h in the dtype of z, the final state, and the states by step."""
    inputs, weights, first = _by_step(arguments), _weights(arguments), _initial(arguments)

    def advance(state: SLSTMState, x: Gates) -> tuple[SLSTMState, SLSTMState]:
        after = _advance(options, weights, state, x)
        return after, after

    states, last = _over_steps(options, arguments, advance, first, inputs)
    h = _from_steps(arguments, states.h).astype(arguments.inputs.z.dtype)
    result = Result(h=h, state=jax.tree.map(partial(_state_from_heads, arguments), last))
    return result, Residuals(arguments=arguments, states=states, last=last)


def backward(options: Options, residuals: Residuals, cotangents: Result) -> Gradients:
    """Gradients, by the equations of ``slstm_backward`` in the reference."""
    arguments, states, last = residuals
    inputs, weights, first = _by_step(arguments), _weights(arguments), _initial(arguments)
    dlast = SLSTMState(*(_state_by_head(arguments, d) for d in cotangents.state))
    before = jax.tree.map(partial(_before, arguments), states, first)
    step = _gates_of_all_steps(options, arguments, inputs, weights, before)
    dh = _steps_of(arguments, cotangents.h.astype(states.h.dtype))
    values = _Values(step=step, before=before, after=states, dh=dh)
    g = dlast.m - last.c * dlast.c - last.n * dlast.n
    transposed = Gates(*(jnp.swapaxes(weight, -1, -2) for weight in weights))
    retreat = partial(_retreat, options, transposed)
    start = _Carried(c=dlast.c, n=dlast.n, g=g, h=dlast.h)
    du, d = _over_steps(options, arguments, retreat, start, values, reverse=True)
    letters = "snbh,snbk->nhk" if arguments.cu_seqlens is None else "ntah,ntak->nhk"
    dweights = (
        einsum(letters, before.h, d_x, precision=options.precision).astype(weight.dtype)
        for d_x, weight in zip(du, arguments.weights, strict=True)
    )
    dinputs = (_from_steps(arguments, d_x).astype(x.dtype) for d_x, x in zip(du, arguments.inputs, strict=True))
    dm = first.c * d.c + first.n * d.n + d.g
    dinitial = SLSTMState(*(_state_from_heads(arguments, x) for x in (d.c, d.n, dm, d.h)))
    return Gradients(
        inputs=Gates(*dinputs),
        weights=Gates(*dweights),
        initial_state=None if arguments.initial_state is None else dinitial,
    )


def _gates_of_all_steps(
    options: Options, arguments: Arguments, inputs: Gates, weights: Gates, before: SLSTMState
) -> _Step:
    """The gates by step; a product with the weights has the heads first."""
    if arguments.cu_seqlens is not None:
        return _gates(options, inputs, weights, before)[0]
    swapped = [jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), each) for each in (inputs, before)]
    step, _ = _gates(options, swapped[0], weights, swapped[1])
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), step)


def _over_steps(
    options: Options,
    arguments: Arguments,
    step: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """The results by step, and the final carry of each sequence."""
    if arguments.cu_seqlens is None:
        last, results = jax.lax.scan(step, carry, xs, reverse=reverse)
        return results, last
    if arguments.B == 0 or arguments.inputs.z.shape[0] == 0:
        T = arguments.inputs.z.shape[0]
        one = jax.tree.map(lambda x: jnp.zeros((x.shape[0], 1, *x.shape[2:]), x.dtype), xs)
        result = jax.eval_shape(step, carry, one)[1]
        empty = jax.tree.map(
            lambda x: vary_like(jnp.zeros((x.shape[0], T, *x.shape[2:]), x.dtype), jax.tree.leaves(carry)[0]), result
        )
        return empty, jax.tree.map(jnp.copy, carry)
    return over_steps(step, carry, xs, arguments.cu_seqlens, options.together, reverse=reverse)


def _weights(arguments: Arguments) -> Gates:
    dtype = accumulation(arguments.inputs.z)
    return Gates(*(weight.astype(dtype) for weight in arguments.weights))


def _by_step(arguments: Arguments) -> Gates:
    dtype = accumulation(arguments.inputs.z)
    return Gates(*(_steps_of(arguments, x.astype(dtype)) for x in arguments.inputs))


def _steps_of(arguments: Arguments, x: jax.Array) -> jax.Array:
    """``(B, S, N, H)`` → ``(S, N, B, H)``; packed ``(T, N, H)`` → ``(N, T, 1, H)``."""
    return jnp.transpose(x, (1, 2, 0, 3)) if arguments.cu_seqlens is None else jnp.moveaxis(x, 1, 0)[:, :, None]


def _from_steps(arguments: Arguments, x: jax.Array) -> jax.Array:
    """Inverse of `_steps_of`."""
    return jnp.transpose(x, (2, 0, 1, 3)) if arguments.cu_seqlens is None else jnp.moveaxis(x[:, :, 0], 0, 1)


def _state_by_head(arguments: Arguments, x: jax.Array) -> jax.Array:
    """``(B, N, H)`` → ``(N, B, H)``; packed ``(N, B, 1, H)``."""
    x = jnp.moveaxis(x, 0, 1)
    return x if arguments.cu_seqlens is None else x[:, :, None]


def _state_from_heads(arguments: Arguments, x: jax.Array) -> jax.Array:
    """Inverse of `_state_by_head`."""
    return jnp.moveaxis(x if arguments.cu_seqlens is None else x[:, :, 0], 0, 1)


def _initial(arguments: Arguments) -> SLSTMState:
    """The initial state by head."""
    z = arguments.inputs.z
    if arguments.initial_state is not None:
        return SLSTMState(*(_state_by_head(arguments, part) for part in arguments.initial_state))
    shape = (arguments.B, *z.shape[-2:])
    zeros = _state_by_head(arguments, vary_like(jnp.zeros(shape, accumulation(z)), z))
    return SLSTMState(zeros, zeros, zeros - jnp.inf, zeros)


def _before(arguments: Arguments, after: jax.Array, first: jax.Array) -> jax.Array:
    """The state before each step, given the state after each step."""
    if arguments.cu_seqlens is None:
        return jnp.concatenate([first[None], after])[:-1]
    T = after.shape[1]
    owner = sequence_of_tokens(arguments.cu_seqlens, T)
    begins = indices(T) == arguments.cu_seqlens[owner]
    return jnp.where(begins[:, None, None], first[:, owner], jnp.roll(after, 1, axis=1))
