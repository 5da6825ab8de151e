"""GRU steps with the weights in shared memory: heads of up to 64 units, or 128 where their terms fit.

A block carries its lanes over all steps, the state in registers. Forwards a step is two products in a row, r and z;
that of f runs beside them. Backwards it is two as well, dx Wᵀ and dx_r W_rᵀ, and dx_f W_fᵀ beside them. TMA fetches
what the next steps read.

The warps of a block meet twice a step, each time when operands have been written (`commit_smem`). That is enough:

- Shared memory is either written by TMA and read by the warps, or written by the warps and read by wgmma.
- Every operand of a step has a buffer of its own; one that is written before the first meeting and whose product is
  waited for after the second has two, in turn. So between a warp's write and the last product that read the buffer
  lies another meeting, which no warp reaches before it has waited for that product.
- A tile that TMA brought is read before the first meeting of its step, and overwritten after the last.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_impl.kernels._pallas import L, launch, pallas, store, tile
from jax_impl.kernels.gru_parts import FLOAT, HALF, SLACK, Cut, accumulate, as_result, clipped, flat, load, put, sigmoid

OPERANDS = {False: 3, True: 4}
"""Buffers of operands, forwards (h twice, r⊙h) and backwards (dx_f twice, dx, dx_r)."""


def memory(c: Cut, value_bytes: int, gradient: bool) -> int:
    """Bytes of shared memory of a block, rounded up; ``value_bytes`` those of an element of what is streamed."""
    column = L * c.lanes
    weights = 3 * c.tiles**2 * c.terms * L * L * 2
    operands = OPERANDS[gradient] * c.tiles * c.terms * column * 2
    stage = 3 * c.tiles * column * value_bytes * (2 if gradient else 1)
    return weights + operands + c.stages * stage + SLACK


def forward(c: Cut, inputs: jax.Array, weights: jax.Array, h0: jax.Array, remaining: jax.Array) -> jax.Array:
    """The state after every step, ``(S, W, U, 64, R)`` float32. Arguments as in `gru.forward`."""
    p = pallas()
    pl, plgpu = p.pl, p.plgpu
    S, W, _, U, _, R = inputs.shape

    def gru_forward_resident(inputs_all, weights_all, h0_all, remaining_all, y_all, weight, operand, barrier):
        at, lanes = jax.lax.axis_index("weight"), pl.ds(jax.lax.axis_index("lanes") * c.lanes, c.lanes)
        _fetch_weights(c, weights_all, weight, at, barrier)
        left = load(remaining_all.at[:, lanes])

        def body(indices, x, h):
            (step,) = indices
            x = [load(x.at[n]).astype(FLOAT) for n in range(3 * U)]
            turn = jax.lax.rem(step, jnp.int32(2))

            def compute(*accs):
                f, r, z = _of_each(c, accs)
                _put(c, (h, operand.at[turn]))
                _multiply(c, r, weight, 1, operand.at[turn])
                _multiply(c, f, weight, 0, operand.at[turn])
                r = [sigmoid(part + x[U + u]) for u, part in enumerate(_products(c, r, beside=1))]
                _put(c, ([r[u] * h[u] for u in range(U)], operand.at[2]))
                _multiply(c, z, weight, 2, operand.at[2])
                f = [sigmoid(part + x[u]) for u, part in enumerate(_products(c, f, beside=1))]
                return f, [jnp.tanh(part + x[2 * U + u]) for u, part in enumerate(_products(c, z, beside=0))]

            f, z = pl.run_scoped(compute, *_accumulators(c))
            h = tuple(jnp.where(left > step, f[u] * h[u] + (1 - f[u]) * z[u], h[u]) for u in range(U))
            for u in range(U):
                store(y_all.at[step, at, u, :, lanes], h[u])
            return h

        plgpu.emit_pipeline(
            body,
            grid=(S,),
            in_specs=[
                plgpu.BlockSpec((3 * U, L, c.lanes), lambda step: (step * W + at, 0, jax.lax.axis_index("lanes")))
            ],
            max_concurrent_steps=c.stages,
            init_carry=tuple(as_result(load(h0_all.at[at, u, :, lanes])) for u in range(U)),
        )(inputs_all)

    (y,) = launch(
        gru_forward_resident,
        c.interpret,
        out_type=[jax.ShapeDtypeStruct((S, W, U, L, R), FLOAT)],
        scratch_types=_scratch(c, False),
        auto_barriers=False,
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

    def gru_backward_resident(
        factors_all, weights_all, dlast_all, remaining_all, dinputs_all, dfirst_all, weight, operand, barrier
    ):
        at, lanes = jax.lax.axis_index("weight"), pl.ds(jax.lax.axis_index("lanes") * c.lanes, c.lanes)
        _fetch_weights(c, weights_all, weight, at, barrier)
        left = load(remaining_all.at[:, lanes])

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
                through_f, drh, through_r = _of_each(c, accs)
                _put(c, (dx, operand.at[2]), (dxf, operand.at[turn]))
                _multiply(c, drh, weight, 1, operand.at[2])
                _multiply(c, through_f, weight, 0, operand.at[turn])
                drh = _products(c, drh, beside=1)
                dxr = [drh[u] * a_r[u] for u in range(U)]
                _put(c, (dxr, operand.at[3]))
                _multiply(c, through_r, weight, 2, operand.at[3])
                return dxr, drh, _products(c, through_f, beside=1), _products(c, through_r, beside=0)

            dxr, drh, through_f, through_r = pl.run_scoped(compute, *_accumulators(c))
            for kind, gradient in enumerate((dx, dxf, dxr)):
                for u in range(U):
                    store(dinputs_all.at[step, at, kind, u, :, lanes], gradient[u].astype(dtype))
            moved = [dh[u] * f[u] + drh[u] * r[u] + through_f[u] + through_r[u] for u in range(U)]
            return tuple(jnp.where(left > step, moved[u], carry[u]) for u in range(U))

        dh = plgpu.emit_pipeline(
            body,
            grid=(S,),
            in_specs=[
                plgpu.BlockSpec(
                    (3 * U, 2 * L, c.lanes), lambda step: ((S - 1 - step) * W + at, 0, jax.lax.axis_index("lanes"))
                )
            ],
            max_concurrent_steps=c.stages,
            init_carry=tuple(as_result(load(dlast_all.at[at, u, :, lanes])) for u in range(U)),
        )(factors_all)
        for u in range(U):
            store(dfirst_all.at[at, u, :, lanes], dh[u])

    dinputs, dfirst = launch(
        gru_backward_resident,
        c.interpret,
        out_type=[jax.ShapeDtypeStruct((S, W, 3, U, L, R), dtype), jax.ShapeDtypeStruct((W, U, L, R), FLOAT)],
        scratch_types=_scratch(c, True),
        auto_barriers=False,
        grid=(W, R // c.lanes),
        grid_names=("weight", "lanes"),
    )(flat(factors), weights, dlast, remaining)
    return dinputs, dfirst


def _scratch(c: Cut, gradient: bool) -> list[Any]:
    return [
        tile((3 * c.tiles * c.terms * L, c.tiles * L), HALF),
        tile((OPERANDS[gradient], c.tiles, c.terms, c.lanes, L), HALF),
        pallas().plgpu.Barrier(num_arrivals=3 * c.tiles),
    ]


def _fetch_weights(c: Cut, source: Any, to: Any, at: Any, barrier: Any) -> None:
    """All blocks of one weight's three kinds; a TMA box has at most 256 rows."""
    p = pallas()
    rows = c.terms * L
    for block in range(3 * c.tiles):
        here = p.pl.ds((at * 3 * c.tiles + block) * rows, rows)
        p.plgpu.copy_gmem_to_smem(source.at[here], to.at[p.pl.ds(block * rows, rows)], barrier)
    p.plgpu.barrier_wait(barrier)


