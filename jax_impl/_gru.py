"""Multi-head GRU with the reset gate inside the recurrent product.

Source: Cho et al. 2014, arXiv:1406.1078, equations 5 to 8, with the update gate written as a forget gate; heads, their
grouping and the clipping of the state's gradient as in the xma layer of that name. Per head, row vectors::

    r = σ(h W_r + x_r)        f = σ(h W_f + x_f)        z = tanh((r⊙h) W + x)        h' = f⊙h + (1−f)⊙z

Inside, what shares a weight lies together: heads are split in W groups of G, each with one weight of its own, so that a
step is W products of ``(B·G, H)`` by ``(H, H)``. Arrays are ``(B, S, W, G, H)`` where XLA computes dense sequences
(`_gru_xla`), packed ``(W, T, G, H)``, and for kernels ``(S, W, B, G, H)``.
"""

from collections.abc import Callable
from functools import partial
from math import lcm
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl import _gru_pallas, _gru_xla
from jax_impl._backends import KernelBackend, choose, interpret, request, request_builder
from jax_impl._framework import (
    JAX,
    accumulation,
    first_order,
    matmul_precision,
    own_gradient,
    planned_once,
    vary_alike,
    vary_like,
)
from jax_impl._gru_xla import Weights, gates, side_by_side, step_back
from jax_impl._packing import sequence_of
from reference.arguments import check_gru
from reference.backends import Request


