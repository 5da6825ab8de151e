"""The GRU's forward kernels: weights resident (H up to 128), or streamed through shared memory (H up to 1024).

All arrays are transposed, with units as rows and the rows of a program as columns: ``(H, ROWS)``. A tensor-core tile is
then 16 units by 8 rows, so that eight sequences fill it, and the weights are the operand that stays.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from torch_impl._gru.triton.shared import narrow, rows_of, rows_of_program, sigmoid, sigmoids, tanh, weight_of
from torch_impl._triton.shared import bound, dot, put


@triton.jit(do_not_specialize=["B", "S", "T"])
def forward_resident(
    x, x_strides, x_share, W, W_strides, W_share,
    xf, xf_strides, xf_share, Wf, Wf_strides, Wf_share,
    xr, xr_strides, xr_share, Wr, Wr_strides, Wr_share,
    state, state_strides, y, last, cu_seqlens, order, B, S, T, N, H, group,
    HAS_STATE: tl.constexpr, PACKED: tl.constexpr, BLOCK_H: tl.constexpr, ROWS: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr, STAGES: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """All steps of ROWS rows; the three weights are read once, and the state is kept in registers, in float32."""
    sequence, head, first, steps, exists = rows_of_program(cu_seqlens, order, B, S, T, N, group, ROWS, PACKED)
    unit = tl.arange(0, BLOCK_H)
    inside = unit < H
    block = inside[:, None] & exists[None, :]

    weight_head = tl.program_id(0) % (N // group) * group
    square = inside[:, None] & inside[None, :]
    W_T = weight_of(W, W_strides, weight_head, W_share, unit[:, None], unit[None, :], square).to(OPERAND)
    Wf_T = weight_of(Wf, Wf_strides, weight_head, Wf_share, unit[:, None], unit[None, :], square).to(OPERAND)
    Wr_T = weight_of(Wr, Wr_strides, weight_head, Wr_share, unit[:, None], unit[None, :], square).to(OPERAND)

    unit = unit.to(tl.int64)[:, None]
    x += rows_of(x_strides, sequence, first, head, x_share, PACKED)[None, :] + unit * x_strides[3]
    xf += rows_of(xf_strides, sequence, first, head, xf_share, PACKED)[None, :] + unit * xf_strides[3]
    xr += rows_of(xr_strides, sequence, first, head, xr_share, PACKED)[None, :] + unit * xr_strides[3]
    y += ((first * N + head) * H)[None, :] + unit

    h = tl.zeros((BLOCK_H, ROWS), tl.float32)
    if HAS_STATE:
        offsets = (sequence * state_strides[0] + head * state_strides[1])[None, :] + unit * state_strides[2]
        h = tl.load(state + offsets, mask=block, other=0.0)

    for step in tl.range(0, bound(tl.max(steps, 0)), num_stages=STAGES, loop_unroll_factor=UNROLL):
        t = tl.cast(step, tl.int64)
        runs = inside[:, None] & (step < steps)[None, :]
        ur = tl.load(xr + t * xr_strides[1], mask=runs, other=0.0).to(tl.float32)
        uf = tl.load(xf + t * xf_strides[1], mask=runs, other=0.0).to(tl.float32)
        uz = tl.load(x + t * x_strides[1], mask=runs, other=0.0).to(tl.float32)
        operand = narrow(h, OPERAND, PRECISION)
        r = sigmoid(dot(Wr_T, operand, ur, PRECISION), FAST)
        f, left = sigmoids(dot(Wf_T, operand, uf, PRECISION), FAST)
        z = tanh(dot(W_T, narrow(r * h, OPERAND, PRECISION), uz, PRECISION), FAST)
        after = f * h + left * z
        h = tl.where(runs, after, h) if PACKED else after
        put(y + t * N * H, h, runs)

    put(last + ((sequence * N + head) * H)[None, :] + unit, h, block)


@triton.jit(do_not_specialize=["B", "S", "T"])
def forward_streamed(
    x, x_strides, x_share, W, W_strides, W_share,
    xf, xf_strides, xf_share, Wf, Wf_strides, Wf_share,
    xr, xr_strides, xr_share, Wr, Wr_strides, Wr_share,
    state, state_strides, y, last, cu_seqlens, order, operands, carries, B, S, T, N, H, group,
    HAS_STATE: tl.constexpr, PACKED: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Like `forward_resident`, but every step reads the weights again from the L2 cache, in tiles of BLOCK_H units by
    BLOCK_K inputs, so that only the loops grow with H.

    ``operands`` ``(programs, 2, width, ROWS)`` holds h and r⊙h as operands of products. ``carries``, of the same shape
    and in float32, holds h and the argument of the forget gate; width is H rounded up to BLOCK_H. There is a barrier
    between a write to either and any read of the values before or after it.
    """
    sequence, head, first, steps, exists = rows_of_program(cu_seqlens, order, B, S, T, N, group, ROWS, PACKED)
    weight_head = tl.program_id(0) % (N // group) * group
    part = tl.arange(0, BLOCK_K)
    row = tl.arange(0, ROWS)[None, :]
    tile = part[:, None] * ROWS + row
    size = tl.cdiv(H, BLOCK_H) * (BLOCK_H * ROWS)
    operands += tl.program_id(0).to(tl.int64) * 2 * size
    carries += tl.program_id(0).to(tl.int64) * 2 * size
    x += rows_of(x_strides, sequence, first, head, x_share, PACKED)[None, :]
    xf += rows_of(xf_strides, sequence, first, head, xf_share, PACKED)[None, :]
    xr += rows_of(xr_strides, sequence, first, head, xr_share, PACKED)[None, :]
    y += ((first * N + head) * H)[None, :]

    for u in tl.range(0, bound(H), BLOCK_H):
        unit = (u + tl.arange(0, BLOCK_H))[:, None]
        h = tl.zeros((BLOCK_H, ROWS), tl.float32)
        if HAS_STATE:
            rows = (sequence * state_strides[0] + head * state_strides[1])[None, :]
            offsets = rows + unit.to(tl.int64) * state_strides[2]
            h = tl.load(state + offsets, mask=(unit < H) & exists[None, :], other=0.0)
        tl.store(operands + unit * ROWS + row, narrow(h, OPERAND, PRECISION))
        tl.store(carries + unit * ROWS + row, h)
    tl.debug_barrier()

    for step in tl.range(0, bound(tl.max(steps, 0)), num_stages=1):
        t = tl.cast(step, tl.int64)
        for u in tl.range(0, bound(H), BLOCK_H, num_stages=1):
            unit = u + tl.arange(0, BLOCK_H)
            wide = unit.to(tl.int64)[:, None]
            mine = unit[:, None] * ROWS + row
            runs = (unit < H)[:, None] & (step < steps)[None, :]
            ur = tl.load(xr + t * xr_strides[1] + wide * xr_strides[3], mask=runs, other=0.0).to(tl.float32)
            uf = tl.load(xf + t * xf_strides[1] + wide * xf_strides[3], mask=runs, other=0.0).to(tl.float32)
            for k in tl.range(0, bound(H), BLOCK_K, num_stages=STAGES):
                into = (k + part)[None, :]
                square = (unit < H)[:, None] & (into < H)
                operand = tl.load(operands + k * ROWS + tile)
                Wr_T = weight_of(Wr, Wr_strides, weight_head, Wr_share, unit[:, None], into, square).to(OPERAND)
                Wf_T = weight_of(Wf, Wf_strides, weight_head, Wf_share, unit[:, None], into, square).to(OPERAND)
                ur = dot(Wr_T, operand, ur, PRECISION)
                uf = dot(Wf_T, operand, uf, PRECISION)
            rh = sigmoid(ur, FAST) * tl.load(carries + mine)
            tl.store(operands + size + mine, narrow(rh, OPERAND, PRECISION))
            tl.store(carries + size + mine, uf)
        tl.debug_barrier()
        for u in tl.range(0, bound(H), BLOCK_H, num_stages=1):
            unit = u + tl.arange(0, BLOCK_H)
            wide = unit.to(tl.int64)[:, None]
            mine = unit[:, None] * ROWS + row
            runs = (unit < H)[:, None] & (step < steps)[None, :]
            uz = tl.load(x + t * x_strides[1] + wide * x_strides[3], mask=runs, other=0.0).to(tl.float32)
            for k in tl.range(0, bound(H), BLOCK_K, num_stages=STAGES):
                into = (k + part)[None, :]
                square = (unit < H)[:, None] & (into < H)
                operand = tl.load(operands + size + k * ROWS + tile)
                W_T = weight_of(W, W_strides, weight_head, W_share, unit[:, None], into, square).to(OPERAND)
                uz = dot(W_T, operand, uz, PRECISION)
            h = tl.load(carries + mine)
            f, left = sigmoids(tl.load(carries + size + mine), FAST)
            h = tl.where(runs, f * h + left * tanh(uz, FAST), h)
            tl.store(carries + mine, h)
            tl.store(operands + mine, narrow(h, OPERAND, PRECISION))
            put(y + t * N * H + wide, h, runs)
        tl.debug_barrier()

    for u in tl.range(0, bound(H), BLOCK_H):
        unit = (u + tl.arange(0, BLOCK_H))[:, None]
        h = tl.load(carries + unit * ROWS + row)
        put(last + ((sequence * N + head) * H)[None, :] + unit, h, (unit < H) & exists[None, :])