def _put(c: Cut, *operands: tuple[Sequence[jax.Array], Any]) -> None:
    """Tiles from registers into their buffers; all warps meet."""
    for tiles, to in operands:
        for u in range(c.tiles):
            put(c, tiles[u], to.at[u])
    pallas().plgpu.commit_smem()


def _accumulators(c: Cut) -> list[Any]:
    return [pallas().plgpu.ACC((L, c.lanes), FLOAT)] * (3 * c.tiles)


def _of_each(c: Cut, accs: Sequence[Any]) -> tuple[Sequence[Any], ...]:
    """Accumulators of each kind of weight."""
    return tuple(accs[kind * c.tiles : (kind + 1) * c.tiles] for kind in range(3))


def _multiply(c: Cut, accs: Sequence[Any], weight: Any, kind: int, operand: Any) -> None:
    """Start a kind of weight's products with an operand."""
    for u, acc in enumerate(accs):
        accumulate(c, acc, weight, (kind * c.tiles + u) * c.terms * L, operand, 0)


def _products(c: Cut, accs: Sequence[Any], beside: int) -> list[jax.Array]:
    """Wait for the products of one kind of weight, while those of the ``beside`` kinds started last may go on."""
    started = c.tiles * c.wide * c.terms * (c.terms + 1) // 2
    return [pallas().plgpu.wgmma_accumulator_load(acc, wait_n=beside * started) for acc in accs]
