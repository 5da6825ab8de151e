"""The kernel that carries a memory over the chunks of a sequence (Mosaic GPU; wgmma fed by TMA).

In the forward pass this is the memory of the mLSTM, in the backward pass its gradient. Rows of values are ``(terms,
c·L, N, ·)`` bfloat16: chunk by chunk, with operands as sums of terms (`jax_impl._pallas`). The kernel streams tiles of
64, so that any K and V (multiples of 64) fit. Sums are float32.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._mlstm.pallas.copies import copy_out
from jax_impl._mlstm.pallas.gates import ChunkRanges
from jax_impl._mlstm.pallas.plan import Plan
from jax_impl._pallas import (
    FLOAT,
    HALF,
    REDUCTION_SCRATCH,
    SLACK,
    L,
    joined,
    launch,
    multiply,
    over_rows,
    pallas,
    parts,
    split_in_kernel,
    store,
    tile,
)

WRITTEN = 3
"""Number of terms of a weighted row, for values of any dtype: the memory then sums exact products in float32."""
SNAPSHOTS = 2
"""Number of buffers from which memories are copied out."""
WRITE_C, WRITE_N, DECAY_C, DECAY_N = range(4)
"""Rows of the weights: for the writes of a step into C and into n, and for the memory, once per register layout."""


class States(NamedTuple):
    """Memories of all chunks and sequences.

    Attributes:
        C: memory before each chunk's own update, ``(terms, c, N, K, V)``, rounded to its terms as the products that
            read it would round it.
        n: likewise, ``(c, N, K)`` float32.
        C_last, n_last: memory after each sequence, ``(B, N, K, V)`` and ``(B, N, K)``, float32.
        inner: ``Σ_v against·C``, ``(c, N, V/wide, K)``, from the unrounded C; None without `against`.
    """

    C: jax.Array
    n: jax.Array
    C_last: jax.Array
    n_last: jax.Array
    inner: jax.Array | None


def memory(plan: Plan, against: bool) -> int:
    """Bytes of shared memory per block, rounded up."""
    narrow, wide = plan.terms * L * L * 2, plan.terms * L * plan.wide * 2
    stage = narrow + wide + 4 * L * 4 + (wide if against else 0)
    return plan.stages * stage + SNAPSHOTS * wide + WRITTEN * L * L * 2 + REDUCTION_SCRATCH + SLACK


def weight_rows(write_C: jax.Array, write_n: jax.Array, decay: jax.Array) -> jax.Array:
    """Combine weights ``(c, N, L)`` and a decay ``(c, N)`` as the rows `WRITE_C` … `DECAY_N`, ``(c, N, 4, L)``."""
    decay_C, decay_n = (jnp.broadcast_to(decay[..., None], (*decay.shape, L)) for _ in "Cn")
    return jnp.stack((write_C, write_n, decay_C, decay_n), axis=2)


def states(
    plan: Plan,
    *,
    x: jax.Array,
    y: jax.Array,
    weights: jax.Array,
    initial_C: jax.Array,
    initial_n: jax.Array,
    ranges: ChunkRanges,
    against: jax.Array | None = None,
    reverse: bool = False,
) -> States:
    """Carry a memory over the chunks of every sequence: ``C ← γC + Σ_t w_t x_t y_tᵀ``, ``n ← γn + Σ_t u_t x_t``.

    Args:
        x: ``(terms, c·L, N, K)``.
        y: ``(terms, c·L, N, V)``.
        weights: w, u and γ, in the layout of `weight_rows`.
        initial_C, initial_n: memory before each sequence, ``(B, N, K, V)``, ``(B, N, K)``, float32.
        ranges: the assignment of chunks to sequences.
        against: memories to take the inner product with, with the shape of the resulting C.
        reverse: start from the last chunk of each sequence.
    """
    p = pallas()
    pl, plgpu = p.pl, p.plgpu
    terms, wide = plan.terms, plan.wide
    c, N, B, K, V = weights.shape[0], weights.shape[1], initial_C.shape[0], x.shape[-1], y.shape[-1]
    columns = V // wide

    def mlstm_states(
        block,
        x_all,
        y_all,
        weights_all,
        C_first,
        n_first,
        begin_all,
        count_all,
        against_all,
        C_all,
        n_all,
        C_last,
        n_last,
        inner_all,
        scaled,
        snapshots,
    ):
        b, head, row, column = (block[axis] for axis in ("sequence", "head", "row", "column"))
        at_row, at_column = pl.ds(row * L, L), pl.ds(column * wide, wide)
        start, steps = begin_all[b], count_all[b]

        def chunk(step):
            return start + (steps - 1 - step if reverse else step)

        def body(indices, weight, *streamed_and_memory):
            *tiles, (C, n) = streamed_and_memory
            x_tile, y_tile, against_tile = tiles[:terms], tiles[terms : 2 * terms], tiles[2 * terms :]
            (step,) = indices
            here = chunk(step)
            snapshot = snapshots.at[jax.lax.rem(step, jnp.int32(SNAPSHOTS))]
            plgpu.wait_smem_to_gmem(SNAPSHOTS - 1, wait_read_only=True)
            for term, part in enumerate(split_in_kernel(C, terms, plan.interpret)):
                snapshot[term] = part
            store(n_all.at[here, head, column, at_row], n)
            if inner_all is not None:
                inner = jnp.sum(C * joined(against_tile), axis=1)
                store(inner_all.at[here, head, column, at_row], inner)
            values = joined(x_tile)
            # Everything is loaded before the fence of commit_smem, after which the next tiles may overwrite these
            # tiles.
            by_row, by_column = plgpu.Layout.WGMMA.reduce(1), plgpu.Layout.WGMMA.reduce(0)
            w, u, decay = (plgpu.load(weight.at[row], layout=by_row) for row in (WRITE_C, WRITE_N, DECAY_C))
            decay_n = plgpu.load(weight.at[DECAY_N], layout=by_column)
            for term, part in enumerate(split_in_kernel(values * over_rows(w, values.shape), WRITTEN, plan.interpret)):
                scaled[term] = part
            plgpu.commit_smem()
            copy_out(snapshot, C_all.at[:, here, head, at_row, at_column], terms)
            added = jnp.sum(values * over_rows(u, values.shape), axis=0)
            n = n * decay_n + added

            def update(acc):
                multiply(acc, parts(scaled, WRITTEN), y_tile, transpose_a=True)
                return acc[...]

            return over_rows(decay, C.shape) * C + pl.run_scoped(update, plgpu.ACC((L, wide), FLOAT)), n

        def first(C_tile, n_tile, barrier):
            plgpu.copy_gmem_to_smem(C_first.at[b, head, at_row, at_column], C_tile, barrier)
            plgpu.copy_gmem_to_smem(n_first.at[b, head, at_row], n_tile, barrier)
            plgpu.barrier_wait(barrier)
            by_column = plgpu.Layout.WGMMA.reduce(0)
            return plgpu.load(C_tile, layout=plgpu.Layout.WGMMA), plgpu.load(n_tile, layout=by_column)

        before = pl.run_scoped(first, tile((L, wide), FLOAT), plgpu.SMEM((L,), FLOAT), plgpu.Barrier(num_arrivals=2))
        in_shared = partial(plgpu.BlockSpec, memory_space=plgpu.SMEM)
        in_specs = [in_shared((None, 4, L), lambda step: (chunk(step), 0, 0))]
        in_specs += [in_shared((L, L), lambda step: (chunk(step), 0))] * terms
        in_specs += [in_shared((L, wide), lambda step: (chunk(step), 0))] * terms
        streamed = [weights_all.at[:, head]]
        streamed += parts(x_all.at[:, :, head, at_row], terms) + parts(y_all.at[:, :, head, at_column], terms)
        if against_all is not None:
            in_specs += [in_shared((None, L, wide), lambda step: (chunk(step), 0, 0))] * terms
            streamed += parts(against_all.at[:, :, head, at_row, at_column], terms)
        pipeline = plgpu.emit_pipeline(
            body, grid=(steps,), in_specs=in_specs, max_concurrent_steps=plan.stages, init_carry=before
        )
        C, n = pipeline(*streamed)
        plgpu.wait_smem_to_gmem(0)
        store(C_last.at[b, head, at_row, at_column], C)
        store(n_last.at[b, head, column, at_row], n)

    of_columns = jax.ShapeDtypeStruct((c, N, columns, K), FLOAT)
    found = launch(
        mlstm_states,
        plan.interpret,
        operands={
            "x_all": x,
            "y_all": y,
            "weights_all": weights,
            "C_first": initial_C,
            "n_first": initial_n,
            "begin_all": ranges.begin,
            "count_all": ranges.count,
            "against_all": against,
        },
        results={
            "C_all": jax.ShapeDtypeStruct((terms, c, N, K, V), HALF),
            "n_all": of_columns,
            "C_last": jax.ShapeDtypeStruct((B, N, K, V), FLOAT),
            "n_last": jax.ShapeDtypeStruct((B, N, columns, K), FLOAT),
            "inner_all": None if against is None else of_columns,
        },
        scratch={"scaled": tile((WRITTEN, L, L), HALF), "snapshots": tile((SNAPSHOTS, terms, L, wide), HALF)},
        grid={"sequence": B, "head": N, "row": K // L, "column": columns},
    )
    return States(
        C=found["C_all"],
        n=found["n_all"][:, :, 0],
        C_last=found["C_last"],
        n_last=found["n_last"][:, :, 0],
        inner=found.get("inner_all"),
    )
