"""The kernel that sums what a chunk's steps receive from each other and from the carried memory (Mosaic GPU).

In the forward pass it computes h, in the backward pass the gradients of q, k and v. Rows of values are ``(terms, c·L,
N, ·)`` bfloat16: chunk by chunk, with operands as sums of terms (`jax_impl._pallas`). Sums are float32.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._mlstm.pallas.copies import copy_in
from jax_impl._mlstm.pallas.plan import Plan
from jax_impl._pallas import (
    FLOAT,
    HALF,
    SLACK,
    L,
    joined,
    launch,
    multiply,
    over_columns,
    over_rows,
    pallas,
    parts,
    store,
    tile,
)

OUTPUT, MEMORY, VECTOR = range(3)
"""Rows of the weights: for the whole sum, for the part from the memory, and for the vector."""


class Orientation(NamedTuple):
    """The operands of a mix that are transposed."""

    transpose_A: bool
    transpose_M: bool


def memory(plan: Plan, dotted: bool, out_bytes: int) -> int:
    """Bytes of shared memory per block, rounded up; ``out_bytes`` is the size of an element of the result."""
    narrow, wide = plan.terms * L * L * 2, plan.terms * L * plan.wide * 2
    return plan.stages * (narrow + wide) + narrow + wide * (2 if dotted else 1) + L * plan.wide * out_bytes + SLACK


def weight_rows(output: jax.Array, memory: jax.Array, vector: jax.Array) -> jax.Array:
    """Combine weights ``(c, N, L)`` as the rows `OUTPUT`, `MEMORY` and `VECTOR`, ``(c, N, 3, L)``."""
    return jnp.stack((output, memory, vector), axis=2)


def mix(
    plan: Plan,
    *,
    A: jax.Array,
    X: jax.Array,
    Y: jax.Array,
    M: jax.Array,
    weights: jax.Array,
    orientation: Orientation,
    dtype: Any,
    vector: jax.Array | None = None,
    Z: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """``out_t = o_t·(Σ_j A[t,j] X_j + s_t MᵀY_t + u_t·vector)`` for the steps of every chunk.

    Args:
        A: ``(terms, c, N, L, L)``.
        X: ``(terms, c·L, N, D)``.
        Y: ``(terms, c·L, N, D')``.
        M: memories, ``(terms, c, N, D', D)``; ``(…, D, D')`` if transposed.
        weights: o, s and u, in the layout of `weight_rows`.
        orientation: which of A and M are transposed.
        dtype: the dtype of the result.
        vector: ``(c, N, D)`` float32; None omits its term.
        Z: same layout as X; if given, the part from memory and vector is multiplied by Z and summed.

    Returns:
        out, ``(c·L, N, D)``, in ``dtype``; and, if Z is given, ``Σ_d (s_t MᵀY_t + u_t·vector)_d Z_td`` as partial sums,
        ``(c, N, D/wide, L)``, else None.
    """
    p = pallas()
    pl, plgpu = p.pl, p.plgpu
    terms, wide = plan.terms, plan.wide
    c, N, D, inner = A.shape[1], A.shape[2], X.shape[-1], Y.shape[-1]

    def mlstm_mix(
        block,
        A_all,
        X_all,
        Y_all,
        M_all,
        weights_all,
        vector_all,
        Z_all,
        out_all,
        dot_all,
        A_tile,
        X_tile,
        out_tile,
        barrier,
        Z_tile=None,
    ):
        head, chunk, column = (block[axis] for axis in ("head", "chunk", "column"))
        steps, at_column = pl.ds(chunk * L, L), pl.ds(column * wide, wide)
        copy_in(A_all.at[:, chunk, head], A_tile, terms, barrier)
        copy_in(X_all.at[:, steps, head, at_column], X_tile, terms, barrier)
        if Z_tile is not None:
            copy_in(Z_all.at[:, steps, head, at_column], Z_tile, terms, barrier)

        def from_memory(acc):
            def body(_, *tiles):
                multiply(acc, tiles[:terms], tiles[terms:], transpose_b=orientation.transpose_M)
                plgpu.wgmma_wait(0)

            M_part = M_all.at[:, chunk, head]
            M_part = M_part.at[:, at_column] if orientation.transpose_M else M_part.at[:, :, at_column]
            of_Y = plgpu.BlockSpec((L, L), lambda at: (0, at), memory_space=plgpu.SMEM)
            of_M = plgpu.BlockSpec(
                (wide, L) if orientation.transpose_M else (L, wide),
                (lambda at: (0, at)) if orientation.transpose_M else (lambda at: (at, 0)),
                memory_space=plgpu.SMEM,
            )
            plgpu.emit_pipeline(
                body, grid=(inner // L,), in_specs=[of_Y] * terms + [of_M] * terms, max_concurrent_steps=plan.stages
            )(*parts(Y_all.at[:, steps, head], terms), *parts(M_part, terms))
            return acc[...]

        def row(which):
            return plgpu.load(weights_all.at[chunk, head, which], layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)

        total = pl.run_scoped(from_memory, plgpu.ACC((L, wide), FLOAT))
        total = total * over_rows(row(MEMORY), total.shape)
        if vector_all is not None:
            columns = plgpu.load(
                vector_all.at[chunk, head, at_column], layout=plgpu.Layout.WGMMA.reduce(0), optimized=False
            )
            total = total + over_rows(row(VECTOR), total.shape) * over_columns(columns, total.shape)
        plgpu.barrier_wait(barrier)
        if Z_tile is not None:
            dot = jnp.sum(total * joined(parts(Z_tile, terms)), axis=1)
            store(dot_all.at[chunk, head, column], dot)

        def from_chunk(acc):
            multiply(acc, parts(A_tile, terms), parts(X_tile, terms), transpose_a=orientation.transpose_A)
            return acc[...]

        total = total + pl.run_scoped(from_chunk, plgpu.ACC((L, wide), FLOAT))
        out_tile[...] = (total * over_rows(row(OUTPUT), total.shape)).astype(dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_tile, out_all.at[steps, head, at_column])
        plgpu.wait_smem_to_gmem(0)

    operand = tile((terms, L, wide), HALF)
    scratch = {
        "A_tile": tile((terms, L, L), HALF),
        "X_tile": operand,
        "out_tile": tile((L, wide), dtype),
        "barrier": plgpu.Barrier(num_arrivals=terms * (2 if Z is None else 3)),
    }
    found = launch(
        mlstm_mix,
        plan.interpret,
        operands={
            "A_all": A,
            "X_all": X,
            "Y_all": Y,
            "M_all": M,
            "weights_all": weights,
            "vector_all": vector,
            "Z_all": Z,
        },
        results={
            "out_all": jax.ShapeDtypeStruct((c * L, N, D), dtype),
            "dot_all": None if Z is None else jax.ShapeDtypeStruct((c, N, D // wide, L), FLOAT),
        },
        scratch=scratch if Z is None else {**scratch, "Z_tile": operand},
        grid={"head": N, "chunk": c, "column": D // wide},
    )
    return found["out_all"], found.get("dot_all")
