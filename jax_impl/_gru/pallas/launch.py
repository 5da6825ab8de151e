"""The GRU by Pallas kernels: lays out heads in tiles of 64 units and cuts packed sequences into blocks of steps.

It computes the same function and the same gradient as `composed`, which XLA compiles. Arrays are passed by step
(`heads`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jax_impl._arrays import accumulation
from jax_impl._gru import composed
from jax_impl._gru.arguments import Arguments, Gradients, Inputs, Residuals, Result, Weights
from jax_impl._gru.heads import (
    from_steps,
    gradients_of,
    initial_state,
    inputs_by_step,
    state_by_group,
    state_from_groups,
    weights_by_group,
)
from jax_impl._gru.pallas import passes
from jax_impl._gru.pallas.parts import Plan
from jax_impl._gru.steps import Options, StepValues, values_of_all_steps, weight_gradients
from jax_impl._handwritten_gradient import without_second_derivative
from jax_impl._mesh_axes import vary_like
from jax_impl._pallas import FLOAT, L

BLOCK = 64
"""Number of steps of packed sequences per launch, unless there are fewer tokens."""


def forward(options: Options, arguments: Arguments) -> tuple[Result, Residuals]:
    """Every state, in the dtype of the inputs, and the final state."""
    if not arguments.x.size:
        # There is nothing to launch a kernel for.
        return composed.forward(options, arguments)
    dtype = arguments.x.dtype
    h0 = state_by_group(initial_state(arguments), arguments)
    inputs = Inputs(*(x.astype(dtype) for x in inputs_by_step(arguments)))
    y, last = run_forward(options.interpret, inputs, weights_by_group(arguments, dtype), h0, arguments.cu_seqlens)
    y = from_steps(y, arguments)
    result = Result(output=y.astype(dtype), state=state_from_groups(last))
    return result, Residuals(arguments=arguments, y=y)


def backward(options: Options, residuals: Residuals, cotangents: Result) -> Gradients:
    """Gradients, by the equations of ``gru_backward`` in the reference."""
    arguments, y = residuals.arguments, residuals.y
    if not arguments.x.size:
        return composed.backward(options, residuals, cotangents)
    dy, dtype = cotangents.output.astype(y.dtype), arguments.x.dtype
    weights = weights_by_group(arguments, accumulation(arguments.x))
    dh = state_by_group(cotangents.state, arguments)
    h0 = state_by_group(initial_state(arguments), arguments)
    values = values_of_all_steps(options, arguments, inputs_by_step(arguments), weights, y=y, h0=h0, dy=dy)
    narrow = values._replace(dy=values.dy.astype(dtype))
    dinputs, dh0 = run_backward(
        options.interpret, options.bound, narrow, weights_by_group(arguments, dtype), dh, arguments.cu_seqlens
    )
    letters = "swbgh,swbgk->whk" if arguments.cu_seqlens is None else "wtgh,wtgk->whk"
    dweights = weight_gradients(options, letters, values, dinputs)
    return gradients_of(arguments, Inputs(*(from_steps(d, arguments) for d in dinputs)), dweights, dh0)


@without_second_derivative("gru")
def run_forward(
    interpret: bool, inputs: Inputs, weights: Weights, h0: jax.Array, cu_seqlens: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """The state after every step, by step, and the final state, in float32.

    Args:
        inputs: by step, in the dtype of the values.
        weights: ``(groups, H, H)`` each, in the dtype of the values.
        h0: by group.
    """
    plan = _plan(weights, h0, False, interpret)
    square = jax.tree.map(partial(_square, plan), weights)

    def steps(h: jax.Array, x: Inputs, remaining: jax.Array) -> tuple[jax.Array, jax.Array]:
        tiled = Inputs(*(_tiled(plan, part) for part in x))
        y = passes.forward(plan, tiled, square, _tiled(plan, h), _remaining_by_column(plan, remaining, h))
        y = _untiled(y, x.x)
        return y[-1], y

    if cu_seqlens is None:
        last, y = steps(h0, inputs, jnp.full(h0.shape[1], inputs.x.shape[0]))
    else:
        y = vary_like(jnp.zeros(inputs.x.shape, FLOAT), h0)
        last, y = _over_blocks(steps, h0, inputs, cu_seqlens, results=y)
    return y, last


def run_backward(
    interpret: bool,
    bound: float | None,
    values: StepValues,
    weights: Weights,
    dlast: jax.Array,
    cu_seqlens: jax.Array | None,
) -> tuple[Inputs, jax.Array]:
    """Gradients of the inputs, by step, and of the initial state, in float32.

    Where heads share an input its gradient is a sum, which is rounded once.

    Args:
        values: of every step, by step; states and gates in float32, the output's cotangent in the dtype of the values.
        weights: as in `run_forward`.
        dlast: cotangent of the final state, by group.
    """
    plan = _plan(weights, dlast, True, interpret)
    square = jax.tree.map(partial(_square, plan), weights)

    def steps(dh: jax.Array, x: StepValues, remaining: jax.Array) -> tuple[jax.Array, Inputs]:
        pairs = _factors(x)
        factors = jnp.stack([jnp.concatenate([_tiled(plan, part) for part in pair], axis=-2) for pair in pairs], axis=2)
        left = _remaining_by_column(plan, remaining, dh)
        dx, dfirst = passes.backward(plan, bound, factors, square, _tiled(plan, dh), left)
        return _untiled(dfirst, dh), Inputs(*(_untiled(part, x.h) for part in dx))

    if cu_seqlens is None:
        dh0, dinputs = steps(dlast, values, jnp.full(dlast.shape[1], values.h.shape[0]))
    else:
        zeros = vary_like(jnp.zeros(values.h.shape, FLOAT), dlast)
        results = Inputs(x=zeros, xf=zeros, xr=zeros)
        dh0, dinputs = _over_blocks(steps, dlast, values, cu_seqlens, results=results, reverse=True)
    return dinputs, dh0


def _factors(values: StepValues) -> tuple[tuple[jax.Array, jax.Array], ...]:
    """The pairs (a_z, f), (a_r, r) and (dy, a_f) of `passes.backward`."""
    h, (r, f, z, _), dy = values
    return (
        ((1 - f) * (1 - z * z), f),
        (h * r * (1 - r), r),
        (dy.astype(FLOAT), (h - z) * f * (1 - f)),
    )


def _over_blocks(
    steps: Callable[[jax.Array, Any, jax.Array], tuple[jax.Array, Any]],
    carry: jax.Array,
    xs: Any,
    cu_seqlens: jax.Array,
    results: Any,
    reverse: bool = False,
) -> tuple[jax.Array, Any]:
    """Advance all packed sequences together, one block of steps at a time; return the final carries and the results.

    A sequence that has ended (in reverse: has not begun) waits. No index is out of bounds for any values of
    ``cu_seqlens``.

    Args:
        steps: ``carry, block of xs, steps left in the block → (carry, results)``.
        carry: ``(groups, B, heads, H)``.
        xs: arrays ``(groups, T, heads, H)``.
        results: the arrays that the results of the blocks are written to, like xs, with the structure that `steps`
            returns.
    """
    T = jax.tree.leaves(xs)[0].shape[1]
    length, size = jnp.diff(cu_seqlens), min(BLOCK, T)
    blocks = -(-jnp.max(length) // size)

    def body(number: jax.Array, loop: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        carry, results = loop
        first = (blocks - 1 - number if reverse else number) * size
        position = first + jnp.arange(size)[:, None]
        token = cu_seqlens[:-1] + position
        block = jax.tree.map(lambda x: jnp.moveaxis(jnp.take(x, token, axis=1, mode="clip"), 0, 1), xs)
        carry, of_block = steps(carry, block, jnp.clip(length - first, 0, size))
        place = jnp.where((position < length) & (token >= 0), token, T)
        results = jax.tree.map(
            lambda all, one: all.at[:, place].set(jnp.moveaxis(one, 1, 0), mode="drop"), results, of_block
        )
        return carry, results

    return jax.lax.fori_loop(0, blocks, body, (carry, results))


def _plan(weights: Weights, h: jax.Array, gradient: bool, interpret: bool) -> Plan:
    _, B, heads, H = h.shape
    return passes.plan_for(weights.W.dtype.name, H, B * heads, gradient, interpret)


def _heads_of_a_tile(H: int) -> int:
    return max(1, L // max(H, 1))


def _square(plan: Plan, weight: jax.Array) -> jax.Array:
    """``(groups, H, H)`` → ``(weights, 64·U, 64·U)``, with as many heads as fit along the diagonal of each weight."""
    groups, H, _ = weight.shape
    p, edge = _heads_of_a_tile(H), L * plan.tiles
    weight = jnp.pad(weight, [(0, -groups % p), (0, 0), (0, 0)]).reshape(-1, p, H, H)
    place = jnp.eye(p, dtype=bool)[:, None, :, None]
    diagonal = jnp.where(place, weight[:, :, :, None, :], 0).reshape(-1, p * H, p * H)
    return jnp.pad(diagonal, [(0, 0), (0, edge - p * H), (0, edge - p * H)])


def _tiled(plan: Plan, x: jax.Array) -> jax.Array:
    """``(…, groups, B, heads, H)`` → ``(…, weights, U, 64, columns)``, with columns padded to whole blocks."""
    *before, groups, B, heads, H = x.shape
    p, edge, lead = _heads_of_a_tile(H), L * plan.tiles, [(0, 0)] * len(before)
    x = jnp.swapaxes(x.reshape(*before, groups, B * heads, H), -1, -2)
    x = jnp.pad(x, [*lead, (0, -groups % p), (0, 0), (0, -B * heads % plan.columns)])
    x = x.reshape(*before, -1, p * H, x.shape[-1])
    x = jnp.pad(x, [*lead, (0, 0), (0, edge - p * H), (0, 0)])
    return x.reshape(*before, -1, plan.tiles, L, x.shape[-1])


def _untiled(x: jax.Array, like: jax.Array) -> jax.Array:
    """Inverse of `_tiled`, with the shape of ``like``."""
    *before, groups, B, heads, H = like.shape
    p = _heads_of_a_tile(H)
    x = x.reshape(*before, x.shape[-4], -1, x.shape[-1])[..., : p * H, : B * heads].reshape(*before, -1, H, B * heads)
    return jnp.swapaxes(x[..., :groups, :, :], -1, -2).reshape(like.shape)


def _remaining_by_column(plan: Plan, remaining: jax.Array, h: jax.Array) -> jax.Array:
    """The number of steps left, ``(B,)``, repeated for each column, ``(64, columns)``."""
    steps = jnp.repeat(remaining.astype(jnp.int32), h.shape[2])
    padded = jnp.pad(steps, (0, -steps.size % plan.columns))
    return jnp.broadcast_to(padded, (L, steps.size + -steps.size % plan.columns))
