"""The three kernels that the chunkwise mLSTM and its gradient are made of (Mosaic GPU; wgmma fed by TMA).

`states` runs over the chunks of a sequence and carries a memory; `scores` and `scores_gradient` compute the decayed
L × L scores of every chunk at once; `mix` computes what a chunk's steps get from each other and from the carried
memory. Every kernel streams tiles of 64, so that any K and V (multiples of 64) fit.

Rows of values are ``(terms, c·L, N, ·)`` bfloat16: chunk after chunk, operands as sums of terms (`kernels._pallas`).
Vectors of the steps are ``(c, N, ·, L)`` float32, carried memories ``(terms, c, N, K, V)``. Sums are float32.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl.kernels._pallas import (
    REDUCTION_SCRATCH,
    L,
    joined,
    launch,
    multiply,
    pallas,
    parts,
    split_in_kernel,
    store,
    tile,
)
from jax_impl.kernels.mlstm_gates import LEVELS

FLOAT = jnp.float32
HALF = jnp.bfloat16
COLUMNS = LEVELS
STABILISER = 2 * LEVELS + 1
VECTORS = ("G_0 … G_5", "G_0 + i … G_5 + i", "i", "m", "1/Y", "dν")
"""Rows of the vectors that scores are made with: no row is read in two register layouts, which the compiler cannot
do."""
SLACK = 1024
"""Bytes for barriers and for alignment."""
WRITTEN = 3
"""Terms of a weighted row in `states`, whatever those of its values: a memory sums in float32 what exact products
wrote."""
SNAPSHOTS = 2
"""Buffers from which `states` copies memories out."""


class Tiles(NamedTuple):
    """How a kernel is cut.

    Attributes:
        terms: bfloat16 terms of an operand.
        wide: columns of the tiles of V (`states`) or of the output (`mix`).
        stages: TMA stages.
        interpret: whether the GPU interpreter runs it.
    """

    terms: int
    wide: int
    stages: int
    interpret: bool


def tiles_of(terms: int, columns: int, interpret: bool) -> Tiles:
    """The cut for an output of ``columns`` columns."""
    wide = 2 * L if terms == 1 and columns % (2 * L) == 0 else L
    return Tiles(terms, wide, 3 if terms == 1 and wide == L else 2, interpret)


def states_memory(t: Tiles, against: bool) -> int:
    """Bytes of shared memory of a block of `states`, rounded up."""
    narrow, wide = t.terms * L * L * 2, t.terms * L * t.wide * 2
    stage = narrow + wide + 4 * L * 4 + (wide if against else 0)
    return t.stages * stage + SNAPSHOTS * wide + WRITTEN * L * L * 2 + REDUCTION_SCRATCH + SLACK


def scores_memory(t: Tiles, gradient: bool) -> int:
    """Bytes of shared memory of a block of `scores` or `scores_gradient`, rounded up."""
    narrow = t.terms * L * L * 2
    return (
        t.stages * 2 * narrow + (2 if gradient else 1) * narrow + (STABILISER + (3 if gradient else 1)) * L * 4 + SLACK
    )


def mix_memory(t: Tiles, dotted: bool, out_bytes: int) -> int:
    """Bytes of shared memory of a block of `mix`, rounded up; ``out_bytes`` those of an element of the result."""
    narrow, wide = t.terms * L * L * 2, t.terms * L * t.wide * 2
    return t.stages * (narrow + wide) + narrow + wide * (2 if dotted else 1) + L * t.wide * out_bytes + SLACK


def states(
    t: Tiles,
    x: jax.Array,
    y: jax.Array,
    weights: jax.Array,
    initial_C: jax.Array,
    initial_n: jax.Array,
    begin: jax.Array,
    count: jax.Array,
    against: jax.Array | None = None,
    reverse: bool = False,
) -> tuple[jax.Array, ...]:
    """Carry a memory over the chunks of every sequence: ``C ← γC + Σ_t w_t x_t y_tᵀ``, ``n ← γn + Σ_t u_t x_t``.

    Args:
        x: ``(terms, c·L, N, K)``.
        y: ``(terms, c·L, N, V)``.
        weights: w, u and twice γ (the same at every step), ``(c, N, 4, L)``; no row is read in two layouts.
        initial_C, initial_n: where each sequence starts, ``(B, N, K, V)``, ``(B, N, K)``, float32.
        begin, count: a sequence's first chunk and number of chunks, ``(B,)`` int32.
        against: memories to take the inner product with, shaped like the result.
        reverse: start from a sequence's last chunk.

    Returns:
        The memory before each chunk's own update, C ``(terms, c, N, K, V)`` (rounded to its terms, as the products that
        take it would) and n ``(c, N, K)``; the last ones, ``(B, N, K, V)``, ``(B, N, K)``, float32; with ``against``,
        ``Σ_v against·C`` ``(c, N, V/wide, K)`` from the unrounded C.
    """
    p = pallas()
    pl, plgpu = p.pl, p.plgpu
    terms, wide = t.terms, t.wide
    c, N, B, K, V = weights.shape[0], weights.shape[1], initial_C.shape[0], x.shape[-1], y.shape[-1]
    columns = V // wide

    def mlstm_states(x_all, y_all, weights_all, C_first, n_first, begin_all, count_all, *rest):
        against_all = rest[0] if against is not None else None
        C_all, n_all, C_last, n_last, *dots = rest[0 if against is None else 1 :]
        *dots, scaled, snapshots = dots
        b, head = jax.lax.axis_index("sequence"), jax.lax.axis_index("head")
        row, column = jax.lax.axis_index("row"), jax.lax.axis_index("column")
        at_row, at_column = pl.ds(row * L, L), pl.ds(column * wide, wide)
        start, steps = begin_all[b], count_all[b]

        def chunk(step):
            return start + (steps - 1 - step if reverse else step)

        def body(indices, weight, *rest):
            *tiles, (C, n) = rest
            x_tile, y_tile, against_tile = tiles[:terms], tiles[terms : 2 * terms], tiles[2 * terms :]
            (step,) = indices
            here = chunk(step)
            snapshot = snapshots.at[jax.lax.rem(step, jnp.int32(SNAPSHOTS))]
            plgpu.wait_smem_to_gmem(SNAPSHOTS - 1, wait_read_only=True)
            for term, part in enumerate(split_in_kernel(C, terms, t.interpret)):
                snapshot[term] = part
            store(n_all.at[here, head, column, at_row], n)
            if against_tile:
                dot = jnp.sum(C * joined(against_tile), axis=1)
                store(dots[0].at[here, head, column, at_row], dot)
            values = joined(x_tile)
            # All of them before the fence of commit_smem, behind which the next tiles may take their place.
            w, u, decay = (plgpu.load(weight.at[of], layout=plgpu.Layout.WGMMA.reduce(1)) for of in (0, 1, 2))
            decay_n = plgpu.load(weight.at[3], layout=plgpu.Layout.WGMMA.reduce(0))
            for term, part in enumerate(split_in_kernel(values * _over_rows(w, values), WRITTEN, t.interpret)):
                scaled[term] = part
            plgpu.commit_smem()
            _copy_out(snapshot, C_all.at[:, here, head, at_row, at_column], terms)
            added = jnp.sum(values * _over_rows(u, values), axis=0)
            n = n * decay_n + added

            def update(acc):
                multiply(acc, parts(scaled, WRITTEN), y_tile, transpose_a=True)
                return acc[...]

            return _over_rows(decay, C) * C + pl.run_scoped(update, plgpu.ACC((L, wide), FLOAT)), n

        def first(C_tile, n_tile, barrier):
            plgpu.copy_gmem_to_smem(C_first.at[b, head, at_row, at_column], C_tile, barrier)
            plgpu.copy_gmem_to_smem(n_first.at[b, head, at_row], n_tile, barrier)
            plgpu.barrier_wait(barrier)
            by_column = plgpu.Layout.WGMMA.reduce(0)
            return plgpu.load(C_tile, layout=plgpu.Layout.WGMMA), plgpu.load(n_tile, layout=by_column)

        whole = pl.run_scoped(first, tile((L, wide), FLOAT), plgpu.SMEM((L,), FLOAT), plgpu.Barrier(num_arrivals=2))
        block = partial(plgpu.BlockSpec, memory_space=plgpu.SMEM)
        in_specs = [block((None, 4, L), lambda step: (chunk(step), 0, 0))]
        in_specs += [block((L, L), lambda step: (chunk(step), 0))] * terms
        in_specs += [block((L, wide), lambda step: (chunk(step), 0))] * terms
        ins = [weights_all.at[:, head]]
        ins += parts(x_all.at[:, :, head, at_row], terms) + parts(y_all.at[:, :, head, at_column], terms)
        if against_all is not None:
            in_specs += [block((None, L, wide), lambda step: (chunk(step), 0, 0))] * terms
            ins += parts(against_all.at[:, :, head, at_row, at_column], terms)
        pipeline = plgpu.emit_pipeline(
            body, grid=(steps,), in_specs=in_specs, max_concurrent_steps=t.stages, init_carry=whole
        )
        C, n = pipeline(*ins)
        plgpu.wait_smem_to_gmem(0)
        store(C_last.at[b, head, at_row, at_column], C)
        store(n_last.at[b, head, column, at_row], n)

    out_type = [
        jax.ShapeDtypeStruct((terms, c, N, K, V), HALF),
        jax.ShapeDtypeStruct((c, N, columns, K), FLOAT),
        jax.ShapeDtypeStruct((B, N, K, V), FLOAT),
        jax.ShapeDtypeStruct((B, N, columns, K), FLOAT),
    ]
    operands = [x, y, weights, initial_C, initial_n, begin, count]
    if against is not None:
        out_type.append(jax.ShapeDtypeStruct((c, N, columns, K), FLOAT))
        operands.append(against)
    C, n, C_last, n_last, *dots = launch(
        mlstm_states,
        t.interpret,
        out_type=out_type,
        scratch_types=[tile((WRITTEN, L, L), HALF), tile((SNAPSHOTS, terms, L, wide), HALF)],
        grid=(B, N, K // L, columns),
        grid_names=("sequence", "head", "row", "column"),
    )(*operands)
    return C, n[:, :, 0], C_last, n_last[:, :, 0], *dots


def scores(t: Tiles, q: jax.Array, k: jax.Array, vectors: jax.Array, scale: float) -> tuple[jax.Array, jax.Array]:
    """Decayed scores inside every chunk, ``P[t,j] = scale·(q_t·k_j) exp(F[t,j] + i_j − m_t)``.

    Args:
        q, k: ``(terms, c·L, N, K)``.
        vectors: as `VECTORS` says, without the last two, ``(c, N, 14, L)``.
        scale: 1/√K.

    Returns:
        P ``(terms, c, N, L, L)`` and its sums over j, ``(c, N, L)``.
    """
    plgpu = pallas().plgpu
    terms = t.terms
    c, N = vectors.shape[:2]

    def mlstm_scores(q_all, k_all, vectors_all, P_all, sum_all, vector, P_tiles, barrier):
        head, chunk = jax.lax.axis_index("head"), jax.lax.axis_index("chunk")
        plgpu.copy_gmem_to_smem(vectors_all.at[chunk, head], vector, barrier)
        product = _product(t, q_all, k_all, head, chunk)
        plgpu.barrier_wait(barrier)
        P = product * _decay(vector) * scale
        store(sum_all.at[chunk, head], jnp.sum(P, axis=1))
        _store_terms(t, P, P_tiles, P_all, chunk, head)
        plgpu.wait_smem_to_gmem(0)

    return launch(
        mlstm_scores,
        t.interpret,
        out_type=[jax.ShapeDtypeStruct((terms, c, N, L, L), HALF), jax.ShapeDtypeStruct((c, N, L), FLOAT)],
        scratch_types=[plgpu.SMEM(vectors.shape[2:], FLOAT), tile((terms, L, L), HALF), plgpu.Barrier()],
        grid=(N, c),
        grid_names=("head", "chunk"),
    )(q, k, vectors)


def scores_gradient(
    t: Tiles, q: jax.Array, k: jax.Array, v: jax.Array, dh: jax.Array, vectors: jax.Array, scale: float
) -> tuple[jax.Array, ...]:
    """What the gradient needs of the scores inside every chunk.

    With ``E = exp(F + i − m)``, ``P = scale·(qkᵀ)⊙E``, ``dP[t,j] = (dh_t·v_j)/Y_t + dν_t`` and ``W = P⊙dP``.

    Args:
        q, k, v, dh: ``(terms, c·L, N, ·)``.
        vectors: as `VECTORS` says, ``(c, N, 16, L)``.
        scale: 1/√K.

    Returns:
        ``P/Y`` and ``scale·E⊙dP``, ``(terms, c, N, L, L)``; the sums of W by level over rows and over columns, as
        `kernels.mlstm_gates` has them, ``(c, N, 6, L)`` each; the sums of W over t, ``(c, N, L)``.
    """
    plgpu = pallas().plgpu
    terms = t.terms
    c, N = vectors.shape[:2]

    def mlstm_scores_gradient(
        q_all, k_all, v_all, dh_all, vectors_all, P_all, dS_all, rows_all, columns_all, W_all, *scratch
    ):
        vector, P_tiles, dS_tiles, barrier = scratch
        head, chunk = jax.lax.axis_index("head"), jax.lax.axis_index("chunk")
        plgpu.copy_gmem_to_smem(vectors_all.at[chunk, head], vector, barrier)
        product = _product(t, q_all, k_all, head, chunk)
        dP = _product(t, dh_all, v_all, head, chunk)
        plgpu.barrier_wait(barrier)
        per_Y, dnu = (plgpu.load(vector.at[STABILISER + of], layout=plgpu.Layout.WGMMA.reduce(1)) for of in (1, 2))
        E = _decay(vector) * scale
        P = product * E
        dP = dP * _over_rows(per_Y, dP) + _over_rows(dnu, dP)
        _store_terms(t, P * _over_rows(per_Y, P), P_tiles, P_all, chunk, head)
        _store_terms(t, E * dP, dS_tiles, dS_all, chunk, head)
        W = P * dP
        store(W_all.at[chunk, head], jnp.sum(W, axis=0))
        differs = _first_difference()
        for level in range(LEVELS):
            of_level = jnp.where((differs >= 2**level) & (differs < 2 ** (level + 1)), W, 0.0)
            store(rows_all.at[chunk, head, level], jnp.sum(of_level, axis=1))
            store(columns_all.at[chunk, head, level], jnp.sum(of_level, axis=0))
        plgpu.wait_smem_to_gmem(0)

    matrix = jax.ShapeDtypeStruct((terms, c, N, L, L), HALF)
    by_level = jax.ShapeDtypeStruct((c, N, LEVELS, L), FLOAT)
    operand = tile((terms, L, L), HALF)
    return launch(
        mlstm_scores_gradient,
        t.interpret,
        out_type=[matrix, matrix, by_level, by_level, jax.ShapeDtypeStruct((c, N, L), FLOAT)],
        scratch_types=[plgpu.SMEM(vectors.shape[2:], FLOAT), operand, operand, plgpu.Barrier()],
        grid=(N, c),
        grid_names=("head", "chunk"),
    )(q, k, v, dh, vectors)


class Mix(NamedTuple):
    """What `mix` computes beside the plain sum.

    Attributes:
        transpose_A, transpose_M: whether to take A, M transposed.
        outer: whether ``u_t·vector`` is added.
        dotted: whether the part from the memory is multiplied with Z and summed.
        dtype: of the result.
    """

    transpose_A: bool
    transpose_M: bool
    outer: bool
    dotted: bool
    dtype: Any


def mix(
    t: Tiles,
    how: Mix,
    A: jax.Array,
    X: jax.Array,
    Y: jax.Array,
    M: jax.Array,
    weights: jax.Array,
    vector: jax.Array | None = None,
    Z: jax.Array | None = None,
) -> tuple[jax.Array, ...]:
    """``out_t = o_t·(Σ_j A[t,j] X_j + s_t MᵀY_t + u_t·vector)`` for the steps of every chunk.

    Args:
        A: ``(terms, c, N, L, L)``.
        X: ``(terms, c·L, N, D)``.
        Y: ``(terms, c·L, N, D')``.
        M: memories, ``(terms, c, N, D', D)``; ``(…, D, D')`` where transposed.
        weights: o, s and u, ``(c, N, 3, L)``.
        vector: ``(c, N, D)`` float32, where ``how.outer``.
        Z: like X, where ``how.dotted``.

    Returns:
        out ``(c·L, N, D)`` in ``how.dtype``; where dotted also ``Σ_d (s_t MᵀY_t + u_t·vector)_d Z_td`` in parts,
        ``(c, N, D/wide, L)``.
    """
    p = pallas()
    pl, plgpu = p.pl, p.plgpu
    terms, wide = t.terms, t.wide
    c, N, D, inner = A.shape[1], A.shape[2], X.shape[-1], Y.shape[-1]

    def mlstm_mix(A_all, X_all, Y_all, M_all, weights_all, *rest):
        rest = list(rest)
        vector_all = rest.pop(0) if how.outer else None
        Z_all = rest.pop(0) if how.dotted else None
        out_all = rest.pop(0)
        dot_all = rest.pop(0) if how.dotted else None
        Z_tile = rest.pop() if how.dotted else None
        A_tile, X_tile, out_tile, barrier = rest
        head, chunk, column = (jax.lax.axis_index(name) for name in ("head", "chunk", "column"))
        steps, at_column = pl.ds(chunk * L, L), pl.ds(column * wide, wide)
        _copy_in(A_all.at[:, chunk, head], A_tile, terms, barrier)
        _copy_in(X_all.at[:, steps, head, at_column], X_tile, terms, barrier)
        if Z_tile is not None and Z_all is not None:
            _copy_in(Z_all.at[:, steps, head, at_column], Z_tile, terms, barrier)

        def from_memory(acc):
            def body(_, *tiles):
                multiply(acc, tiles[:terms], tiles[terms:], transpose_b=how.transpose_M)
                plgpu.wgmma_wait(0)

            M_part = M_all.at[:, chunk, head]
            M_part = M_part.at[:, at_column] if how.transpose_M else M_part.at[:, :, at_column]
            of_Y = plgpu.BlockSpec((L, L), lambda at: (0, at), memory_space=plgpu.SMEM)
            of_M = plgpu.BlockSpec(
                (wide, L) if how.transpose_M else (L, wide),
                (lambda at: (0, at)) if how.transpose_M else (lambda at: (at, 0)),
                memory_space=plgpu.SMEM,
            )
            plgpu.emit_pipeline(
                body, grid=(inner // L,), in_specs=[of_Y] * terms + [of_M] * terms, max_concurrent_steps=t.stages
            )(*parts(Y_all.at[:, steps, head], terms), *parts(M_part, terms))
            return acc[...]

        def of_rows(which):
            return plgpu.load(weights_all.at[chunk, head, which], layout=plgpu.Layout.WGMMA.reduce(1), optimized=False)

        total = pl.run_scoped(from_memory, plgpu.ACC((L, wide), FLOAT))
        total = total * _over_rows(of_rows(1), total)
        if vector_all is not None:
            columns = plgpu.load(
                vector_all.at[chunk, head, at_column], layout=plgpu.Layout.WGMMA.reduce(0), optimized=False
            )
            total = total + _over_rows(of_rows(2), total) * _over_columns(columns, total)
        plgpu.barrier_wait(barrier)
        if Z_tile is not None and dot_all is not None:
            dot = jnp.sum(total * joined(parts(Z_tile, terms)), axis=1)
            store(dot_all.at[chunk, head, column], dot)

        def from_chunk(acc):
            multiply(acc, parts(A_tile, terms), parts(X_tile, terms), transpose_a=how.transpose_A)
            return acc[...]

        total = total + pl.run_scoped(from_chunk, plgpu.ACC((L, wide), FLOAT))
        out_tile[...] = (total * _over_rows(of_rows(0), total)).astype(how.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_tile, out_all.at[steps, head, at_column])
        plgpu.wait_smem_to_gmem(0)

    out_type = [jax.ShapeDtypeStruct((c * L, N, D), how.dtype)]
    operand = tile((terms, L, wide), HALF)
    scratch = [
        tile((terms, L, L), HALF),
        operand,
        tile((L, wide), how.dtype),
        plgpu.Barrier(num_arrivals=terms * (3 if how.dotted else 2)),
    ]
    operands = [A, X, Y, M, weights]
    operands += [part for part in (vector, Z) if part is not None]
    if how.dotted:
        out_type.append(jax.ShapeDtypeStruct((c, N, D // wide, L), FLOAT))
        scratch.append(operand)
    return tuple(
        launch(
            mlstm_mix,
            t.interpret,
            out_type=out_type,
            scratch_types=scratch,
            grid=(N, c, D // wide),
            grid_names=("head", "chunk", "column"),
        )(*operands)
    )


def _product(t: Tiles, x: Any, y: Any, head: Any, chunk: Any) -> jax.Array:
    """``x yᵀ`` of one chunk's steps, ``(L, L)`` in registers, streamed over the head dim."""
    p = pallas()
    plgpu = p.plgpu
    steps = p.pl.ds(chunk * L, L)

    def compute(acc):
        def body(_, *tiles):
            multiply(acc, tiles[: t.terms], tiles[t.terms :], transpose_b=True)
            plgpu.wgmma_wait(0)

        of_tile = plgpu.BlockSpec((L, L), lambda at: (0, at), memory_space=plgpu.SMEM)
        plgpu.emit_pipeline(
            body, grid=(x.shape[-1] // L,), in_specs=[of_tile] * (2 * t.terms), max_concurrent_steps=t.stages
        )(*parts(x.at[:, steps, head], t.terms), *parts(y.at[:, steps, head], t.terms))
        return acc[...]

    return p.pl.run_scoped(compute, plgpu.ACC((L, L), FLOAT))


def _first_difference() -> jax.Array:
    """``t xor j`` below the diagonal, 0 on it, −1 above: which level of F holds a pair."""
    plgpu = pallas().plgpu
    row, column = (plgpu.broadcasted_iota(jnp.int32, (L, L), axis, layout=plgpu.Layout.WGMMA) for axis in (0, 1))
    return jnp.where(row >= column, row ^ column, -1)


def _decay(vector: Any) -> jax.Array:
    """``exp(F[t,j] + i_j − m_t)``, 0 above the diagonal and where nothing is left."""
    plgpu = pallas().plgpu
    by_row, by_column = plgpu.Layout.WGMMA.reduce(1), plgpu.Layout.WGMMA.reduce(0)
    differs = _first_difference()
    D = _over_columns(plgpu.load(vector.at[COLUMNS + LEVELS], layout=by_column), differs)
    for level in range(LEVELS):
        to_row = plgpu.load(vector.at[level], layout=by_row)
        from_column = plgpu.load(vector.at[COLUMNS + level], layout=by_column)
        D = jnp.where(differs >= 2**level, _over_rows(to_row, D) + _over_columns(from_column, D), D)
    m = _over_rows(plgpu.load(vector.at[STABILISER], layout=by_row), D)
    gone = (differs < 0) | (D == -jnp.inf)
    return jnp.where(gone, 0.0, jnp.exp(D - m))


def _store_terms(t: Tiles, x: jax.Array, tiles: Any, out: Any, chunk: Any, head: Any) -> None:
    plgpu = pallas().plgpu
    for term, part in enumerate(split_in_kernel(x, t.terms, t.interpret)):
        tiles[term] = part
    plgpu.commit_smem()
    _copy_out(tiles, out.at[:, chunk, head], t.terms)


def _copy_in(source: Any, to: Any, terms: int, barrier: Any) -> None:
    """TMA of every term; ``barrier`` awaits as many arrivals."""
    for x, y in zip(parts(source, terms), parts(to, terms), strict=True):
        pallas().plgpu.copy_gmem_to_smem(x, y, barrier)


def _copy_out(source: Any, to: Any, terms: int) -> None:
    """TMA of every term as one group."""
    plgpu = pallas().plgpu
    for x, y in zip(parts(source, terms), parts(to, terms), strict=True):
        plgpu.copy_smem_to_gmem(x, y, commit_group=False)
    plgpu.commit_smem_to_gmem_group()


def _over_rows(x: jax.Array, like: jax.Array) -> jax.Array:
    """A value for each row, repeated over the columns of ``like``."""
    return jax.lax.broadcast_in_dim(x, like.shape, (0,))


def _over_columns(x: jax.Array, like: jax.Array) -> jax.Array:
    return jax.lax.broadcast_in_dim(x, like.shape, (1,))
