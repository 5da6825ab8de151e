"""GRU steps with weights streamed from L2, for heads whose weights do not fit in shared memory.

A block carries its columns over all steps. A step has three *phases*. Each is the product of one matrix with the
operand that the phase before wrote, as bfloat16 terms, into one of two buffers. Phases loop over the tiles of units.
Blocks of the weights come by TMA, one after the other through all phases and steps, so that the stream never waits for
a step to end. State and forget gate stay in shared memory in float32.

The forward phases are f, r and z; both gates read h, and the candidate reads r⊙h while h' replaces h. The backward
phases are W_f, W and W_r, whose operands dx_f, dx and dx_r alternate between the buffers; the last phase of a step goes
on to compute dx_f of the step before.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jax_impl._gru.pallas.parts import (
    BACK_CANDIDATE,
    BACK_FORGET,
    BACK_RESET,
    CANDIDATE,
    DX,
    DXF,
    DXR,
    FORGET,
    RESET,
    Plan,
    accumulate,
    clipped,
    flat,
    load,
    put,
    sigmoid,
)
from jax_impl._pallas import FLOAT, HALF, SLACK, L, launch, pallas, store, tile


def memory(plan: Plan, value_bytes: int, gradient: bool) -> int:
    """Bytes of shared memory per block, rounded up; ``value_bytes`` is the size of an element of what is streamed."""
    column = L * plan.columns
    block = plan.terms * L * plan.wide * L * 2
    stage = block + column * value_bytes * (2 if gradient else 1)
    kept = plan.tiles * column * (2 * plan.terms * 2 + (1 if gradient else 2) * 4)
    return kept + plan.stages * stage + SLACK


def forward(plan: Plan, *, inputs: jax.Array, weights: jax.Array, h0: jax.Array, remaining: jax.Array) -> jax.Array:
    """The state after every step, ``(S, weights, U, 64, columns)`` float32.

    Arguments are those of `passes.forward`, with the inputs stacked and the weights as returned by `arranged`.
    """
    p = pallas()
    pl, plgpu = p.pl, p.plgpu
    S, weight_count, _, U, _, columns_all = inputs.shape

    def gru_forward_streamed(block, inputs_all, weights_all, h0_all, remaining_all, y_all, operand, state, forget):
        at, columns = block["weight"], pl.ds(block["columns"] * plan.columns, plan.columns)
        left = load(remaining_all.at[:, columns])

        def begin(u, _):
            h = load(h0_all.at[at, u, :, columns])
            state[u] = h
            put(plan, h, operand.at[0, u])

        jax.lax.fori_loop(0, U, begin, None)
        plgpu.commit_smem()

        def finish(step, phase, u, total, x):
            @pl.when(phase == FORGET)
            def _():
                forget[u] = sigmoid(total + load(x).astype(FLOAT))

            @pl.when(phase == RESET)
            def _():
                put(plan, sigmoid(total + load(x).astype(FLOAT)) * load(state.at[u]), operand.at[1, u])

            @pl.when(phase == CANDIDATE)
            def _():
                z, f, h = jnp.tanh(total + load(x).astype(FLOAT)), load(forget.at[u]), load(state.at[u])
                h = jnp.where(left > step, f * h + (1 - f) * z, h)
                state[u] = h
                put(plan, h, operand.at[0, u])
                store(y_all.at[step, at, u, :, columns], h)

        of_step = plgpu.BlockSpec(
            (None, L, plan.columns),
            lambda step, phase, u, _: (
                ((step * weight_count + at) * 3 + phase) * U + u,
                0,
                block["columns"],
            ),
        )
        _walk(plan, S, at, of_step, operand, lambda _, phase: phase // 2, finish)(weights_all, inputs_all)

    found = launch(
        gru_forward_streamed,
        plan.interpret,
        operands={"inputs_all": flat(inputs), "weights_all": weights, "h0_all": h0, "remaining_all": remaining},
        results={"y_all": jax.ShapeDtypeStruct((S, weight_count, U, L, columns_all), FLOAT)},
        scratch={**_scratch(plan), "forget": plgpu.SMEM((U, L, plan.columns), FLOAT)},
        grid={"weight": weight_count, "columns": columns_all // plan.columns},
    )
    return found["y_all"]


def backward(
    plan: Plan,
    bound: float | None,
    *,
    factors: jax.Array,
    weights: jax.Array,
    dlast: jax.Array,
    remaining: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Gradients of the inputs, ``(S, weights, 3, U, 64, columns)`` float32, and of the initial state.

    Arguments are those of `passes.backward`, with the weights as returned by `arranged`.
    """
    p = pallas()
    pl, plgpu = p.pl, p.plgpu
    S, weight_count, _, U, _, columns_all = factors.shape

    def gru_backward_streamed(
        block, factors_all, weights_all, dlast_all, remaining_all, dinputs_all, dfirst_all, operand, state
    ):
        at, columns = block["weight"], pl.ds(block["columns"] * plan.columns, plan.columns)
        left = load(remaining_all.at[:, columns])

        def enter(step, u, carried, dy, a_f, to):
            """Take the gradient that reaches the state after a step; that of its forget gate is the next operand."""
            dh = jnp.where(left > step, dy + clipped(carried, bound), carried)
            state[u] = dh
            pass_on(step, DXF, u, dh * a_f, to)

        def pass_on(step, kind, u, gradient, to):
            store(dinputs_all.at[step, at, kind, u, :, columns], gradient)
            put(plan, gradient, operand.at[to, u])

        def begin(u, _):
            pair = factors_all.at[(((S - 1) * weight_count + at) * 3 + BACK_RESET) * U + u]
            dy, a_f = (load(pair.at[pl.ds(n * L, L), columns]) for n in (0, 1))
            enter(S - 1, u, load(dlast_all.at[at, u, :, columns]), dy, a_f, 0)

        jax.lax.fori_loop(0, U, begin, None)
        plgpu.commit_smem()

        def reads(number, phase):
            return jax.lax.rem(3 * number + phase, jnp.int32(2))

        def finish(number, phase, u, total, factor):
            step, to = S - 1 - number, 1 - reads(number, phase)
            dh, first, second = load(state.at[u]), load(factor.at[pl.ds(0, L)]), load(factor.at[pl.ds(L, L)])

            @pl.when(phase == BACK_FORGET)
            def _():
                state[u] = jnp.where(left > step, dh * second + total, dh)
                pass_on(step, DX, u, dh * first, to)

            @pl.when(phase == BACK_CANDIDATE)
            def _():
                state[u] = jnp.where(left > step, dh + total * second, dh)
                pass_on(step, DXR, u, total * first, to)

            @pl.when(phase == BACK_RESET)
            def _():
                moved = jnp.where(left > step, dh + total, dh)

                @pl.when(step == 0)
                def _():
                    store(dfirst_all.at[at, u, :, columns], moved)

                @pl.when(step > 0)
                def _():
                    enter(step - 1, u, moved, first, second, to)

        def of_step(number, phase, u, _):
            step = jnp.maximum(S - 1 - number - phase // 2, 0)
            return ((step * weight_count + at) * 3 + phase) * U + u, 0, block["columns"]

        spec = plgpu.BlockSpec((None, 2 * L, plan.columns), of_step)
        _walk(plan, S, at, spec, operand, reads, finish)(weights_all, factors_all)

    found = launch(
        gru_backward_streamed,
        plan.interpret,
        operands={
            "factors_all": flat(factors),
            "weights_all": weights,
            "dlast_all": dlast,
            "remaining_all": remaining,
        },
        results={
            "dinputs_all": jax.ShapeDtypeStruct((S, weight_count, 3, U, L, columns_all), FLOAT),
            "dfirst_all": jax.ShapeDtypeStruct((weight_count, U, L, columns_all), FLOAT),
        },
        scratch=_scratch(plan),
        grid={"weight": weight_count, "columns": columns_all // plan.columns},
    )
    return found["dinputs_all"], found["dfirst_all"]


def _scratch(plan: Plan) -> dict[str, Any]:
    """Both operands, ``(2, U, terms, columns, 64)``, and the state."""
    return {
        "operand": tile((2, plan.tiles, plan.terms, plan.columns, L), HALF),
        "state": pallas().plgpu.SMEM((plan.tiles, L, plan.columns), FLOAT),
    }


def _walk(plan: Plan, S: int, at: Any, of_step: Any, operand: Any, reads: Callable, finish: Callable) -> Callable:
    """The pipeline over steps, phases, tiles of units and blocks of inputs.

    Args:
        of_step: how the values that a tile of a phase reads are cut.
        reads: ``step, phase`` → the buffer that the phase reads.
        finish: takes step, phase, tile, the product and the values of `of_step`.
    """
    p = pallas()
    pl, plgpu = p.pl, p.plgpu
    blocks = plan.tiles // plan.wide

    def body(indices, weight, streamed, total):
        step, phase, u, block = indices

        def compute(acc):
            accumulate(plan, acc, weight, 0, operand.at[reads(step, phase)], block * plan.wide)
            return acc[...]

        product = pl.run_scoped(compute, plgpu.ACC((L, plan.columns), FLOAT))
        total = product + jnp.where(jnp.broadcast_to(block > 0, total.shape), total, 0)

        @pl.when(block == blocks - 1)
        def _():
            finish(step, phase, u, total, streamed)
            plgpu.commit_smem()

        return total

    swizzled = (plgpu.TilingTransform((8, L)), plgpu.SwizzleTransform(128))
    of_weights = plgpu.BlockSpec(
        (plan.terms * L, plan.wide * L),
        lambda _, phase, u, block: (((at * 3 + phase) * plan.tiles + u) * blocks + block, 0),
        transforms=swizzled,
    )
    zero = plgpu.layout_cast(jnp.zeros((L, plan.columns), FLOAT), plgpu.Layout.WGMMA)
    return plgpu.emit_pipeline(
        body,
        grid=(S, 3, plan.tiles, blocks),
        in_specs=[of_weights, of_step],
        max_concurrent_steps=plan.stages,
        init_carry=zero,
    )
