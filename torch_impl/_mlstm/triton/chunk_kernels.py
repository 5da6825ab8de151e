"""The chunkwise mLSTM as Triton kernels: log weights and memories of all blocks, then parallel work inside.

Equations and names are those of `torch_impl._mlstm.chunkwise`. A sequence is cut into *blocks* of L steps, which are
numbered one sequence after the other; the last block may be partly empty (i = −∞, f = +∞, q = k = v = 0). The
stabiliser m' at the end of a block follows from sums of log gates, fall = Σ a_s and peak = max_j (Σ_{s>j} a_s + i_j)::

    m' = max(fall + m, peak)

Sums of log gates are rounded at their own size. They therefore determine m alone, which is only a unit. All weights
are sums of log gates in units of exp(m), so that they are exact to roundoff however large the gates are::

    α_t = a_t + m_{t−1} − m_t        ι_j = i_j − m_j        D[t,j] = Σ_{j<s≤t} α_s + ι_j
    p_t = Σ_{s≤t} α_s                g_j = Σ_{s>j} α_s + ι_j                total = p_L

Where m is large, its rounding puts the largest weight of a step at exp(δ) instead of 1. Inside a block, m_t + δ_t is
the unit in place of m_t: no weight is above 1, whatever the gates are. The memory that a block passes on is in units of
exp(m'), for which g and total include δ_L; see `LARGEST_UNIT`.

==================  ==============================================  ===============================================
kernel              a program computes                              and writes
==================  ==============================================  ===============================================
`gates`             block, head                                     fall, peak and the peak's step
`stabilisers`       sequence, head                                  m at the start and the end of every block
`log_weights`       block, head                                     m, α, ι, p and g of every step; total
`memories`          sequence, head, tile of C (or a part of n)      C and n at the start of every EVERY-th block
`outputs`           block, head, tile of V                          h, and m and G if they are kept
`normalisers`       block, head                                     1/Y, dh·c, dν and τ
`memory_gradients`  sequence, head, tile of C (or a part of n)      dC and dn + dC c at the end of every block
`gradients`         block, head                                     dq, dk, dv, di, df
==================  ==============================================  ===============================================

If one write outweighs all others, h is the v of that write for any q, and gradients are small differences of large
terms: C δ + n dν, δ·v_j + dν, dC v_j + dn, with δ = dh/Y. The backward pass therefore subtracts from the values a
centre c of the memory, the weighted mean of all v in it. With R = C − n cᵀ and τ = dν + δ·c these terms are::

    R δ + n τ        δ·(v_j − c) + τ        dC (v_j − c) + (dn + dC c)

so that what is rounded to 16 bits is multiplied by a factor as small as the result. The sums are the same for any c. c
belongs to the start of a block, except in the last term, where it belongs to the end of the block.

States are carried in float32 registers. C is stored between kernels only as an operand of products: in bfloat16 for
bfloat16 values and in float32 otherwise, like all computed operands (scores, weighted keys), since float16 could
overflow. Values per step that pass between kernels are float32, head-major, ``(B, N, S)`` or ``(N, T)``.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from torch_impl._mlstm.triton.shared import LARGEST_M, LARGEST_UNIT, finite, stabilised_decay
from torch_impl._triton.shared import (
    both,
    bound,
    device_function,
    dot,
    load_apart,
    load_tile,
    load_tile_apart,
    load_tile_transposed,
    log_sigmoid,
    maximum,
    operand,
    put,
    steps_at,
    store_tile,
)

UNSPECIALISED = ["S", "N"]
"""Arguments whose values are compiled into no kernel. Sizes of a batch come as these alone, never in a tuple, which
Triton would specialise."""


@device_function
def _place(block, table, S, PACKED: tl.constexpr, L: tl.constexpr):
    """Returns a block's sequence, its rank in the sequence, the sequence's first step in the arrays, and its steps.

    With PACKED, ``table`` is ``(cu_seqlens and a closing T, number of blocks before each sequence, sequence of each
    block)``, and S is T. Blocks beyond the last one, which the static bound allows for, belong to a sequence without
    steps.
    """
    if PACKED:
        sequence = tl.load(table[2] + block)
        rank = block - tl.load(table[1] + sequence)
        first = tl.load(table[0] + sequence)
        steps = tl.load(table[0] + sequence + 1) - first
    else:
        sequence = block // ((S + L - 1) // L)
        rank = block % ((S + L - 1) // L)
        first = 0
        steps = S
    return sequence, rank, first, steps


@device_function
def _blocks_of(sequence, table, S, PACKED: tl.constexpr, L: tl.constexpr):
    """Returns the first block of a sequence, the number of its blocks, its first step in the arrays, and its steps."""
    if PACKED:
        block = tl.load(table[1] + sequence)
        blocks = tl.load(table[1] + sequence + 1) - block
        first = tl.load(table[0] + sequence)
        steps = tl.load(table[0] + sequence + 1) - first
    else:
        blocks = (S + L - 1) // L
        block = sequence * blocks
        first = 0
        steps = S
    return block, blocks, first, steps


@device_function
def _rows(S, N, PACKED: tl.constexpr):
    """Strides of a head-major array, ``(B, N, S)`` or ``(N, T)``, by sequence and head."""
    if PACKED:
        return 0, S
    else:
        return N.to(tl.int64) * S, S


@device_function
def _row(x, strides, sequence, n, t):
    """Address of step t of a sequence's head in a head-major array."""
    return x + sequence.to(tl.int64) * strides[0] + n.to(tl.int64) * strides[1] + t


@device_function
def _scores(x, strides, sequence, n, t, L: tl.constexpr):
    """Address of the ``(L, L)`` scores, in a head-major array, of the block that begins with step t."""
    slot = tl.arange(0, L)
    step = sequence.to(tl.int64) * strides[0] + n.to(tl.int64) * strides[1] + t
    return x + (step + slot)[:, None] * L + slot[None, :]


