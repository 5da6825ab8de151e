"""GRU steps with the weights resident in shared memory (Mosaic GPU; wgmma, TMA).

Source: Cho et al. 2014, arXiv:1406.1078, equations 5 to 8. Row vectors::

    r = σ(h W_r + x_r)        f = σ(h W_f + x_f)        z = tanh((r⊙h) W + x)        h' = f⊙h + (1−f)⊙z

A block holds the three weights of one *tile* of 64 columns and carries 64 rows (sequences) over all steps. A tile
is one head of up to 64, or as many smaller heads as fit, their weights the blocks of a diagonal. The state is
carried in float32; operands of products are sums of bfloat16 terms (`kernels._pallas`). Rows beyond the last are
TMA's: read as 0, never written.

Arrays of the steps are ``(S, W, R, 64)``, W tiles by R rows, R a multiple of 8; states ``(W, R, 64)`` float32;
weights ``(terms, 3, W, 64, 64)`` in the order W, W_f, W_r. ``remaining`` says how many steps each row has: after
those its state stays.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl.kernels._pallas import (
    TERMS,
    L,
    launch,
    multiply,
    pallas,
    parts,
    split_in_kernel,
    tile,
    unavailable,
)
from reference.backends import Row

FLOAT, HALF = jnp.float32, jnp.bfloat16
SLACK = 1024
"""Bytes for barriers and for alignment."""
OUTPUTS = 2
"""Buffers from which `forward` copies states out."""

ROW = Row(
    backend="pallas",
    operation="gru",
    devices=("gpu", "cuda", "cpu"),
    dtypes=tuple(TERMS),
    largest=(("H", L),),
    packed=True,
    unavailable=unavailable,
)


class Setting(NamedTuple):
    """Terms of an operand, the clipping bound (None for none), and whether the GPU interpreter runs the kernels."""

    terms: int
    bound: float | None
    interpret: bool


def memory(terms: int, value_bytes: int, gradient: bool) -> int:
    """Bytes of shared memory of a block, rounded up; ``value_bytes`` those of an element of the values."""
    half, full, value = terms * L * L * 2, L * L * 4, L * L * value_bytes
    if gradient:
        return 4 * half + full + _stages(terms, True) * (4 * full + value) + _outputs(terms) * value + SLACK
    return 4 * half + _stages(terms, False) * 3 * value + (OUTPUTS + 1) * full + SLACK


def forward(
    s: Setting,
    inputs: tuple[jax.Array, jax.Array, jax.Array],
    weights: jax.Array,
    h0: jax.Array,
    remaining: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The state after every step, ``(S, W, R, 64)`` float32, and the last one.

    Args:
        inputs: x, x_f, x_r.
        weights, h0: as at the head of this module.
        remaining: ``(R,)`` int32, filled up to a multiple of 64.
    """
    p = pallas()
    pl, plgpu = p.pl, p.plgpu
    S, W, R, _ = inputs[0].shape

    def kernel(*refs):
        x_all, weights_all, h0_all, remaining_all, y_all, last_all, weight, state, terms, out, steps_left, barrier = (
            refs[:3],
            *refs[3:],
        )
        column, row = jax.lax.axis_index("tile"), jax.lax.axis_index("rows")
        at = pl.ds(row * L, L)
        _fetch_weights(s, weights_all, weight, column, barrier)
        plgpu.copy_gmem_to_smem(h0_all.at[column, at], state, barrier)
        plgpu.copy_gmem_to_smem(remaining_all.at[at], steps_left, barrier)
        plgpu.barrier_wait(barrier)
        left = plgpu.load(steps_left, layout=plgpu.Layout.WGMMA.reduce(1))

        def times(of):
            return _times(s, terms, weight.at[of])

        def body(indices, x, xf, xr, h):
            (step,) = indices
            _put(s, h, terms)
            f = _sigmoid(times(1) + xf[...].astype(FLOAT))
            r = _sigmoid(times(2) + xr[...].astype(FLOAT))
            _put(s, r * h, terms)
            z = jnp.tanh(times(0) + x[...].astype(FLOAT))
            active = jax.lax.broadcast_in_dim(left, h.shape, (0,)) > step
            h = jnp.where(active, f * h + (1 - f) * z, h)
            y = out.at[jax.lax.rem(step, jnp.int32(OUTPUTS))]
            plgpu.wait_smem_to_gmem(OUTPUTS - 1, wait_read_only=True)
            y[...] = h
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(y, y_all.at[step, column, at])
            return h

        of_step = plgpu.BlockSpec((None, L, L), lambda step: (step, row, 0), memory_space=plgpu.SMEM)
        pipeline = plgpu.emit_pipeline(
            body,
            grid=(S,),
            in_specs=[of_step] * 3,
            max_concurrent_steps=_stages(s.terms, False),
            init_carry=plgpu.load(state, layout=plgpu.Layout.WGMMA),
        )
        h = pipeline(*(x.at[:, column] for x in x_all))
        plgpu.wait_smem_to_gmem(0)
        state[...] = h
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(state, last_all.at[column, at])
        plgpu.wait_smem_to_gmem(0)

    y, last = launch(
        kernel,
        s.interpret,
        out_type=[jax.ShapeDtypeStruct((S, W, R, L), FLOAT), jax.ShapeDtypeStruct((W, R, L), FLOAT)],
        scratch_types=[
            tile((3, s.terms, L, L), HALF),
            tile((L, L), FLOAT),
            tile((s.terms, L, L), HALF),
            tile((OUTPUTS, L, L), FLOAT),
            plgpu.SMEM((L,), jnp.int32),
            plgpu.Barrier(num_arrivals=3 * s.terms + 2),
        ],
        grid=(W, -(-R // L)),
        grid_names=("tile", "rows"),
    )(*inputs, weights, h0, remaining)
    return y, last


def backward(
    s: Setting,
    saved: tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array],
    weights: jax.Array,
    dlast: jax.Array,
    remaining: jax.Array,
    dtype: Any,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Gradients of x, x_f, x_r ``(S, W, R, 64)`` in ``dtype`` and of the first state; the last step first.

    With ``dh`` what reaches a state: clipped, then the output's cotangent added::

        dx = dh (1−f)(1−z²)        dx_f = dh (h−z) f(1−f)        drh = dx Wᵀ        dx_r = drh h r(1−r)
        dh ← dh f + drh r + dx_f W_fᵀ + dx_r W_rᵀ

    Args:
        saved: h before each step, r, f and z in float32, and the output's cotangent in ``dtype``.
        dlast: cotangent of the last state.
    """
    p = pallas()
    pl, plgpu = p.pl, p.plgpu
    S, W, R, _ = saved[0].shape
    buffers = _outputs(s.terms)

    def kernel(*refs):
        saved_all, (weights_all, dlast_all, remaining_all), results, scratch = (
            refs[:5],
            refs[5:8],
            refs[8:12],
            refs[12:],
        )
        weight, state, terms, out, steps_left, barrier = scratch
        column, row = jax.lax.axis_index("tile"), jax.lax.axis_index("rows")
        at = pl.ds(row * L, L)
        _fetch_weights(s, weights_all, weight, column, barrier)
        plgpu.copy_gmem_to_smem(dlast_all.at[column, at], state, barrier)
        plgpu.copy_gmem_to_smem(remaining_all.at[at], steps_left, barrier)
        plgpu.barrier_wait(barrier)
        left = plgpu.load(steps_left, layout=plgpu.Layout.WGMMA.reduce(1))

        def times(x, of):
            _put(s, x, terms)
            return _times(s, terms, weight.at[of], transpose=True)

        def body(indices, h_tile, r_tile, f_tile, z_tile, dy_tile, carry):
            step = S - 1 - indices[0]
            h, r, f, z = (ref[...] for ref in (h_tile, r_tile, f_tile, z_tile))
            dh = dy_tile[...].astype(FLOAT) + (carry if s.bound is None else jnp.clip(carry, -s.bound, s.bound))
            dx = dh * (1 - f) * (1 - z * z)
            dxf = dh * (h - z) * f * (1 - f)
            drh = times(dx, 0)
            dxr = drh * h * r * (1 - r)
            moved = dh * f + drh * r + times(dxf, 1) + times(dxr, 2)
            for of, (part, result) in enumerate(zip((dx, dxf, dxr), results[:3], strict=True)):
                buffer = out.at[of % buffers]
                plgpu.wait_smem_to_gmem(buffers - 1, wait_read_only=True)
                buffer[...] = part.astype(dtype)
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(buffer, result.at[step, column, at])
            active = jax.lax.broadcast_in_dim(left, dh.shape, (0,)) > step
            return jnp.where(active, moved, carry)

        of_step = plgpu.BlockSpec((None, L, L), lambda step: (S - 1 - step, row, 0), memory_space=plgpu.SMEM)
        pipeline = plgpu.emit_pipeline(
            body,
            grid=(S,),
            in_specs=[of_step] * 5,
            max_concurrent_steps=_stages(s.terms, True),
            init_carry=plgpu.load(state, layout=plgpu.Layout.WGMMA),
        )
        dh = pipeline(*(x.at[:, column] for x in saved_all))
        plgpu.wait_smem_to_gmem(0)
        state[...] = dh
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(state, results[3].at[column, at])
        plgpu.wait_smem_to_gmem(0)

    gradient = jax.ShapeDtypeStruct((S, W, R, L), dtype)
    return tuple(
        launch(
            kernel,
            s.interpret,
            out_type=[gradient] * 3 + [jax.ShapeDtypeStruct((W, R, L), FLOAT)],
            scratch_types=[
                tile((3, s.terms, L, L), HALF),
                tile((L, L), FLOAT),
                tile((s.terms, L, L), HALF),
                tile((buffers, L, L), dtype),
                plgpu.SMEM((L,), jnp.int32),
                plgpu.Barrier(num_arrivals=3 * s.terms + 2),
            ],
            grid=(W, -(-R // L)),
            grid_names=("tile", "rows"),
        )(*saved, weights, dlast, remaining)
    )


def _stages(terms: int, gradient: bool) -> int:
    """TMA stages, as many as fit."""
    return 2 if terms == 1 or (terms == 2 and not gradient) else 1


def _outputs(terms: int) -> int:
    """Buffers from which `backward` copies out, as many as fit."""
    return 1 if terms == 3 else 3


def _fetch_weights(s: Setting, source: Any, to: Any, column: Any, barrier: Any) -> None:
    for of in range(3):
        for x, y in zip(parts(source.at[:, of, column], s.terms), parts(to.at[of], s.terms), strict=True):
            pallas().plgpu.copy_gmem_to_smem(x, y, barrier)


def _put(s: Setting, x: jax.Array, to: Any) -> None:
    """A tile from registers into shared memory, as terms, for the tensor cores to read."""
    for term, part in enumerate(split_in_kernel(x, s.terms, s.interpret)):
        to[term] = part
    pallas().plgpu.commit_smem()


def _times(s: Setting, x: Any, weight: Any, transpose: bool = False) -> jax.Array:
    def compute(acc):
        multiply(acc, parts(x, s.terms), parts(weight, s.terms), transpose_b=transpose)
        return acc[...]

    p = pallas()
    return p.pl.run_scoped(compute, p.plgpu.ACC((L, L), FLOAT))


def _sigmoid(x: jax.Array) -> jax.Array:
    return 1 / (1 + jnp.exp(-x))
