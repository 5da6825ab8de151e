"""GRU steps with the weights in shared memory, for heads of up to 64 units, or 128 if their terms fit.

A block carries its columns over all steps, with the state in registers. A forward step is two products in sequence, r
and z, with the product of f running at the same time. A backward step is also two, dx Wᵀ and dx_r W_rᵀ, with dx_f W_fᵀ
at the same time. TMA fetches the values that the next steps read.

The warps of a block synchronise twice per step, each time after operands have been written (`commit_smem`). That is
sufficient for these reasons:

- Shared memory is either written by TMA and read by the warps, or written by the warps and read by wgmma.
- Every operand of a step has its own buffer. An operand that is written before the first synchronisation, and whose
  product is waited for after the second, alternates between two buffers. Between a warp's write and the last product
  that read the same buffer there is therefore another synchronisation, which no warp reaches before it has waited for
  that product.
- A tile that TMA fetched is read before the first synchronisation of its step and overwritten after the last one.
"""

from collections.abc import Sequence
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
    as_result,
    clipped,
    flat,
    load,
    put,
    sigmoid,
)
from jax_impl._pallas import FLOAT, HALF, SLACK, L, launch, pallas, store, tile

OPERANDS = {False: 3, True: 4}
"""Number of operand buffers: forward (h twice, r⊙h) and backward (dx_f twice, dx, dx_r)."""


def memory(plan: Plan, value_bytes: int, gradient: bool) -> int:
    """Bytes of shared memory per block, rounded up; ``value_bytes`` is the size of an element of what is streamed."""
    column = L * plan.columns
    weights = 3 * plan.tiles**2 * plan.terms * L * L * 2
    operands = OPERANDS[gradient] * plan.tiles * plan.terms * column * 2
    stage = 3 * plan.tiles * column * value_bytes * (2 if gradient else 1)
    return weights + operands + plan.stages * stage + SLACK


