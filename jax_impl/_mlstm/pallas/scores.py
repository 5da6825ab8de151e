"""The kernels for the decayed L × L scores of every chunk, forward and backward (Mosaic GPU; wgmma fed by TMA).

Rows of values are ``(terms, c·L, N, ·)`` bfloat16: chunk by chunk, with operands as sums of terms
(`jax_impl._pallas`). Vectors of the steps are ``(c, N, ·, L)`` float32; sums are float32 as well.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._mlstm.pallas.copies import chunk_product, copy_out
from jax_impl._mlstm.pallas.gates import LEVELS, ChunkWeights
from jax_impl._mlstm.pallas.plan import Plan
from jax_impl._pallas import (
    FLOAT,
    HALF,
    SLACK,
    L,
    launch,
    over_columns,
    over_rows,
    pallas,
    split_in_kernel,
    store,
    tile,
)

LEVELS_BY_ROW, LEVELS_BY_COLUMN, INPUT_GATE, PER_NORMALISER, DNU = (0, LEVELS, *range(2 * LEVELS, 2 * LEVELS + 3))
"""Rows of the vectors: six levels, six levels with ι added, ι, 1/Y and dν; the last two for the gradient only. No row
is read in two register layouts, because the compiler does not support that."""


class ScoresGradient(NamedTuple):
    """The parts of the mLSTM's gradient that come from the scores, with ``W = G⊙dG``.

    Attributes:
        G_per_Y: ``G/Y``, ``(terms, c, N, L, L)``.
        dscores: ``scale·E⊙dG``, the gradient of ``q_t·k_j``, ``(terms, c, N, L, L)``.
        W_by_row, W_by_column: sums of W by level, in the form of `gates.log_decays`, ``(c, N, 6, L)`` each.
        W_by_step: sums of W over t, ``(c, N, L)``.
    """

    G_per_Y: jax.Array
    dscores: jax.Array
    W_by_row: jax.Array
    W_by_column: jax.Array
    W_by_step: jax.Array


def memory(plan: Plan, gradient: bool) -> int:
    """Bytes of shared memory per block, rounded up."""
    narrow = plan.terms * L * L * 2
    rows = (DNU if gradient else INPUT_GATE) + 1
    return plan.stages * 2 * narrow + (2 if gradient else 1) * narrow + rows * L * 4 + SLACK


def vector_rows(weights: ChunkWeights) -> jax.Array:
    """The rows up to `INPUT_GATE`, ``(c, N, 13, L)``."""
    iota = weights.iota[:, :, None]
    return jnp.concatenate([weights.levels, weights.levels + iota, iota], axis=2)


def vector_rows_of_gradient(weights: ChunkWeights, Y: jax.Array, dnu: jax.Array) -> jax.Array:
    """All rows, ``(c, N, 15, L)``."""
    return jnp.concatenate([vector_rows(weights), jnp.stack((1 / Y, dnu), axis=2)], axis=2)


def scores(plan: Plan, *, q: jax.Array, k: jax.Array, vectors: jax.Array, scale: float) -> tuple[jax.Array, jax.Array]:
    """Decayed scores inside every chunk, ``G[t,j] = scale·(q_t·k_j) exp(F[t,j] + ι_j)``.

    Args:
        q, k: ``(terms, c·L, N, K)``.
        vectors: in the layout of `vector_rows`.
        scale: 1/√K.

    Returns:
        G, ``(terms, c, N, L, L)``, and its sums over j, ``(c, N, L)``.
    """
    plgpu = pallas().plgpu
    terms = plan.terms
    c, N = vectors.shape[:2]

    def mlstm_scores(block, q_all, k_all, vectors_all, G_all, sum_all, vector, G_tiles, barrier):
        head, chunk = block["head"], block["chunk"]
        plgpu.copy_gmem_to_smem(vectors_all.at[chunk, head], vector, barrier)
        product = chunk_product(plan, q_all, k_all, head, chunk)
        plgpu.barrier_wait(barrier)
        G = product * _decay(vector) * scale
        store(sum_all.at[chunk, head], jnp.sum(G, axis=1))
        _store_terms(plan, G, G_tiles, G_all, chunk, head)
        plgpu.wait_smem_to_gmem(0)

    found = launch(
        mlstm_scores,
        plan.interpret,
        operands={"q_all": q, "k_all": k, "vectors_all": vectors},
        results={
            "G_all": jax.ShapeDtypeStruct((terms, c, N, L, L), HALF),
            "sum_all": jax.ShapeDtypeStruct((c, N, L), FLOAT),
        },
        scratch={
            "vector": plgpu.SMEM(vectors.shape[2:], FLOAT),
            "G_tiles": tile((terms, L, L), HALF),
            "barrier": plgpu.Barrier(),
        },
        grid={"head": N, "chunk": c},
    )
    return found["G_all"], found["sum_all"]


def scores_gradient(
    plan: Plan, *, q: jax.Array, k: jax.Array, v: jax.Array, dh: jax.Array, vectors: jax.Array, scale: float
) -> ScoresGradient:
    """The gradient of the scores inside every chunk.

    With ``E = exp(F + ι)``, ``G = scale·(qkᵀ)⊙E``, ``dG[t,j] = (dh_t·v_j)/Y_t + dν_t`` and ``W = G⊙dG``.

    Args:
        q, k, v, dh: ``(terms, c·L, N, ·)``.
        vectors: in the layout of `vector_rows_of_gradient`.
        scale: 1/√K.
    """
    plgpu = pallas().plgpu
    terms = plan.terms
    c, N = vectors.shape[:2]

    def mlstm_scores_gradient(
        block,
        q_all,
        k_all,
        v_all,
        dh_all,
        vectors_all,
        G_per_Y,
        dscores,
        W_by_row,
        W_by_column,
        W_by_step,
        vector,
        G_tiles,
        dscores_tiles,
        barrier,
    ):
        head, chunk = block["head"], block["chunk"]
        plgpu.copy_gmem_to_smem(vectors_all.at[chunk, head], vector, barrier)
        product = chunk_product(plan, q_all, k_all, head, chunk)
        dG = chunk_product(plan, dh_all, v_all, head, chunk)
        plgpu.barrier_wait(barrier)
        per_Y, dnu = (plgpu.load(vector.at[row], layout=plgpu.Layout.WGMMA.reduce(1)) for row in (PER_NORMALISER, DNU))
        E = _decay(vector) * scale
        G = product * E
        dG = dG * over_rows(per_Y, dG.shape) + over_rows(dnu, dG.shape)
        _store_terms(plan, G * over_rows(per_Y, G.shape), G_tiles, G_per_Y, chunk, head)
        _store_terms(plan, E * dG, dscores_tiles, dscores, chunk, head)
        W = G * dG
        store(W_by_step.at[chunk, head], jnp.sum(W, axis=0))
        differs = _first_difference()
        for level in range(LEVELS):
            of_level = jnp.where((differs >= 2**level) & (differs < 2 ** (level + 1)), W, 0.0)
            store(W_by_row.at[chunk, head, level], jnp.sum(of_level, axis=1))
            store(W_by_column.at[chunk, head, level], jnp.sum(of_level, axis=0))
        plgpu.wait_smem_to_gmem(0)

    matrix = jax.ShapeDtypeStruct((terms, c, N, L, L), HALF)
    by_level = jax.ShapeDtypeStruct((c, N, LEVELS, L), FLOAT)
    tiles = tile((terms, L, L), HALF)
    return ScoresGradient(
        **launch(
            mlstm_scores_gradient,
            plan.interpret,
            operands={"q_all": q, "k_all": k, "v_all": v, "dh_all": dh, "vectors_all": vectors},
            results={
                "G_per_Y": matrix,
                "dscores": matrix,
                "W_by_row": by_level,
                "W_by_column": by_level,
                "W_by_step": jax.ShapeDtypeStruct((c, N, L), FLOAT),
            },
            scratch={
                "vector": plgpu.SMEM(vectors.shape[2:], FLOAT),
                "G_tiles": tiles,
                "dscores_tiles": tiles,
                "barrier": plgpu.Barrier(),
            },
            grid={"head": N, "chunk": c},
        )
    )


def _first_difference() -> jax.Array:
    """``t xor j`` below the diagonal, 0 on it, −1 above it: identifies the level of F that holds a pair."""
    plgpu = pallas().plgpu
    row, column = (plgpu.broadcasted_iota(jnp.int32, (L, L), axis, layout=plgpu.Layout.WGMMA) for axis in (0, 1))
    return jnp.where(row >= column, row ^ column, -1)


def _decay(vector: Any) -> jax.Array:
    """``exp(F[t,j] + ι_j)``, 0 above the diagonal."""
    plgpu = pallas().plgpu
    by_row, by_column = plgpu.Layout.WGMMA.reduce(1), plgpu.Layout.WGMMA.reduce(0)
    differs = _first_difference()
    D = over_columns(plgpu.load(vector.at[INPUT_GATE], layout=by_column), differs.shape)
    for level in range(LEVELS):
        to_row = plgpu.load(vector.at[LEVELS_BY_ROW + level], layout=by_row)
        from_column = plgpu.load(vector.at[LEVELS_BY_COLUMN + level], layout=by_column)
        D = jnp.where(differs >= 2**level, over_rows(to_row, D.shape) + over_columns(from_column, D.shape), D)
    return jnp.where(differs < 0, 0.0, jnp.exp(D))


def _store_terms(plan: Plan, x: jax.Array, tiles: Any, out: Any, chunk: Any, head: Any) -> None:
    """Store a tile from registers in device memory, term by term through ``tiles`` in shared memory."""
    plgpu = pallas().plgpu
    for term, part in enumerate(split_in_kernel(x, plan.terms, plan.interpret)):
        tiles[term] = part
    plgpu.commit_smem()
    copy_out(tiles, out.at[:, chunk, head], plan.terms)