@device_function
def _decays(a, i, L: tl.constexpr):
    """``D[t,j] = Σ_{j<s≤t} a_s + i_j`` with a masked cumulative sum, −∞ above the diagonal."""
    row = tl.arange(0, L)[:, None]
    col = tl.arange(0, L)[None, :]
    F = tl.cumsum(tl.where(row > col, a[:, None], 0.0), axis=0)
    return tl.where(row >= col, F + i[None, :], float("-inf"))


@device_function
def _gates_of(f, f_strides, i, i_strides, sequence, n, t, slot, inside):
    """a and i of a block that begins with step t; where no step is, nothing is forgotten and nothing written."""
    f = steps_at(f, f_strides, sequence, t, n) + slot * f_strides[1]
    i = steps_at(i, i_strides, sequence, t, n) + slot * i_strides[1]
    a = log_sigmoid(tl.load(f, mask=inside, other=float("inf")).to(tl.float32))
    return a, tl.load(i, mask=inside, other=float("-inf")).to(tl.float32)


@device_function
def _sums_after(x, L: tl.constexpr):
    """``Σ_{s>t} x_s``, with sums only: −∞ stays where it counts."""
    slot = tl.arange(0, L)
    later = tl.gather(x, tl.minimum(slot + 1, L - 1), axis=0)
    return tl.cumsum(tl.where(slot == L - 1, 0.0, later), axis=0, reverse=True)


@device_function
def _shifted(x, first, L: tl.constexpr):
    """``x_{t−1}``, and ``first`` at the first slot."""
    slot = tl.arange(0, L)
    return tl.where(slot == 0, first, tl.gather(x, tl.maximum(slot - 1, 0), axis=0))


@triton.jit
def _after(total, most, next_total, next_most):
    return total + next_total, maximum(most + next_total, next_most)


@device_function
def _largest(a, i, m):
    """``max(Σ_{s≤t} a_s + m, max_{j≤t} Σ_{j<s≤t} a_s + i_j)``."""
    total, most = tl.associative_scan((a, i), 0, _after)
    return maximum(total + m, most)