def gru(
    input: jax.Array,
    weight: jax.Array,
    forget_input: jax.Array,
    forget_weight: jax.Array,
    reset_input: jax.Array,
    reset_weight: jax.Array,
    input_state: jax.Array | None = None,
    gradient_clipping: float | None = None,
    cu_seqlens: jax.Array | None = None,
    max_seqlen: int | None = None,
    *,
    kernel_backend: KernelBackend | str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The GRU over whole sequences, dense or packed (the equations stand at the head of this module).

    ``N``, the number of heads, is the largest of the six head counts; each divides it, and head n reads head
    ``n // (N/Nx)`` of an input with Nx heads, and likewise of a weight. Differentiable once, in reverse mode, with
    respect to every floating argument; gates are computed again on the way back, and the weights' gradients are
    products over many steps. State and state gradient are in the accumulation dtype: float64 beside float64 values,
    else float32.

    Args:
        input: x, ``(B, S, Nx, H)``, or ``(T, Nx, H)`` with `cu_seqlens`.
        weight: W, ``(Nw, H, H)``.
        forget_input: x_f, ``(B, S, Nxf, H)`` or ``(T, Nxf, H)``.
        forget_weight: W_f, ``(Nwf, H, H)``.
        reset_input: x_r, ``(B, S, Nxr, H)`` or ``(T, Nxr, H)``.
        reset_weight: W_r, ``(Nwr, H, H)``.
        input_state: h before the first step, ``(B, N, H)`` in the accumulation dtype; None is zeros.
        gradient_clipping: c clips what reaches h_t from step t+1 (at the last step: from the output state's cotangent)
            to ±|c|, element by element, before the output's own cotangent is added; what reaches the initial state is
            not clipped. No effect on the value.
        cu_seqlens: ``(B+1,)``, where each packed sequence starts and ends; may be traced.
        max_seqlen: a length that no sequence exceeds; checked where `cu_seqlens` can be read, never needed.
        kernel_backend: None, or the backend to take.

    Returns:
        ``(output, output_state)``: every h', ``(B, S, N, H)`` or ``(T, N, H)``, in the dtype of `input`, and the last
        of each sequence, ``(B, N, H)``, in the accumulation dtype; an empty sequence's is its initial state.

    Raises:
        TypeError: an argument is no array of a floating dtype, or dtypes differ.
        ValueError: shapes disagree, a head count does not divide N, `cu_seqlens` is no packing, or `kernel_backend`
            cannot serve the call.
        NotImplementedError: a second derivative is taken.
    """
    arrays = Arrays(input, weight, forget_input, forget_weight, reset_input, reset_weight)
    plan = _plan if cu_seqlens is None else _plan_by_values
    options = plan(arrays, input_state, gradient_clipping, cu_seqlens, max_seqlen, kernel_backend, matmul_precision())
    return _run(options, arrays, input_state, None if cu_seqlens is None else cu_seqlens.astype("int32"))


@request_builder("gru")
def _request(
    input: Any,
    weight: Any,
    forget_input: Any,
    forget_weight: Any,
    reset_input: Any,
    reset_weight: Any,
    input_state: Any = None,
    gradient_clipping: Any = None,
    cu_seqlens: Any = None,
    max_seqlen: Any = None,
) -> Request:
    arrays = (input, weight, forget_input, forget_weight, reset_input, reset_weight)
    call = check_gru(JAX, *arrays, input_state, gradient_clipping, cu_seqlens, max_seqlen)
    return request(call, input, cu_seqlens is not None)


class Options(NamedTuple):
    """The clipping bound (None for none) and the precision of products.

    `interpret` is None where XLA computes; else Pallas kernels do, and it says whether under their interpreter.
    """

    bound: float | None
    precision: str
    interpret: bool | None = None


class Arrays(NamedTuple):
    """The six arrays of a call, inputs beside their weights."""

    x: jax.Array
    W: jax.Array
    xf: jax.Array
    Wf: jax.Array
    xr: jax.Array
    Wr: jax.Array


def _plan_by_values(
    arrays: Arrays, input_state: Any, clipping: Any, cu_seqlens: Any, max_seqlen: Any, backend: Any, precision: str
) -> Options:
    """The options of a legal call; raises where it is not."""
    asked = _request(*arrays, input_state, clipping, cu_seqlens, max_seqlen)
    bound = None if clipping is None else abs(float(clipping))
    return Options(bound, precision, interpret(asked, choose(asked, backend)))


_plan = planned_once(_plan_by_values)


@partial(jax.jit, static_argnums=0)
def _run(options: Options, arrays: Arrays, h0: jax.Array | None, cu_seqlens: jax.Array | None) -> Any:
    arrays, h0, cu_seqlens = vary_alike((arrays, h0, cu_seqlens))
    if cu_seqlens is not None and (cu_seqlens.shape[0] == 1 or arrays.x.shape[0] == 0):
        # No sequence, or none with a step.
        N, H = _heads(arrays), arrays.x.shape[-1]
        y = vary_like(jnp.zeros((arrays.x.shape[0], N, H), arrays.x.dtype), arrays.x)
        return y, jnp.copy(_or_zeros(h0, arrays, cu_seqlens.shape[0] - 1))
    return _gru(options, arrays, h0, cu_seqlens)


@own_gradient("gru")
def _gru(
    options: Options, arrays: Arrays, h0: jax.Array | None, cu_seqlens: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    y, last = _compute(options, arrays, h0, cu_seqlens)
    return y.astype(arrays.x.dtype), last


def _forward(options: Options, arrays: Arrays, h0: Any, cu_seqlens: Any) -> tuple[tuple[jax.Array, jax.Array], tuple]:
    y, last = _compute(options, arrays, h0, cu_seqlens)
    return (y.astype(arrays.x.dtype), last), (arrays, h0, cu_seqlens, y)


def _compute(options: Options, arrays: Arrays, h0: Any, cu_seqlens: Any) -> tuple[jax.Array, jax.Array]:
    """Output and final state, both in the accumulation dtype."""
    weights, h0 = _weights(arrays), _lanes(_initial(arrays, h0, cu_seqlens), arrays)
    dot = partial(_dot, options)
    if _by_kernels(options, arrays):
        inputs = _narrow(arrays, _inputs(arrays, cu_seqlens))
        y, last = _gru_pallas.forward(options.interpret, inputs, _kernel_weights(arrays), h0, cu_seqlens)
        return _tokens(y, cu_seqlens), _heads_last(last)
    if cu_seqlens is None:
        y, last = _gru_xla.forward(dot, tuple(_grouped(x, arrays) for x in _of_all_heads(arrays)), weights, h0)
        return _ungrouped(y), _heads_last(last)
    both = side_by_side(weights)

    def step(h: jax.Array, x: tuple) -> jax.Array:
        _, f, z = gates(dot, h, x, both)
        return f * h + (1 - f) * z

    y, last = _over_packed(step, h0, _inputs(arrays, cu_seqlens), cu_seqlens)
    return _tokens(y, cu_seqlens), _heads_last(last)


@first_order("gru")
def _gradient(options: Options, saved: tuple, cotangents: tuple) -> tuple[Arrays, jax.Array | None]:
    """Gradients by the equations of the reference's ``gru_backward``."""
    arrays, h0, cu_seqlens, y = saved
    dy, dlast = cotangents
    dot, dy = partial(_dot, options), dy.astype(y.dtype)
    weights, dh = _weights(arrays), _lanes(dlast, arrays)
    first = _lanes(_initial(arrays, h0, cu_seqlens), arrays)
    if cu_seqlens is None and not _by_kernels(options, arrays):
        xs = tuple(_grouped(x, arrays) for x in (*_of_all_heads(arrays), y))
        dinputs, dweights, dh0 = _gru_xla.backward(dot, options.bound, xs, weights, first, _grouped(dy, arrays), dh)
        dinputs = tuple(map(_ungrouped, dinputs))
    else:
        h = _before(_stepwise(y, arrays, cu_seqlens), first, cu_seqlens)
        r, f, z = _gates_of_all(options, h, _inputs(arrays, cu_seqlens), weights)
        xs = (h, r, f, z, _stepwise(dy, arrays, cu_seqlens))
        if cu_seqlens is None or _by_kernels(options, arrays):
            saved, by = (*xs[:4], *_narrow(arrays, xs[4:])), _kernel_weights(arrays)
            dinputs, dh0 = _gru_pallas.backward(bool(options.interpret), options.bound, saved, by, dh, cu_seqlens)
            dinputs = tuple(part.astype(y.dtype) for part in dinputs)
        else:
            transposed = Weights(*(jnp.swapaxes(weight, -1, -2) for weight in weights))
            step = partial(step_back, dot, options.bound, transposed)
            dinputs, dh0 = _over_packed(step, dh, xs, cu_seqlens, reverse=True)
        product = "swbgh,swbgk->whk" if cu_seqlens is None else "wtgh,wtgk->whk"
        dweights = [dot(product, of, by) for of, by in zip((r * h, h, h), dinputs, strict=True)]
        dinputs = tuple(_tokens(d, cu_seqlens) for d in dinputs)

    def reduced(gradient: jax.Array, like: jax.Array, axis: int) -> jax.Array:
        """The gradient summed over the heads that one head served, in its dtype."""
        heads = like.shape[axis]
        shape = (*gradient.shape[:axis], heads, gradient.shape[axis] // heads, *gradient.shape[axis + 1 :])
        return jnp.sum(gradient.reshape(shape), axis=axis + 1).astype(like.dtype)

    dx, dxf, dxr = (
        reduced(d, like, like.ndim - 2) for d, like in zip(dinputs, (arrays.x, arrays.xf, arrays.xr), strict=True)
    )
    dW, dWf, dWr = (reduced(d, like, 0) for d, like in zip(dweights, (arrays.W, arrays.Wf, arrays.Wr), strict=True))
    return Arrays(dx, dW, dxf, dWf, dxr, dWr), None if h0 is None else _heads_last(dh0)


def _backward(options: Options, saved: tuple, cotangents: tuple) -> tuple[Arrays, jax.Array | None, None]:
    return *_gradient(options, saved, cotangents), None


_gru.defvjp(_forward, _backward)


def _gates_of_all(options: Options, h: jax.Array, inputs: tuple, weights: Weights) -> tuple:
    """r, f and z of all steps at once, from the states before each."""
    if h.ndim == 4:
        return gates(partial(_dot, options), h, inputs, side_by_side(weights))
    h, x, xf, xr = (jnp.moveaxis(part, 0, 1) for part in (h, *inputs))
    found = gates(partial(_dot, options), h, (x, xf, xr), side_by_side(weights))
    return tuple(jnp.moveaxis(part, 1, 0) for part in found)


def _over_packed(step: Callable, carry: jax.Array, xs: Any, cu_seqlens: jax.Array, reverse: bool = False) -> Any:
    """One loop over steps with a lane per sequence: ``(results by token, carry of each sequence)``.

    Lanes whose sequence is over (reversed: has not begun) keep their carry. Whatever ``cu_seqlens`` holds, no index is
    out of bounds.

    Args:
        step: ``carry, x → (carry, results)``; forwards the carry is itself the result.
        carry: ``(W, B, G, H)``.
        xs: arrays by token, ``(W, T, G, H)``.
    """
    T = jax.tree.leaves(xs)[0].shape[1]
    length = jnp.diff(cu_seqlens)
    longest = jnp.max(length)

    def body(t: jax.Array, loop: tuple) -> tuple:
        carry, results = loop
        position = longest - 1 - t if reverse else t
        token = cu_seqlens[:-1] + position
        active = position < length
        x = jax.tree.map(lambda x: jnp.take(x, token, axis=1, mode="clip"), xs)
        moved = step(carry, x)
        moved, result = moved if reverse else (moved, moved)
        place = jnp.where(active, token, T)
        results = jax.tree.map(lambda all, one: all.at[:, place].set(one, mode="drop"), results, result)
        return jnp.where(active[:, None, None], moved, carry), results

    blank = vary_like(jnp.zeros((carry.shape[0], T, *carry.shape[2:]), carry.dtype), carry)
    carry, results = jax.lax.fori_loop(0, longest, body, (carry, (blank,) * 3 if reverse else blank))
    return results, carry


def _before(y: jax.Array, h0: jax.Array, cu_seqlens: jax.Array | None) -> jax.Array:
    """The state before each step, given those after."""
    if cu_seqlens is None:
        return jnp.concatenate([h0[None], y])[:-1]
    T = y.shape[1]
    owner = sequence_of(cu_seqlens, T)
    begins = jnp.arange(T) == cu_seqlens[owner]
    return jnp.where(begins[:, None, None], h0[:, owner], jnp.roll(y, 1, axis=1))


def _by_kernels(options: Options, arrays: Arrays) -> bool:
    """Whether Pallas kernels compute the loop; one without a step or a lane is nobody's work."""
    return options.interpret is not None and arrays.x.size > 0


def _narrow(arrays: Arrays, xs: tuple) -> tuple:
    return tuple(x.astype(arrays.x.dtype) for x in xs)


def _kernel_weights(arrays: Arrays) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The weights of the W groups in the values' dtype."""
    groups = _groups(arrays)
    W, Wf, Wr = (jnp.repeat(w, groups // w.shape[0], axis=0) for w in (arrays.W, arrays.Wf, arrays.Wr))
    return W, Wf, Wr


def _heads(arrays: Arrays) -> int:
    return max(array.shape[axis] for array, axis in zip(arrays, (-2, 0) * 3, strict=True))


def _groups(arrays: Arrays) -> int:
    """W: the fewest groups of heads such that each has one weight of every kind."""
    return lcm(arrays.W.shape[0], arrays.Wf.shape[0], arrays.Wr.shape[0])


def _weights(arrays: Arrays) -> Weights:
    groups, dtype = _groups(arrays), accumulation(arrays.x)
    return Weights(
        *(jnp.repeat(w.astype(dtype), groups // w.shape[0], axis=0) for w in (arrays.W, arrays.Wf, arrays.Wr))
    )


def _of_all_heads(arrays: Arrays) -> tuple[jax.Array, ...]:
    """The three inputs with all heads, in the accumulation dtype."""
    N, dtype = _heads(arrays), accumulation(arrays.x)
    return tuple(jnp.repeat(x.astype(dtype), N // x.shape[-2], axis=-2) for x in (arrays.x, arrays.xf, arrays.xr))


def _inputs(arrays: Arrays, cu_seqlens: jax.Array | None) -> tuple[jax.Array, ...]:
    """The same, in the layout of the packed loop or of the kernels."""
    return tuple(_stepwise(x, arrays, cu_seqlens) for x in _of_all_heads(arrays))


def _grouped(x: jax.Array, arrays: Arrays) -> jax.Array:
    """``(…, N, H)`` → ``(…, W, G, H)``."""
    W = _groups(arrays)
    return x.reshape(*x.shape[:-2], W, x.shape[-2] // W, x.shape[-1])


def _ungrouped(x: jax.Array) -> jax.Array:
    """Inverse of `_grouped`."""
    return x.reshape(*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1])


def _stepwise(x: jax.Array, arrays: Arrays, cu_seqlens: jax.Array | None) -> jax.Array:
    """``(B, S, N, H)`` → ``(S, W, B, G, H)``, or ``(T, N, H)`` → ``(W, T, G, H)``."""
    x = _grouped(x, arrays)
    return jnp.moveaxis(x, 1, 0) if cu_seqlens is not None else jnp.transpose(x, (1, 2, 0, 3, 4))


def _tokens(x: jax.Array, cu_seqlens: jax.Array | None) -> jax.Array:
    """Inverse of `_stepwise`."""
    x = jnp.moveaxis(x, 0, 1) if cu_seqlens is not None else jnp.transpose(x, (2, 0, 1, 3, 4))
    return _ungrouped(x)


def _lanes(h: jax.Array, arrays: Arrays) -> jax.Array:
    """A state ``(B, N, H)`` → ``(W, B, G, H)``."""
    return jnp.moveaxis(_grouped(h, arrays), 1, 0)


def _heads_last(h: jax.Array) -> jax.Array:
    """Inverse of `_lanes`."""
    W, B, G, H = h.shape
    return jnp.moveaxis(h, 0, 1).reshape(B, W * G, H)


def _initial(arrays: Arrays, h0: jax.Array | None, cu_seqlens: jax.Array | None) -> jax.Array:
    return _or_zeros(h0, arrays, arrays.x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1)


def _or_zeros(h0: jax.Array | None, arrays: Arrays, B: int) -> jax.Array:
    if h0 is not None:
        return h0
    return vary_like(jnp.zeros((B, _heads(arrays), arrays.x.shape[-1]), accumulation(arrays.x)), arrays.x)


def _dot(options: Options, letters: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum(letters, x, y, precision=options.precision, preferred_element_type=x.dtype)
