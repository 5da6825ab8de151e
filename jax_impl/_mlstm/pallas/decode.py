"""One step of the mLSTM in one kernel: the memory is read once and written once (Mosaic GPU; TMA, no tensor cores).

Source: Beck et al., xLSTM, arXiv:2405.04517, equations 19 to 27. Per head, with ``a = log σ(f)`` and ``q̂ = q/√K``::

    m' = max(a + m, i)      C' = exp(a + m − m') C + exp(i − m') k vᵀ      n' = exp(a + m − m') n + exp(i − m') k
    h = C'ᵀq̂ / (max(|n'·q̂|, exp(−min(m', 64))) + eps)

A block computes one head of one sequence and 64 columns of C, which it streams in tiles of 64 rows; the gates are
scalars of the block. The values that all columns need (n', m', n'·q̂) are computed by every block and written by the
first one. All arithmetic is float32. Tiles may extend beyond C: TMA reads zeros there and writes nothing.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jax_impl._mlstm.drift import LARGEST_EXACT
from jax_impl._mlstm.pallas.sequence import LARGEST
from jax_impl._mlstm.state import normaliser_floor
from jax_impl._pallas import (
    FLOAT,
    REDUCTION_SCRATCH,
    SLACK,
    TERMS,
    L,
    launch,
    over_columns,
    over_rows,
    pallas,
    store,
    tile,
    unavailable,
)
from reference.arguments import MLSTMState
from reference.backends import Row

ROWS, COLUMNS = 8, 32
"""C is read and written in place if K and V are multiples of these sizes, the rows and columns of TMA's swizzled
float32 tiles; otherwise it is copied and padded."""
STAGES = 2
"""TMA stages of C, and number of buffers from which C is copied out."""

ROW = Row(
    backend="pallas",
    operation="mlstm_step",
    devices=("gpu", "cuda", "cpu"),
    dtypes=tuple(TERMS),
    largest=LARGEST,
    packed=False,
    unavailable=unavailable,
)


def memory() -> int:
    """Bytes of shared memory per block, rounded up: C in and out, and rows of q, k and n."""
    return STAGES * (2 * L * L * 4 + 3 * L * 4) + REDUCTION_SCRATCH + SLACK


def step(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    i: jax.Array,
    f: jax.Array,
    state: MLSTMState,
    *,
    eps: float,
    interpret: bool,
) -> tuple[jax.Array, MLSTMState]:
    """h, ``(B, N, V)``, in the dtype of v, and the state after the step.

    Args:
        q, k: ``(B, N, K)``.
        v: ``(B, N, V)``.
        i, f: ``(B, N)``.
        state: ``(C, n, m)``, ``(B, N, K, V)``, ``(B, N, K)``, ``(B, N)``, float32.
        eps: added to the normaliser.
        interpret: whether the GPU interpreter runs the kernel.
    """
    p = pallas()
    pl, plgpu = p.pl, p.plgpu
    B, N, K, V = *q.shape, v.shape[-1]
    if not i.size:
        return jnp.zeros_like(v), state
    C = _padded(state.C, ROWS, COLUMNS)
    rows, columns = -(-C.shape[-2] // L), -(-C.shape[-1] // L)
    scale = K**-0.5

    def mlstm_decode(block, q_all, k_all, v_all, i_all, f_all, C_all, n_all, m_all, h_all, C_new, n_new, m_new, tiles):
        b, head, column = (block[axis] for axis in ("sequence", "head", "column"))
        by_row, by_column = plgpu.Layout.WGMMA.reduce(1), plgpu.Layout.WGMMA.reduce(0)
        here = pl.ds(column * L, L)
        m, decay, written = _gates(i_all[b, head].astype(FLOAT), f_all[b, head].astype(FLOAT), m_all[b, head])
        v_here = plgpu.load(v_all.at[b, head, here], layout=by_column, optimized=False).astype(FLOAT)

        def body(indices, q_tile, k_tile, n_tile, C_tile, carry):
            (row,), (read, norm) = indices, carry
            at_row = pl.ds(row * L, L)
            q_row, k_row = (plgpu.load(of, layout=by_row).astype(FLOAT) for of in (q_tile, k_tile))
            n = decay * plgpu.load(n_tile, layout=by_row) + written * k_row
            C = decay * plgpu.load(C_tile, layout=plgpu.Layout.WGMMA)
            C = C + over_rows(written * k_row, C.shape) * over_columns(v_here, C.shape)
            C_out = tiles.at[jax.lax.rem(row, jnp.int32(STAGES))]
            plgpu.wait_smem_to_gmem(STAGES - 1, wait_read_only=True)
            C_out[...] = C
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(C_out, C_new.at[b, head, at_row, here])

            @pl.when(column == 0)
            def _():
                store(n_new.at[b, head, at_row], n)

            return read + C * over_rows(q_row, C.shape), norm + n * q_row

        of_rows = plgpu.BlockSpec((L,), lambda row: (row,), memory_space=plgpu.SMEM)
        of_C = plgpu.BlockSpec((L, L), lambda row: (row, column), memory_space=plgpu.SMEM)
        pipeline = plgpu.emit_pipeline(
            body,
            grid=(rows,),
            in_specs=[of_rows, of_rows, of_rows, of_C],
            max_concurrent_steps=STAGES,
            init_carry=(
                plgpu.layout_cast(jnp.zeros((L, L), FLOAT), plgpu.Layout.WGMMA),
                plgpu.layout_cast(jnp.zeros((L,), FLOAT), by_row),
            ),
        )
        operands = (part.at[b, head] for part in (q_all, k_all, n_all, C_all))
        read, norm = pipeline(*operands)
        plgpu.wait_smem_to_gmem(0)
        nu = jnp.sum(over_rows(norm, (L, L)), axis=0) * scale
        Y = jnp.maximum(jnp.abs(nu), normaliser_floor(m)) + eps
        store(h_all.at[b, head, here], (jnp.sum(read, axis=0) * scale / Y).astype(v.dtype))

        @pl.when(column == 0)
        def _():
            m_new[b, head] = m

    found = launch(
        mlstm_decode,
        interpret,
        operands={
            "q_all": _padded(q, L),
            "k_all": _padded(k, L),
            "v_all": _padded(v, L),
            "i_all": i,
            "f_all": f,
            "C_all": C,
            "n_all": _padded(state.n, L),
            "m_all": state.m,
        },
        results={
            "h_all": jax.ShapeDtypeStruct((B, N, columns * L), v.dtype),
            "C_new": jax.ShapeDtypeStruct(C.shape, FLOAT),
            "n_new": jax.ShapeDtypeStruct((B, N, rows * L), FLOAT),
            "m_new": jax.ShapeDtypeStruct((B, N), FLOAT),
        },
        scratch={"tiles": tile((STAGES, L, L), FLOAT)},
        grid={"sequence": B, "head": N, "column": columns},
    )
    state = MLSTMState(C=found["C_new"][..., :K, :V], n=found["n_new"][..., :K], m=found["m_new"])
    return found["h_all"][..., :V], state


def _gates(i: Any, f: Any, m: Any) -> tuple[Any, Any, Any]:
    """The stabiliser after the step, and the weights of the memory and of the write; that of an empty memory is 0.

    Where m is so large that its rounding alone may put the memory out of range, the larger weight counts as 1.
    """
    small = jnp.exp(-jnp.abs(f))
    near_1 = 1 + small
    log1p = jnp.where(near_1 == 1, small, jnp.log(near_1) * (small / (near_1 - 1)))
    a = jnp.minimum(f, 0) - log1p
    kept = a + m
    new = jnp.maximum(kept, i)
    # What rounding took from the sum (Knuth's two-sum): without it, C would be off by u·|m| of itself at every step.
    rest = kept - a
    lost = (a - (kept - rest)) + (m - rest)
    alpha = jnp.where(kept == -jnp.inf, -jnp.inf, (kept - new) + lost)
    iota = jnp.where(i == -jnp.inf, -jnp.inf, i - new)
    exact = jnp.abs(new) < LARGEST_EXACT / float(jnp.finfo(FLOAT).eps)
    excess = jnp.where(exact, 0.0, jnp.maximum(alpha, iota))
    decay = jnp.where(alpha == -jnp.inf, 0.0, jnp.exp(alpha - excess))
    return new, decay, jnp.where(iota == -jnp.inf, 0.0, jnp.exp(iota - excess))


def _padded(x: jax.Array, *multiples: int) -> jax.Array:
    """The array with its last axes padded with zeros to a multiple of the given sizes, at least one multiple each."""
    widths = [(0, -size % of if size else of) for size, of in zip(x.shape[-len(multiples) :], multiples, strict=True)]
    return jnp.pad(x, [(0, 0)] * (x.ndim - len(widths)) + widths) if any(after for _, after in widths) else x