def forward(plan: Plan, *, inputs: jax.Array, weights: jax.Array, h0: jax.Array, remaining: jax.Array) -> jax.Array:
    """The state after every step, ``(S, weights, U, 64, columns)`` float32.

    Arguments are those of `passes.forward`, with the inputs stacked and the weights as returned by `arranged`.
    """
    p = pallas()
    pl, plgpu = p.pl, p.plgpu
    S, weight_count, _, U, _, columns_all = inputs.shape

    def gru_forward_resident(block, inputs_all, weights_all, h0_all, remaining_all, y_all, weight, operand, barrier):
        at, columns = block["weight"], pl.ds(block["columns"] * plan.columns, plan.columns)
        _fetch_weights(plan, weights_all, weight, at, barrier)
        left = load(remaining_all.at[:, columns])

        def body(indices, x, h):
            (step,) = indices
            x = [load(x.at[n]).astype(FLOAT) for n in range(3 * U)]
            turn = jax.lax.rem(step, jnp.int32(2))

            def compute(*accs):
                f, r, z = _of_each(plan, accs)
                _put(plan, (h, operand.at[turn]))
                _multiply(plan, r, weight, RESET, operand.at[turn])
                _multiply(plan, f, weight, FORGET, operand.at[turn])
                r = [sigmoid(part + x[RESET * U + u]) for u, part in enumerate(_products(plan, r, beside=1))]
                _put(plan, ([r[u] * h[u] for u in range(U)], operand.at[2]))
                _multiply(plan, z, weight, CANDIDATE, operand.at[2])
                f = [sigmoid(part + x[FORGET * U + u]) for u, part in enumerate(_products(plan, f, beside=1))]
                return f, [jnp.tanh(part + x[CANDIDATE * U + u]) for u, part in enumerate(_products(plan, z, beside=0))]

            f, z = pl.run_scoped(compute, *_accumulators(plan))
            h = tuple(jnp.where(left > step, f[u] * h[u] + (1 - f[u]) * z[u], h[u]) for u in range(U))
            for u in range(U):
                store(y_all.at[step, at, u, :, columns], h[u])
            return h

        plgpu.emit_pipeline(
            body,
            grid=(S,),
            in_specs=[
                plgpu.BlockSpec((3 * U, L, plan.columns), lambda step: (step * weight_count + at, 0, block["columns"]))
            ],
            max_concurrent_steps=plan.stages,
            init_carry=tuple(as_result(load(h0_all.at[at, u, :, columns])) for u in range(U)),
        )(inputs_all)

    found = launch(
        gru_forward_resident,
        plan.interpret,
        operands={"inputs_all": flat(inputs), "weights_all": weights, "h0_all": h0, "remaining_all": remaining},
        results={"y_all": jax.ShapeDtypeStruct((S, weight_count, U, L, columns_all), FLOAT)},
        scratch=_scratch(plan, gradient=False),
        auto_barriers=False,
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

    def gru_backward_resident(
        block, factors_all, weights_all, dlast_all, remaining_all, dinputs_all, dfirst_all, weight, operand, barrier
    ):
        at, columns = block["weight"], pl.ds(block["columns"] * plan.columns, plan.columns)
        _fetch_weights(plan, weights_all, weight, at, barrier)
        left = load(remaining_all.at[:, columns])

        def body(indices, factor, carry):
            step = S - 1 - indices[0]

            def by_kind(kind, second):
                return [load(factor.at[kind * U + u, pl.ds(second * L, L)]) for u in range(U)]

            (a_z, f), (a_r, r), (dy, a_f) = ([by_kind(kind, n) for n in (0, 1)] for kind in range(3))
            dh = [dy[u] + clipped(carry[u], bound) for u in range(U)]
            dxf = [dh[u] * a_f[u] for u in range(U)]
            dx = [dh[u] * a_z[u] for u in range(U)]
            turn = jax.lax.rem(step, jnp.int32(2))

            def compute(*accs):
                through_f, drh, through_r = _of_each(plan, accs)
                _put(plan, (dx, operand.at[2]), (dxf, operand.at[turn]))
                _multiply(plan, drh, weight, BACK_CANDIDATE, operand.at[2])
                _multiply(plan, through_f, weight, BACK_FORGET, operand.at[turn])
                drh = _products(plan, drh, beside=1)
                dxr = [drh[u] * a_r[u] for u in range(U)]
                _put(plan, (dxr, operand.at[3]))
                _multiply(plan, through_r, weight, BACK_RESET, operand.at[3])
                return dxr, drh, _products(plan, through_f, beside=1), _products(plan, through_r, beside=0)

            dxr, drh, through_f, through_r = pl.run_scoped(compute, *_accumulators(plan))
            for kind, gradient in ((DX, dx), (DXF, dxf), (DXR, dxr)):
                for u in range(U):
                    store(dinputs_all.at[step, at, kind, u, :, columns], gradient[u])
            moved = [dh[u] * f[u] + drh[u] * r[u] + through_f[u] + through_r[u] for u in range(U)]
            return tuple(jnp.where(left > step, moved[u], carry[u]) for u in range(U))

        dh = plgpu.emit_pipeline(
            body,
            grid=(S,),
            in_specs=[
                plgpu.BlockSpec(
                    (3 * U, 2 * L, plan.columns),
                    lambda step: ((S - 1 - step) * weight_count + at, 0, block["columns"]),
                )
            ],
            max_concurrent_steps=plan.stages,
            init_carry=tuple(as_result(load(dlast_all.at[at, u, :, columns])) for u in range(U)),
        )(factors_all)
        for u in range(U):
            store(dfirst_all.at[at, u, :, columns], dh[u])

    found = launch(
        gru_backward_resident,
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
        scratch=_scratch(plan, gradient=True),
        auto_barriers=False,
        grid={"weight": weight_count, "columns": columns_all // plan.columns},
    )
    return found["dinputs_all"], found["dfirst_all"]


def _scratch(plan: Plan, *, gradient: bool) -> dict[str, Any]:
    return {
        "weight": tile((3 * plan.tiles * plan.terms * L, plan.tiles * L), HALF),
        "operand": tile((OPERANDS[gradient], plan.tiles, plan.terms, plan.columns, L), HALF),
        "barrier": pallas().plgpu.Barrier(num_arrivals=3 * plan.tiles),
    }


def _fetch_weights(plan: Plan, source: Any, to: Any, at: Any, barrier: Any) -> None:
    """Fetch all blocks of the three kinds of one weight; a TMA box has at most 256 rows."""
    p = pallas()
    rows = plan.terms * L
    for block in range(3 * plan.tiles):
        here = p.pl.ds((at * 3 * plan.tiles + block) * rows, rows)
        p.plgpu.copy_gmem_to_smem(source.at[here], to.at[p.pl.ds(block * rows, rows)], barrier)
    p.plgpu.barrier_wait(barrier)


def _put(plan: Plan, *operands: tuple[Sequence[jax.Array], Any]) -> None:
    """Write tiles from registers into their buffers and synchronise all warps."""
    for tiles, to in operands:
        for u in range(plan.tiles):
            put(plan, tiles[u], to.at[u])
    pallas().plgpu.commit_smem()


def _accumulators(plan: Plan) -> list[Any]:
    return [pallas().plgpu.ACC((L, plan.columns), FLOAT)] * (3 * plan.tiles)


def _of_each(plan: Plan, accs: Sequence[Any]) -> tuple[Sequence[Any], ...]:
    """The accumulators of each kind of weight."""
    return tuple(accs[kind * plan.tiles : (kind + 1) * plan.tiles] for kind in range(3))


def _multiply(plan: Plan, accs: Sequence[Any], weight: Any, kind: int, operand: Any) -> None:
    """Start the products of one kind of weight with an operand."""
    for u, acc in enumerate(accs):
        accumulate(plan, acc, weight, (kind * plan.tiles + u) * plan.terms * L, operand, 0)


def _products(plan: Plan, accs: Sequence[Any], beside: int) -> list[jax.Array]:
    """Wait for the products of one kind of weight; the last ``beside`` kinds that were started may still be running."""
    started = plan.tiles * plan.wide * plan.terms * (plan.terms + 1) // 2
    return [pallas().plgpu.wgmma_accumulator_load(acc, wait_n=beside * started) for acc in accs]