@triton.jit(do_not_specialize=UNSPECIALISED)
def gates(
    f, f_strides, i, i_strides, fall, peak, peak_step, table, S, N,
    PACKED: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """Sums of a block's log gates. ``peak_step`` is the step, counted from 1, with the largest write of the block."""
    block, n = tl.program_id(0) // N, tl.program_id(0) % N
    sequence, rank, first, steps = _place(block, table, S, PACKED, L)
    slot = tl.arange(0, L)
    t = first + rank * L
    left = steps - rank * L
    a, gate = _gates_of(f, f_strides, i, i_strides, sequence, n, t, slot, slot < left)
    f = steps_at(f, f_strides, sequence, t, n) + slot * f_strides[1]
    next_f = tl.load(f + f_strides[1], mask=(slot < L - 1) & (slot + 1 < left), other=float("inf"))
    g = tl.cumsum(log_sigmoid(next_f.to(tl.float32)), axis=0, reverse=True) + gate
    here = block.to(tl.int64) * N + n
    # A NaN of i, which the largest write may lose, makes m one from here on.
    tl.store(fall + here, tl.sum(tl.where(gate == gate, a, gate), axis=0))
    tl.store(peak + here, tl.max(g, axis=0))
    tl.store(peak_step + here, rank * L + 1 + tl.argmax(g, axis=0))


@triton.jit
def _join(total, most, at, next_total, next_most, next_at):
    carried = most + next_total
    return total + next_total, tl.maximum(carried, next_most), tl.where(next_most > carried, next_at, at)


@triton.jit(do_not_specialize=UNSPECIALISED)
def stabilisers(
    fall, peak, peak_step, m_first, m_start, m_end, m_last, argmax_last, table, S, N,
    PACKED: tl.constexpr, L: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """``m' = max(fall + m, peak)`` along the blocks, and the step (0: the initial m) that attains the last m."""
    sequence, n = tl.program_id(0) // N, tl.program_id(0) % N
    block, blocks, _, _ = _blocks_of(sequence, table, S, PACKED, L)
    m = 0.0 if m_first is None else tl.load(m_first + sequence * N + n)
    m = m + tl.zeros((), tl.float32)
    at = tl.zeros((), tl.int32)
    offset = tl.arange(0, WIDTH)
    for start in range(0, bound(blocks), WIDTH):
        rank = start + offset
        here = (block + rank).to(tl.int64) * N + n
        inside = rank < blocks
        sums = tl.load(fall + here, mask=inside, other=0.0)
        peaks = tl.load(peak + here, mask=inside, other=float("-inf"))
        steps = tl.load(peak_step + here, mask=inside, other=0)
        sums, peaks, steps = tl.associative_scan((sums, peaks, steps), 0, _join)
        ends = maximum(sums + m, peaks)
        steps = tl.where(peaks > sums + m, steps, at)
        tl.store(m_start + here, m, mask=inside & (offset == 0))
        tl.store(m_start + here + N, ends, mask=(rank + 1 < blocks) & (offset < WIDTH - 1))
        tl.store(m_end + here, ends, mask=inside)
        # The same bits as the end of the last block: the memory is in units of exp of them.
        last = offset == tl.minimum(blocks - start, WIDTH) - 1
        m = tl.sum(tl.where(last, ends, 0.0), axis=0)
        at = tl.max(tl.where(last, steps, 0), axis=0)
    tl.store(m_last + sequence * N + n, m)
    tl.store(argmax_last + sequence * N + n, at)


@triton.jit(do_not_specialize=UNSPECIALISED)
def log_weights(
    f, f_strides, i, i_strides, m_first, m_start, m_end, m_kept, m_out, alpha_out, iota_out, p_out, g_out,
    total, table, S, N,
    PACKED: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """m of every step, unless it is given as ``m_kept``, and the log weights in units of it, unless they are None."""
    block, n = tl.program_id(0) // N, tl.program_id(0) % N
    sequence, rank, first, steps = _place(block, table, S, PACKED, L)
    row_strides = _rows(S, N, PACKED)
    if rank * L >= steps:
        return
    slot = tl.arange(0, L)
    t = first + rank * L
    left = steps - rank * L
    inside = slot < left
    here = block.to(tl.int64) * N + n
    a, gate = _gates_of(f, f_strides, i, i_strides, sequence, n, t, slot, inside)
    if m_kept is None:
        m_block = tl.load(m_start + here)
        m = _largest(a, gate, m_block)
        # The same bits as the m with which the next block starts.
        m = tl.where(slot >= tl.minimum(left, L) - 1, tl.load(m_end + here), m)
        tl.store(_row(m_out, row_strides, sequence, n, t) + slot, m, mask=inside)
        m_before = _shifted(m, m_block, L)
    else:
        kept = _row(m_kept, row_strides, sequence, n, t) + slot
        m = tl.load(kept, mask=inside, other=0.0)
        m_block = 0.0 if m_first is None else tl.load(m_first + sequence * N + n)
        m_before = tl.load(kept - 1, mask=inside & (rank * L + slot > 0), other=0.0)
        m_before = tl.where(rank * L + slot == 0, m_block, m_before)
    if alpha_out is not None:
        alpha = tl.where(inside, stabilised_decay(a, m_before, a + m_before, finite(m)), 0.0)
        iota = gate - finite(m)
        delta = _largest(alpha, iota, 0.0)
        alpha += _shifted(delta, 0.0, L)
        most = finite(tl.maximum(alpha, iota))
        alpha = tl.where(inside, alpha - most, 0.0)
        iota -= most
        unit = tl.max(tl.where(slot == tl.minimum(left, L) - 1, m, float("-inf")), axis=0)
        rest = tl.max(tl.where(slot == tl.minimum(left, L) - 1, most, float("-inf")), axis=0)
        rest = tl.where((rest > -LARGEST_UNIT) & (tl.abs(unit) < LARGEST_UNIT), rest, 0.0)
        tl.store(_row(alpha_out, row_strides, sequence, n, t) + slot, alpha, mask=inside)
        tl.store(_row(iota_out, row_strides, sequence, n, t) + slot, iota, mask=inside)
        tl.store(_row(p_out, row_strides, sequence, n, t) + slot, tl.cumsum(alpha, axis=0), mask=inside)
        tl.store(_row(g_out, row_strides, sequence, n, t) + slot, _sums_after(alpha, L) + iota + rest, mask=inside)
        tl.store(total + here, tl.sum(alpha, axis=0) + rest)


@device_function
def _kept(memory, into, PRECISION: tl.constexpr):
    """A tile of a memory as the operand that other kernels read from ``into``."""
    return operand(memory, into.dtype.element_ty, "tf32" if PRECISION == "tf32x3" else PRECISION)


@triton.jit(do_not_specialize=UNSPECIALISED)
def memories(
    k, k_strides, v, v_strides, g, total, C_first, n_first, c_first, C_start, n_start, c_start, C_last,
    n_last, table, S, N, K, V,
    PACKED: tl.constexpr, L: tl.constexpr, EVERY: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    NK: tl.constexpr, NV: tl.constexpr, PRECISION: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """``C' = γC + Σ_j w_j k_j v_jᵀ`` along a sequence, ``γ = exp(total)``, ``w_j = exp(g_j)``.

    A program holds a ``(BK, BV)`` tile of C in registers; the programs of the last column hold a part of n instead.
    With ``c_start``, the stored memory is the centred R = C − n cᵀ, together with c: see the docstring of this module.
    PIECES is the number of operands into which w k, which is float32, is split.
    """
    y = tl.program_id(0) % (NV + 1)
    x = tl.program_id(0) // (NV + 1) % NK
    head = tl.program_id(0) // (NV + 1) // NK % N
    sequence = tl.program_id(0) // (NV + 1) // NK // N
    block, blocks, first, steps = _blocks_of(sequence, table, S, PACKED, L)
    row_strides = _rows(S, N, PACKED)
    row, col, slot = x * BK + tl.arange(0, BK), y * BV + tl.arange(0, BV), tl.arange(0, L)
    state = (sequence * N + head).to(tl.int64)
    g = _row(g, row_strides, sequence, head, first)
    chunk = block // EVERY + sequence
    # It depends only on the block's number, so it is loaded a block ahead.
    decay = tl.load(total + block.to(tl.int64) * N + head, mask=blocks > 0)
    if y < NV:
        inside = (row < K)[:, None] & (col < V)[None, :]
        place = row[:, None] * V + col[None, :]
        C = tl.zeros((BK, BV), tl.float32)
        if C_first is not None:
            C = tl.load(C_first + state * K * V + place, mask=inside, other=0.0)
        if c_start is not None:
            centre = tl.zeros((BV,), tl.float32)
            weight = tl.zeros((), tl.float32)
            vector = tl.zeros((BK,), tl.float32)
            if C_first is not None:
                vector = tl.load(n_first + state * K + row, mask=row < K, other=0.0)
                centre = tl.load(c_first + state * (V + 1) + col, mask=col < V, other=0.0)
                weight += tl.load(c_first + state * (V + 1) + V)
                # Where n is close to 0, C/n is not a value that was ever written.
                t = first + tl.zeros((), tl.int32)
                values = load_tile(steps_at(v, v_strides, sequence, t, head), v_strides, slot, col, steps, V)
                most = tl.max(tl.max(tl.abs(values.to(tl.float32)), axis=1), axis=0)
                centre = tl.minimum(tl.maximum(centre, -most), most)
        for rank in range(bound(blocks)):
            kept = (chunk + rank // EVERY).to(tl.int64) * N + head
            into = C_start + kept * K * V + place
            if c_start is not None:
                tl.store(c_start + kept * V + col, centre, mask=both(col < V, x == 0))
                tl.store(into, _kept(C - vector[:, None] * centre[None, :], C_start, PRECISION), mask=inside)
            else:
                tl.store(into, _kept(C, C_start, PRECISION), mask=inside & (rank % EVERY == 0))
            log_kept = decay
            decay = tl.load(total + (block + rank + 1).to(tl.int64) * N + head, mask=rank + 1 < blocks)
            t = first + rank * L
            left = steps - rank * L
            # 0. Without a scalar here, Triton 3.6 pipelines other loads, and spills for float16 values on Hopper.
            nothing = tl.minimum(tl.abs(log_kept), 0.0)
            w = tl.exp(tl.load(g + rank * L + slot, mask=slot < left, other=float("-inf")) - nothing)
            keys = load_tile_transposed(steps_at(k, k_strides, sequence, t, head), k_strides, slot, row, left, K)
            values = load_tile(steps_at(v, v_strides, sequence, t, head), v_strides, slot, col, left, V)
            kept_part = tl.exp(log_kept)
            C *= kept_part
            written = keys.to(tl.float32) * w[None, :]
            if c_start is not None:
                weight *= kept_part
                weight_next = weight + tl.sum(w, axis=0)
                share = 1.0 / tl.maximum(weight_next, 1e-30)
                centre *= weight * share
                centre += tl.sum(values.to(tl.float32) * (w * share)[:, None], axis=0)
                weight = weight_next
                vector *= kept_part
            # In bfloat16, the first piece of a float32 holds 8 bits, three pieces hold all 24.
            for _ in tl.static_range(PIECES):
                piece = operand(written, C_start.dtype.element_ty, PRECISION)
                C = dot(piece, values.to(C_start.dtype.element_ty), C, PRECISION)
                written -= piece.to(tl.float32)
                if c_start is not None:
                    # n must use the same rounded k as C, or their difference keeps the rounding error.
                    vector += tl.sum(piece.to(tl.float32), axis=1)
        tl.store(C_last + state * K * V + place, C, mask=inside)
        if c_start is not None:
            tl.store(c_start + ((chunk + blocks).to(tl.int64) * N + head) * V + col, centre, mask=both(col < V, x == 0))
    else:
        vector = tl.zeros((BK,), tl.float32)
        if n_first is not None:
            vector = tl.load(n_first + state * K + row, mask=row < K, other=0.0)
        for rank in range(bound(blocks)):
            kept = (chunk + rank // EVERY).to(tl.int64) * N + head
            tl.store(n_start + kept * K + row, vector, mask=(row < K) & (rank % EVERY == 0))
            log_kept = decay
            decay = tl.load(total + (block + rank + 1).to(tl.int64) * N + head, mask=rank + 1 < blocks)
            t = first + rank * L
            left = steps - rank * L
            w = tl.exp(tl.load(g + rank * L + slot, mask=slot < left, other=float("-inf")))
            keys = load_tile(steps_at(k, k_strides, sequence, t, head), k_strides, slot, row, left, K).to(tl.float32)
            vector *= tl.exp(log_kept)
            vector += tl.sum(keys * w[:, None], axis=0)
        tl.store(n_last + state * K + row, vector, mask=row < K)


@device_function
def _floor(m, inside, STABILIZE_CORRECTLY: tl.constexpr):
    """The floor of ``|ν|`` for the m at these addresses."""
    m = tl.load(m, mask=inside, other=0.0)
    return tl.exp(-tl.minimum(m, LARGEST_M)) if STABILIZE_CORRECTLY else tl.zeros_like(m) + 1.0


@triton.jit(do_not_specialize=UNSPECIALISED)
def outputs(
    q, q_strides, k, k_strides, v, v_strides, m, alpha, iota, p, g, total, C_start, n_start, c_start, h,
    h_strides, G_out, table, S, N, K, V, scale, eps,
    PACKED: tl.constexpr, L: tl.constexpr, EVERY: tl.constexpr, STORED: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, NK: tl.constexpr, NV: tl.constexpr, PRECISION: tl.constexpr, STABILIZE_CORRECTLY: tl.constexpr,
):  # fmt: skip
    """h of a block: from the block itself, the blocks before it in its chunk, and the memory at the chunk's start.

    A chunk has EVERY blocks; ``C_start`` holds one memory for every STORED blocks.
    """
    y = tl.program_id(0) % NV
    head = tl.program_id(0) // NV % N
    block = tl.program_id(0) // NV // N
    sequence, rank, first, steps = _place(block, table, S, PACKED, L)
    row_strides = _rows(S, N, PACKED)
    if rank * L >= steps:
        return
    slot = tl.arange(0, L)
    t = first + rank * L
    left = steps - rank * L
    inside = slot < left
    col = y * BV + tl.arange(0, BV)
    stored = C_start.dtype.element_ty
    before = rank % EVERY
    memory = ((block - rank) // STORED + sequence + (rank - before) // STORED).to(tl.int64) * N + head

    decay = tl.load(_row(alpha, row_strides, sequence, head, t) + slot, mask=inside, other=0.0)
    gate = tl.load(_row(iota, row_strides, sequence, head, t) + slot, mask=inside, other=float("-inf"))
    prefix = tl.load(_row(p, row_strides, sequence, head, t) + slot, mask=inside, other=0.0)
    here = block.to(tl.int64) * N + head
    E = tl.exp(_decays(decay, gate, L))

    scores = tl.zeros((L, L), tl.float32)
    num = tl.zeros((L, BV), tl.float32)
    nu = tl.zeros((L,), tl.float32)
    for x in range(NK):
        row = x * BK + tl.arange(0, BK)
        queries = load_tile(steps_at(q, q_strides, sequence, t, head), q_strides, slot, row, left, K)
        keys = load_tile_transposed(steps_at(k, k_strides, sequence, t, head), k_strides, slot, row, left, K)
        place = row[:, None] * V + col[None, :]
        C = tl.load(C_start + memory * K * V + place, mask=(row < K)[:, None] & (col < V)[None, :], other=0.0)
        n = tl.load(n_start + memory * K + row, mask=row < K, other=0.0)
        scores = dot(queries, keys, scores, PRECISION)
        num = dot(queries.to(stored), C, num, PRECISION)
        if not (queries.dtype == tl.float32 and PRECISION == "ieee"):
            queries = load_tile_apart(steps_at(q, q_strides, sequence, t, head), q_strides, slot, row, left, K)
        nu += tl.sum(queries.to(tl.float32) * n[None, :], axis=1)

    between = tl.zeros((), tl.float32)
    for back in range(bound(before)):
        between += tl.load(total + here - (back + 1) * N)
    e = tl.exp(prefix + between) * scale
    if c_start is not None:
        centre = tl.load(c_start + memory * V + col, mask=col < V, other=0.0)
        num += nu[:, None] * centre[None, :]
    num *= e[:, None]
    nu *= e
    G = scores * E * scale
    if G_out is not None:
        tl.store(_scores(G_out, row_strides, sequence, head, t, L), G, mask=both(inside[:, None], y == 0))
    nu += tl.sum(G, axis=1)
    values = load_tile(steps_at(v, v_strides, sequence, t, head), v_strides, slot, col, left, V)
    num = dot(operand(G, stored, PRECISION), values.to(stored), num, PRECISION)

    read = tl.exp(prefix) * scale
    between = tl.zeros((), tl.float32)
    for back in range(bound(before)):
        s = t - (back + 1) * L
        written = tl.load(_row(g, row_strides, sequence, head, s) + slot) + between
        between += tl.load(total + here - (back + 1) * N)
        scores = tl.zeros((L, L), tl.float32)
        for x in range(NK):
            row = x * BK + tl.arange(0, BK)
            queries = load_tile(steps_at(q, q_strides, sequence, t, head), q_strides, slot, row, left, K)
            keys = load_tile_transposed(steps_at(k, k_strides, sequence, s, head), k_strides, slot, row, L, K)
            scores = dot(queries, keys, scores, PRECISION)
        G = scores * tl.exp(written)[None, :] * read[:, None]
        nu += tl.sum(G, axis=1)
        values = load_tile(steps_at(v, v_strides, sequence, s, head), v_strides, slot, col, L, V)
        num = dot(operand(G, stored, PRECISION), values.to(stored), num, PRECISION)

    Y = maximum(tl.abs(nu), _floor(_row(m, row_strides, sequence, head, t) + slot, inside, STABILIZE_CORRECTLY)) + eps
    num = num / Y[:, None]
    store_tile(steps_at(h, h_strides, sequence, t, head), h_strides, slot, col, left, V, num)


@triton.jit(do_not_specialize=UNSPECIALISED)
def normalisers(
    q, q_strides, k, k_strides, v, v_strides, dh, dh_strides, m, alpha, iota, p, C_start, n_start, c_start,
    G_kept, inverse_out, shift_out, dnu_out, tau_out, table, S, N, K, V, scale, eps,
    PACKED: tl.constexpr, L: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, NK: tl.constexpr, NV: tl.constexpr,
    PRECISION: tl.constexpr, STABILIZE_CORRECTLY: tl.constexpr,
):  # fmt: skip
    """``1/Y``, ``dh·c``, ``dν = −(dh·num)/Y² · [|ν| > floor] sign(ν)`` and ``τ = dν + dh·c/Y``.

    num and ν are recomputed, since the returned h is rounded to 16 bits. num is recomputed in centred form: dh is
    multiplied by the same products ``dh·v_j − dh·c`` to which `gradients` adds τ. The part that dν and dh·c/Y have in
    common is omitted from τ: where |ν| is above the floor, dh·c (1/Y − |ν|/Y²) = dh·c eps/Y² remains.
    """
    block, head = tl.program_id(0) // N, tl.program_id(0) % N
    sequence, rank, first, steps = _place(block, table, S, PACKED, L)
    row_strides = _rows(S, N, PACKED)
    if rank * L >= steps:
        return
    slot = tl.arange(0, L)
    t = first + rank * L
    left = steps - rank * L
    inside = slot < left
    stored = C_start.dtype.element_ty
    q, k = steps_at(q, q_strides, sequence, t, head), steps_at(k, k_strides, sequence, t, head)
    v, dh = steps_at(v, v_strides, sequence, t, head), steps_at(dh, dh_strides, sequence, t, head)
    memory = (block + sequence).to(tl.int64) * N + head
    prefix = tl.load(_row(p, row_strides, sequence, head, t) + slot, mask=inside, other=0.0)

    if G_kept is not None:
        G = tl.load(_scores(G_kept, row_strides, sequence, head, t, L), mask=inside[:, None], other=0.0)
    else:
        decay = tl.load(_row(alpha, row_strides, sequence, head, t) + slot, mask=inside, other=0.0)
        gate = tl.load(_row(iota, row_strides, sequence, head, t) + slot, mask=inside, other=float("-inf"))
        E = _decays(decay, gate, L)
        scores = tl.zeros((L, L), tl.float32)
        for x in range(NK):
            row = x * BK + tl.arange(0, BK)
            queries = load_tile(q, q_strides, slot, row, left, K)
            keys = load_tile_transposed(k, k_strides, slot, row, left, K)
            scores = dot(queries, keys, scores, PRECISION)
        G = scores * (tl.exp(E) * scale)

    product = tl.zeros((L,), tl.float32)
    shift = tl.zeros((L,), tl.float32)
    dscores = tl.zeros((L, L), tl.float32)
    for y in range(NV):
        col = y * BV + tl.arange(0, BV)
        upstream = load_tile(dh, dh_strides, slot, col, left, V)
        values = load_tile_transposed(v, v_strides, slot, col, left, V)
        dscores = dot(upstream, values, dscores, PRECISION)
        centre = tl.load(c_start + memory * V + col, mask=col < V, other=0.0)
        shift += tl.sum(upstream.to(tl.float32) * centre[None, :], axis=1)
        read = tl.zeros((L, BV), tl.float32)
        for x in range(NK):
            row = x * BK + tl.arange(0, BK)
            place = row[:, None] * V + col[None, :]
            C = tl.load(C_start + memory * K * V + place, mask=(row < K)[:, None] & (col < V)[None, :], other=0.0)
            read = dot(load_tile(q, q_strides, slot, row, left, K).to(stored), C, read, PRECISION)
        product += tl.sum(read * upstream.to(tl.float32), axis=1)
    nu = tl.zeros((L,), tl.float32)
    for x in range(NK):
        row = x * BK + tl.arange(0, BK)
        n = tl.load(n_start + memory * K + row, mask=row < K, other=0.0)
        nu += tl.sum(load_tile(q, q_strides, slot, row, left, K).to(tl.float32) * n[None, :], axis=1)
    e = tl.exp(prefix) * scale
    nu = nu * e + tl.sum(G, axis=1)
    product = product * e + tl.sum(G * (dscores - shift[:, None]), axis=1)

    floor = _floor(_row(m, row_strides, sequence, head, t) + slot, inside, STABILIZE_CORRECTLY)
    inverse = 1.0 / (maximum(tl.abs(nu), floor) + eps)
    # Not `> floor`: a NaN is kept.
    on_floor = tl.abs(nu) <= floor
    tau = tl.where(on_floor, 0.0, tl.where(nu < 0.0, product, -product)) * inverse * inverse
    dnu = tl.where(on_floor, 0.0, tau - shift * tl.abs(nu) * inverse * inverse)
    tau += shift * inverse * tl.where(on_floor, 1.0, eps * inverse)
    tl.store(_row(inverse_out, row_strides, sequence, head, t) + slot, inverse, mask=inside)
    tl.store(_row(shift_out, row_strides, sequence, head, t) + slot, shift, mask=inside)
    tl.store(_row(dnu_out, row_strides, sequence, head, t) + slot, dnu, mask=inside)
    tl.store(_row(tau_out, row_strides, sequence, head, t) + slot, tau, mask=inside)


@device_function
def _centres(c, memory, head, N, V, col, mask):
    """The centres at the start and at the end of a block. They are loaded one block ahead, as its decay is; passing one
    on from block to block would keep Triton 3.6 from pipelining the loop."""
    here = c + (memory.to(tl.int64) * N + head) * V + col
    mask = both(col < V, mask)
    return tl.load(here, mask=mask, other=0.0), tl.load(here + N * V, mask=mask, other=0.0)


@triton.jit(do_not_specialize=UNSPECIALISED)
def memory_gradients(
    q, q_strides, dh, dh_strides, p, inverse, dnu, tau, total, c_start, dC_last, dn_last, dC_end, dn_end,
    dn_start, dC_first, dn_first, table, S, N, K, V, scale,
    PACKED: tl.constexpr, L: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, NK: tl.constexpr, NV: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """``dC = γdC' + Σ_t e_t q̂_t δ_tᵀ`` backward along a sequence, ``e_t = exp(p_t)``; tiles as in `memories`.

    ``dn + dC c`` is carried in NV + 1 parts whose sum it is: the part of the last column, Σ_t e_t q̂_t τ_t, and for
    every tile of dC the change due to moving the centre. At the end of every block it is written as ``dn_start``, with
    the c of the block's start, and as ``dn_end``, less dC c for the stored dC, which is rounded: dC v_j + dn is then as
    exact as dC (v_j − c). dn itself, unrounded, is needed only at the start of a sequence.
    """
    y = tl.program_id(0) % (NV + 1)
    x = tl.program_id(0) // (NV + 1) % NK
    head = tl.program_id(0) // (NV + 1) // NK % N
    sequence = tl.program_id(0) // (NV + 1) // NK // N
    block, blocks, first, steps = _blocks_of(sequence, table, S, PACKED, L)
    row_strides = _rows(S, N, PACKED)
    row, col, slot = x * BK + tl.arange(0, BK), y * BV + tl.arange(0, BV), tl.arange(0, L)
    state = (sequence * N + head).to(tl.int64)
    p = _row(p, row_strides, sequence, head, first)
    inverse = _row(inverse, row_strides, sequence, head, first)
    dnu = _row(dnu, row_strides, sequence, head, first)
    tau = _row(tau, row_strides, sequence, head, first)
    decay = tl.load(total + (block + blocks - 1).to(tl.int64) * N + head, mask=blocks > 0)
    if y < NV:
        inside = (row < K)[:, None] & (col < V)[None, :]
        place = row[:, None] * V + col[None, :]
        dC = tl.zeros((BK, BV), tl.float32)
        if dC_last is not None:
            dC = tl.load(dC_last + state * K * V + place, mask=inside, other=0.0)
        memory = block + sequence + blocks
        centre = tl.load(c_start + (memory.to(tl.int64) * N + head) * V + col, mask=col < V, other=0.0)
        moved = tl.sum(dC * centre[None, :], axis=1)
        centres = _centres(c_start, memory - 1, head, N, V, col, blocks > 0)
        for back in range(bound(blocks)):
            rank = blocks - 1 - back
            here = (block + rank).to(tl.int64) * N + head
            rounded = _kept(dC, dC_end, PRECISION)
            tl.store(dC_end + here * K * V + place, rounded, mask=inside)
            c_here, c_next = centres
            centres = _centres(c_start, block + sequence + rank - 1, head, N, V, col, rank > 0)
            part = (here * (NV + 1) + y) * K + row
            tl.store(dn_end + part, moved - tl.sum(rounded.to(tl.float32) * c_next[None, :], axis=1), mask=row < K)
            moved += tl.sum(dC * (c_here - c_next)[None, :], axis=1)
            tl.store(dn_start + part, moved, mask=row < K)
            t = first + rank * L
            left = steps - rank * L
            kept = tl.exp(decay)
            decay = tl.load(total + here - N, mask=rank > 0)
            e = tl.exp(tl.load(p + rank * L + slot, mask=slot < left, other=float("-inf")))
            weight = e * scale * tl.load(inverse + rank * L + slot, mask=slot < left, other=0.0)
            queries = load_tile_transposed(steps_at(q, q_strides, sequence, t, head), q_strides, slot, row, left, K)
            upstream = load_tile(steps_at(dh, dh_strides, sequence, t, head), dh_strides, slot, col, left, V)
            moved *= kept
            dC *= kept
            dC = dot(
                operand(queries * weight[None, :], dC_end.dtype.element_ty, PRECISION),
                upstream.to(dC_end.dtype.element_ty),
                dC,
                PRECISION,
            )
        tl.store(dC_first + state * K * V + place, dC, mask=inside)
    else:
        dn = tl.zeros((BK,), tl.float32)
        if dn_last is not None:
            dn = tl.load(dn_last + state * K + row, mask=row < K, other=0.0)
        own = dn
        for back in range(bound(blocks)):
            rank = blocks - 1 - back
            here = (block + rank).to(tl.int64) * N + head
            tl.store(dn_end + (here * (NV + 1) + y) * K + row, own, mask=row < K)
            tl.store(dn_start + (here * (NV + 1) + y) * K + row, own, mask=row < K)
            t = first + rank * L
            left = steps - rank * L
            kept = tl.exp(decay)
            decay = tl.load(total + here - N, mask=rank > 0)
            e = tl.exp(tl.load(p + rank * L + slot, mask=slot < left, other=float("-inf")))
            e *= scale
            queries = load_tile(steps_at(q, q_strides, sequence, t, head), q_strides, slot, row, left, K).to(tl.float32)
            weight = e * tl.load(tau + rank * L + slot, mask=slot < left, other=0.0)
            own = own * kept + tl.sum(queries * weight[:, None], axis=0)
            weight = e * tl.load(dnu + rank * L + slot, mask=slot < left, other=0.0)
            dn = dn * kept + tl.sum(queries * weight[:, None], axis=0)
        tl.store(dn_first + state * K + row, dn, mask=row < K)


@triton.jit(do_not_specialize=UNSPECIALISED)
def gradients(
    q, q_strides, k, k_strides, v, v_strides, f, f_strides, dh, dh_strides, alpha, iota, p, g, inverse, shift, tau,
    total, C_start, n_start, dC_end, dn_end, dn_start, dm_net, argmax_last, G_kept, dq, dq_strides, dk,
    dk_strides, dv, dv_strides, di, di_strides, df, df_strides, table, S, N, K, V, scale,
    PACKED: tl.constexpr, L: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, NK: tl.constexpr, NV: tl.constexpr,
    PARTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All gradients of a block, from its own steps and from the memory and its gradient at its start and end.

    PARTS is the number of parts of ``dn + dC c``.
    """
    block, head = tl.program_id(0) // N, tl.program_id(0) % N
    sequence, rank, first, steps = _place(block, table, S, PACKED, L)
    row_strides = _rows(S, N, PACKED)
    if rank * L >= steps:
        return
    slot = tl.arange(0, L)
    t = first + rank * L
    left = steps - rank * L
    inside = slot < left
    stored = C_start.dtype.element_ty
    q, dq = steps_at(q, q_strides, sequence, t, head), steps_at(dq, dq_strides, sequence, t, head)
    k, dk = steps_at(k, k_strides, sequence, t, head), steps_at(dk, dk_strides, sequence, t, head)
    v, dv = steps_at(v, v_strides, sequence, t, head), steps_at(dv, dv_strides, sequence, t, head)
    dh = steps_at(dh, dh_strides, sequence, t, head)
    here = block.to(tl.int64) * N + head
    memory = (block + sequence).to(tl.int64) * N + head

    decay = tl.load(_row(alpha, row_strides, sequence, head, t) + slot, mask=inside, other=0.0)
    gate = tl.load(_row(iota, row_strides, sequence, head, t) + slot, mask=inside, other=float("-inf"))
    inverse_Y = tl.load(_row(inverse, row_strides, sequence, head, t) + slot, mask=inside, other=0.0)
    dnorm = tl.load(_row(tau, row_strides, sequence, head, t) + slot, mask=inside, other=0.0)

    if G_kept is None:
        scores = tl.zeros((L, L), tl.float32)
        for x in range(NK):
            row = x * BK + tl.arange(0, BK)
            queries = load_tile(q, q_strides, slot, row, left, K)
            keys = load_tile_transposed(k, k_strides, slot, row, left, K)
            scores = dot(queries, keys, scores, PRECISION)
    else:
        scores = tl.load(_scores(G_kept, row_strides, sequence, head, t, L), mask=inside[:, None], other=0.0)
    dscores = tl.zeros((L, L), tl.float32)
    for y in range(NV):
        col = y * BV + tl.arange(0, BV)
        upstream = load_tile(dh, dh_strides, slot, col, left, V)
        values = load_tile_transposed(v, v_strides, slot, col, left, V)
        dscores = dot(upstream, values, dscores, PRECISION)

    dscores -= tl.load(_row(shift, row_strides, sequence, head, t) + slot, mask=inside, other=0.0)[:, None]
    E = tl.exp(_decays(decay, gate, L)) * scale
    dscores = dscores * inverse_Y[:, None] + dnorm[:, None]
    if G_kept is None:
        scores *= E
    W = scores * dscores
    scores_T = tl.trans(operand(scores * inverse_Y[:, None], stored, PRECISION))
    dscores = operand(dscores * E, stored, PRECISION)
    one, other = slot[:, None], slot[None, :]
    d_input = tl.sum(W, axis=0)
    across = tl.sum(tl.where(other < one, tl.cumsum(W, axis=0, reverse=True), 0.0), axis=1)

    tl.debug_barrier()
    written = tl.exp(tl.load(_row(g, row_strides, sequence, head, t) + slot, mask=inside, other=float("-inf")))
    e = tl.exp(tl.load(_row(p, row_strides, sequence, head, t) + slot, mask=inside, other=0.0))
    for y in range(NV):
        col = y * BV + tl.arange(0, BV)
        dvalues = tl.zeros((L, BV), tl.float32)
        for x in range(NK):
            row = x * BK + tl.arange(0, BK)
            keys = load_tile(k, k_strides, slot, row, left, K)
            place = row[:, None] * V + col[None, :]
            dC = tl.load(dC_end + here * K * V + place, mask=(row < K)[:, None] & (col < V)[None, :], other=0.0)
            dvalues = dot(keys.to(stored), dC, dvalues, PRECISION)
        dvalues *= written[:, None]
        upstream = load_tile(dh, dh_strides, slot, col, left, V)
        dvalues = dot(scores_T, upstream.to(stored), dvalues, PRECISION)
        store_tile(dv, dv_strides, slot, col, left, V, dvalues)

    tl.debug_barrier()
    reads = tl.zeros((L,), tl.float32)
    writes = tl.zeros((L,), tl.float32)
    through = tl.zeros((BK,), tl.float32)
    for x in range(NK):
        row = x * BK + tl.arange(0, BK)
        dkeys = tl.zeros((L, BK), tl.float32)
        for y in range(NV):
            col = y * BV + tl.arange(0, BV)
            place = row[:, None] * V + col[None, :]
            fits = (row < K)[:, None] & (col < V)[None, :]
            C = tl.load(C_start + memory * K * V + place, mask=fits, other=0.0)
            dC = tl.load(dC_end + here * K * V + place, mask=fits, other=0.0)
            values = load_tile(v, v_strides, slot, col, left, V)
            dkeys = dot(values.to(stored), tl.trans(dC), dkeys, PRECISION)
            again = load_apart(dC_end + here * K * V + place, fits)
            through += tl.sum(C.to(tl.float32) * again.to(tl.float32), axis=1)
        n = tl.load(n_start + memory * K + row, mask=row < K, other=0.0)
        dn = tl.zeros((BK,), tl.float32)
        for part in range(PARTS):
            place = (here * PARTS + part) * K + row
            dn += tl.load(dn_end + place, mask=row < K, other=0.0)
            through += n * tl.load(dn_start + place, mask=row < K, other=0.0)
        keys = load_tile(k, k_strides, slot, row, left, K)
        dkeys = (dkeys + dn[None, :]) * written[:, None]
        writes += tl.sum(keys.to(tl.float32) * dkeys, axis=1)
        queries = load_tile(q, q_strides, slot, row, left, K)
        dkeys = dot(tl.trans(dscores), queries.to(stored), dkeys, PRECISION)
        store_tile(dk, dk_strides, slot, row, left, K, dkeys)

        dqueries = tl.zeros((L, BK), tl.float32)
        for y in range(NV):
            col = y * BV + tl.arange(0, BV)
            place = row[:, None] * V + col[None, :]
            C = tl.load(C_start + memory * K * V + place, mask=(row < K)[:, None] & (col < V)[None, :], other=0.0)
            upstream = load_tile(dh, dh_strides, slot, col, left, V)
            dqueries = dot(upstream.to(stored), tl.trans(C), dqueries, PRECISION)
        dqueries = (dqueries * inverse_Y[:, None] + dnorm[:, None] * n[None, :]) * (e * scale)[:, None]
        reads += tl.sum(queries.to(tl.float32) * dqueries, axis=1)
        dqueries = dot(dscores, keys.to(stored), dqueries, PRECISION)
        store_tile(dq, dq_strides, slot, row, left, K, dqueries)

    kept = tl.exp(tl.load(total + here))
    d_input += writes
    # Σ_{s≥t} r_s + Σ_{j<t} w_j, without a subtraction.
    d_decay = (
        across + tl.sum(tl.where(other < one, writes[None, :], reads[None, :]), axis=1) + tl.sum(through, axis=0) * kept
    )
    if dm_net is not None:
        step = rank * L + 1 + slot
        cotangent = tl.load(dm_net + sequence * N + head)
        at = tl.load(argmax_last + sequence * N + head)
        d_input += tl.where(step == at, cotangent, 0.0)
        d_decay += tl.where(step > at, cotangent, 0.0)
    f = steps_at(f, f_strides, sequence, t, head) + slot * f_strides[1]
    forget = tl.load(f, mask=inside, other=0.0).to(tl.float32)
    d_forget = d_decay * tl.exp(log_sigmoid(-forget))
    di = steps_at(di, di_strides, sequence, t, head) + slot * di_strides[1]
    df = steps_at(df, df_strides, sequence, t, head) + slot * df_strides[1]
    put(di, d_input, inside)
    put(df, d_forget, inside)
