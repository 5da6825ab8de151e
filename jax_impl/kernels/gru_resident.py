"""GRU steps with the weights in shared memory: heads of up to 64 units, or 128 where their terms fit.

A block carries its lanes over all steps, the state in registers. Forwards a step is two products in a row: both gates
at once, then the candidate. Backwards it is two as well: dx Wᵀ and dx_f W_fᵀ at once, then dx_r W_rᵀ. TMA fetches what
the next steps read.

The warps of a block meet twice a step, each time when operands have been written (`commit_smem`). That is enough:

- Shared memory is either written by TMA and read by the warps, or written by the warps and read by wgmma.
- Every operand of a step has a buffer of its own. Between a warp's write and the last product that read the buffer, of
  the step before, lies another meeting, which no warp reaches before it has waited for that product.
- A tile that TMA brought is read before the first meeting of its step, and overwritten after the last.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_impl.kernels._pallas import L, launch, pallas, store, tile
from jax_impl.kernels.gru_parts import FLOAT, HALF, SLACK, Cut, accumulate, clipped, flat, load, put, sigmoid

OPERANDS = {False: 2, True: 3}
"""Operands of a step, forwards and backwards, each in a buffer of its own."""


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
            _put(c, (h, operand.at[0]))
            f, r = _products(c, weight, [(0, operand.at[0]), (1, operand.at[0])])
            f = [sigmoid(f[u] + x[u]) for u in range(U)]
            r = [sigmoid(r[u] + x[U + u]) for u in range(U)]
            _put(c, ([r[u] * h[u] for u in range(U)], operand.at[1]))
            (z,) = _products(c, weight, [(2, operand.at[1])])
            z = [jnp.tanh(z[u] + x[2 * U + u]) for u in range(U)]
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
            init_carry=tuple(load(h0_all.at[at, u, :, lanes]) for u in range(U)),
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
            _put(c, (dxf, operand.at[0]), (dx, operand.at[1]))
            through_f, drh = _products(c, weight, [(0, operand.at[0]), (1, operand.at[1])])
            dxr = [drh[u] * a_r[u] for u in range(U)]
            _put(c, (dxr, operand.at[2]))
            (through_r,) = _products(c, weight, [(2, operand.at[2])])
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
            init_carry=tuple(load(dlast_all.at[at, u, :, lanes]) for u in range(U)),
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


def _products(c: Cut, weight: Any, pairs: list[tuple[int, Any]]) -> list[list[jax.Array]]:
    """For each kind of weight and its operand, their product by tile; none waits for another."""
    p = pallas()

    def compute(*accs):
        for n, (kind, operand) in enumerate(pairs):
            for u in range(c.tiles):
                accumulate(c, accs[n * c.tiles + u], weight, (kind * c.tiles + u) * c.terms * L, operand, 0)
        return [acc[...] for acc in accs]

    results = p.pl.run_scoped(compute, *[p.plgpu.ACC((L, c.lanes), FLOAT)] * (len(pairs) * c.tiles))
    return [results[n * c.tiles : (n + 1) * c.tiles] for n in range(len(pairs))]
