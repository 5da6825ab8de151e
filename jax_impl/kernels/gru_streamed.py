"""GRU steps with weights streamed from L2, for heads whose weights do not fit in shared memory.

A block carries its lanes over all steps. A step is three *phases*, each the product of one matrix with what the phase
before wrote: as operand, bfloat16 terms in one of two buffers. Phases go through the tiles of units; blocks of the
weights come by TMA, one after the other through all phases and steps, so that the stream never waits for a step to end.
State and forget gate stay in shared memory in float32.

Forwards the phases are f, r and z; both gates read h, and the candidate reads r⊙h while h' takes the place of h.
Backwards they are W_f, W and W_r, whose operands dx_f, dx and dx_r take turns in the buffers; the last phase of a step
goes on to dx_f of the step before.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jax_impl.kernels._pallas import L, launch, pallas, store, tile
from jax_impl.kernels.gru_parts import FLOAT, HALF, SLACK, Cut, accumulate, clipped, flat, load, put, sigmoid


def memory(c: Cut, value_bytes: int, gradient: bool) -> int:
    """Bytes of shared memory of a block, rounded up; ``value_bytes`` those of an element of what is streamed."""
    column = L * c.lanes
    block = c.terms * L * c.wide * L * 2
    stage = block + column * value_bytes * (2 if gradient else 1)
    kept = c.tiles * column * (2 * c.terms * 2 + (1 if gradient else 2) * 4)
    return kept + c.stages * stage + SLACK


def forward(c: Cut, inputs: jax.Array, weights: jax.Array, h0: jax.Array, remaining: jax.Array) -> jax.Array:
    """The state after every step, ``(S, W, U, 64, R)`` float32. Arguments as in `gru.forward`."""
    p = pallas()
    pl, plgpu = p.pl, p.plgpu
    S, W, _, U, _, R = inputs.shape

    def gru_forward_streamed(inputs_all, weights_all, h0_all, remaining_all, y_all, operand, state, forget):
        at, lanes = jax.lax.axis_index("weight"), pl.ds(jax.lax.axis_index("lanes") * c.lanes, c.lanes)
        left = load(remaining_all.at[:, lanes])

        def begin(u, _):
            h = load(h0_all.at[at, u, :, lanes])
            state[u] = h
            put(c, h, operand.at[0, u])

        jax.lax.fori_loop(0, U, begin, None)
        plgpu.commit_smem()

        def finish(step, phase, u, total, x):
            @pl.when(phase == 0)
            def _():
                forget[u] = sigmoid(total + load(x).astype(FLOAT))

            @pl.when(phase == 1)
            def _():
                put(c, sigmoid(total + load(x).astype(FLOAT)) * load(state.at[u]), operand.at[1, u])

            @pl.when(phase == 2)
            def _():
                z, f, h = jnp.tanh(total + load(x).astype(FLOAT)), load(forget.at[u]), load(state.at[u])
                h = jnp.where(left > step, f * h + (1 - f) * z, h)
                state[u] = h
                put(c, h, operand.at[0, u])
                store(y_all.at[step, at, u, :, lanes], h)

        of_step = plgpu.BlockSpec(
            (None, L, c.lanes),
            lambda step, phase, u, _: (((step * W + at) * 3 + phase) * U + u, 0, jax.lax.axis_index("lanes")),
        )
        _walk(c, S, at, of_step, operand, lambda _, phase: phase // 2, finish)(weights_all, inputs_all)

    (y,) = launch(
        gru_forward_streamed,
        c.interpret,
        out_type=[jax.ShapeDtypeStruct((S, W, U, L, R), FLOAT)],
        scratch_types=[*_scratch(c), plgpu.SMEM((U, L, c.lanes), FLOAT)],
        grid=(W, R // c.lanes),
        grid_names=("weight", "lanes"),
    )(flat(inputs), weights, h0, remaining)
    return y


def backward(
    c: Cut,
    bound: float | None,
    factors: jax.Array,
    weights: jax.Array,
    dlast: jax.Array,
    remaining: jax.Array,
    dtype: Any,
) -> tuple[jax.Array, jax.Array]:
    """Gradients of the inputs, ``(S, W, 3, U, 64, R)``, and of the first state. Arguments as in `gru.backward`."""
    p = pallas()
    pl, plgpu = p.pl, p.plgpu
    S, W, _, U, _, R = factors.shape

    def gru_backward_streamed(
        factors_all, weights_all, dlast_all, remaining_all, dinputs_all, dfirst_all, operand, state
    ):
        at, lanes = jax.lax.axis_index("weight"), pl.ds(jax.lax.axis_index("lanes") * c.lanes, c.lanes)
        left = load(remaining_all.at[:, lanes])

        def enter(step, u, carried, dy, a_f, to):
            """Take what reaches the state after a step; its forget gate's gradient is the next operand."""
            dh = jnp.where(left > step, dy + clipped(carried, bound), carried)
            state[u] = dh
            pass_on(step, 1, u, dh * a_f, to)

        def pass_on(step, kind, u, gradient, to):
            store(dinputs_all.at[step, at, kind, u, :, lanes], gradient.astype(dtype))
            put(c, gradient, operand.at[to, u])

        def begin(u, _):
            pair = factors_all.at[(((S - 1) * W + at) * 3 + 2) * U + u]
            dy, a_f = (load(pair.at[pl.ds(n * L, L), lanes]) for n in (0, 1))
            enter(S - 1, u, load(dlast_all.at[at, u, :, lanes]), dy, a_f, 0)

        jax.lax.fori_loop(0, U, begin, None)
        plgpu.commit_smem()

        def reads(number, phase):
            return jax.lax.rem(3 * number + phase, jnp.int32(2))

        def finish(number, phase, u, total, factor):
            step, to = S - 1 - number, 1 - reads(number, phase)
            dh, first, second = load(state.at[u]), load(factor.at[pl.ds(0, L)]), load(factor.at[pl.ds(L, L)])

            @pl.when(phase == 0)
            def _():
                state[u] = jnp.where(left > step, dh * second + total, dh)
                pass_on(step, 0, u, dh * first, to)

            @pl.when(phase == 1)
            def _():
                state[u] = jnp.where(left > step, dh + total * second, dh)
                pass_on(step, 2, u, total * first, to)

            @pl.when(phase == 2)
            def _():
                moved = jnp.where(left > step, dh + total, dh)

                @pl.when(step == 0)
                def _():
                    store(dfirst_all.at[at, u, :, lanes], moved)

                @pl.when(step > 0)
                def _():
                    enter(step - 1, u, moved, first, second, to)

        def of_step(number, phase, u, _):
            step = jnp.maximum(S - 1 - number - phase // 2, 0)
            return ((step * W + at) * 3 + phase) * U + u, 0, jax.lax.axis_index("lanes")

        spec = plgpu.BlockSpec((None, 2 * L, c.lanes), of_step)
        _walk(c, S, at, spec, operand, reads, finish)(weights_all, factors_all)

    dinputs, dfirst = launch(
        gru_backward_streamed,
        c.interpret,
        out_type=[jax.ShapeDtypeStruct((S, W, 3, U, L, R), dtype), jax.ShapeDtypeStruct((W, U, L, R), FLOAT)],
        scratch_types=_scratch(c),
        grid=(W, R // c.lanes),
        grid_names=("weight", "lanes"),
    )(flat(factors), weights, dlast, remaining)
    return dinputs, dfirst


def _scratch(c: Cut) -> list[Any]:
    """Both operands, ``(2, U, terms, lanes, 64)``, and the state."""
    return [tile((2, c.tiles, c.terms, c.lanes, L), HALF), pallas().plgpu.SMEM((c.tiles, L, c.lanes), FLOAT)]


def _walk(c: Cut, S: int, at: Any, of_step: Any, operand: Any, reads: Callable, finish: Callable) -> Callable:
    """The pipeline over steps, phases, tiles of units and blocks of inputs.

    Args:
        of_step: how what a tile of a phase reads is cut.
        reads: ``step, phase`` → the buffer that the phase reads.
        finish: takes step, phase, tile, the product and what `of_step` brought.
    """
    p = pallas()
    pl, plgpu = p.pl, p.plgpu
    blocks = c.tiles // c.wide

    def body(indices, weight, streamed, total):
        step, phase, u, block = indices

        def compute(acc):
            accumulate(c, acc, weight, 0, operand.at[reads(step, phase)], block * c.wide)
            return acc[...]

        product = pl.run_scoped(compute, plgpu.ACC((L, c.lanes), FLOAT))
        total = product + jnp.where(jnp.broadcast_to(block > 0, total.shape), total, 0)

        @pl.when(block == blocks - 1)
        def _():
            finish(step, phase, u, total, streamed)
            plgpu.commit_smem()

        return total

    swizzled = (plgpu.TilingTransform((8, L)), plgpu.SwizzleTransform(128))
    of_weights = plgpu.BlockSpec(
        (c.terms * L, c.wide * L),
        lambda _, phase, u, block: (((at * 3 + phase) * c.tiles + u) * blocks + block, 0),
        transforms=swizzled,
    )
    zero = plgpu.layout_cast(jnp.zeros((L, c.lanes), FLOAT), plgpu.Layout.WGMMA)
    return plgpu.emit_pipeline(
        body,
        grid=(S, 3, c.tiles, blocks),
        in_specs=[of_weights, of_step],
        max_concurrent_steps=c.stages,
        init_carry=zero,
    )
