"""The forward pass of any cell: weights resident in a program, or streamed through shared memory (H up to 1024).

`torch_impl._recurrent.triton.cell` describes what a cell is. A tuple among the arguments has an element for every gate,
or for every part of the state, of which h is the first.

All arrays are transposed, with units as rows and the rows of a program as columns: ``(H, ROWS)``. A tensor-core tile is
then 16 units by 8 rows, so that eight sequences fill it, and the weights are the operand that stays.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from torch_impl._recurrent.triton.shared import (
    bias_of,
    each_plus,
    load_each,
    narrow,
    products,
    rows_of,
    rows_of_program,
    selected,
    tiles_of_weights,
)
from torch_impl._triton.shared import bound, device_function, put


@device_function
def initial_states(initial, strides, sequence, head, unit, mask, EMPTY: tl.constexpr, HAS_STATE: tl.constexpr):
    """The states before the first step, each ``(units, ROWS)``; without an initial state those that EMPTY names."""
    states = ()
    for s in tl.static_range(len(EMPTY)):
        if HAS_STATE:
            rows = (sequence * strides[s][0] + head * strides[s][1])[None, :]
            found = tl.load(initial[s] + rows + unit * strides[s][2], mask=mask, other=0.0)
        else:
            found = tl.full(mask.shape, EMPTY[s], tl.float32)
        states = states + (found,)
    return states


@device_function
def starts_of_products(at, strides, t, bias, runs, FORM: tl.constexpr):
    """The sums that a step's products are added to: inputs, or in the form "apart" for the last gate the bias."""
    gates: tl.constexpr = len(at)
    starts = ()
    for g in tl.static_range(gates):
        if FORM == "apart" and g == gates - 1:
            starts = starts + (tl.zeros(runs.shape, tl.float32) + bias,)
        else:
            starts = starts + (tl.load(at[g] + t * strides[g][1], mask=runs, other=0.0).to(tl.float32),)
    return starts


@device_function
def with_last_input(u, at, strides, t, runs, FORM: tl.constexpr):
    """The preactivations, in the form "apart" followed by the last gate's input."""
    if FORM == "apart":
        last: tl.constexpr = len(at) - 1
        return u + (tl.load(at[last] + t * strides[last][1], mask=runs, other=0.0).to(tl.float32),)
    else:
        return u


@triton.jit(do_not_specialize=["B", "S", "T"])
def forward_resident(
    x, x_strides, x_shares, W, W_strides, W_shares, bias, initial, initial_strides, y, last, kept, cu_seqlens, order,
    B, S, T, N, H, group,
    ADVANCE: tl.constexpr, LATE: tl.constexpr, FORM: tl.constexpr, EMPTY: tl.constexpr, KEEP: tl.constexpr,
    HAS_STATE: tl.constexpr, PACKED: tl.constexpr, BLOCK_H: tl.constexpr, ROWS: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr, STAGES: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """All steps of ROWS rows; the weights are read once, and the states are kept in registers, in float32."""
    gates: tl.constexpr = len(W)
    early: tl.constexpr = gates - 1 if FORM == "late" else gates
    sequence, head, first, steps, exists = rows_of_program(cu_seqlens, order, B, S, T, N, group, ROWS, PACKED)
    unit = tl.arange(0, BLOCK_H)
    inside = unit < H
    block = inside[:, None] & exists[None, :]

    weight_head = tl.program_id(0) % (N // group) * group
    square = inside[:, None] & inside[None, :]
    weights = tiles_of_weights(W, W_strides, weight_head, W_shares, unit[:, None], unit[None, :], square, 0, gates,
                               OPERAND)  # fmt: skip
    of_bias = bias_of(bias, weight_head, W_shares[gates - 1], unit[:, None], H, FORM)

    unit = unit.to(tl.int64)[:, None]
    at = ()
    for g in tl.static_range(gates):
        rows = rows_of(x_strides[g], sequence, first, head, x_shares[g], PACKED)[None, :]
        at = at + (x[g] + rows + unit * x_strides[g][3],)
    here = ((first * N + head) * H)[None, :] + unit
    states = initial_states(initial, initial_strides, sequence, head, unit, block, EMPTY, HAS_STATE)

    for step in tl.range(0, bound(tl.max(steps, 0)), num_stages=STAGES, loop_unroll_factor=UNROLL):
        t = tl.cast(step, tl.int64)
        runs = inside[:, None] & (step < steps)[None, :]
        starts = starts_of_products(at, x_strides, t, of_bias, runs, FORM)
        u = products(weights, narrow(states[0], OPERAND, PRECISION), starts, 0, early, PRECISION)
        if FORM == "late":
            operand, u = LATE(u, states[0], FAST)
            operand = narrow(operand, OPERAND, PRECISION)
            u = u + products(weights, operand, starts, early, gates, PRECISION)
        u = with_last_input(u, at, x_strides, t, runs, FORM)
        after, keep = ADVANCE(u, states, FAST)
        states = selected(runs, after, states) if PACKED else after
        put(y + (here + t * N * H), states[0], runs)
        if KEEP:
            for k in tl.static_range(len(kept)):
                put(kept[k] + (here + t * N * H), keep[k], runs)

    for s in tl.static_range(len(EMPTY)):
        put(last[s] + (((sequence * N + head) * H)[None, :] + unit), states[s], block)


@device_function
def end_step(u, carries, size, operand, y, kept, here, runs, ADVANCE: tl.constexpr, EMPTY: tl.constexpr,
             KEEP: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr):  # fmt: skip
    """The states of a tile after a step, written wherever they are read: carries, operands, results."""
    states = load_each(carries, size, 0, len(EMPTY))
    after, keep = ADVANCE(u, states, FAST)
    states = selected(runs, after, states)
    for s in tl.static_range(len(EMPTY)):
        tl.store(carries + s * size, states[s])
    tl.store(operand, narrow(states[0], OPERAND, PRECISION))
    put(y + here, states[0], runs)
    if KEEP:
        for k in tl.static_range(len(kept)):
            put(kept[k] + here, keep[k], runs)


@triton.jit(do_not_specialize=["B", "S", "T"])
def forward_streamed(
    x, x_strides, x_shares, W, W_strides, W_shares, bias, initial, initial_strides, y, last, kept, cu_seqlens, order,
    operands, carries, B, S, T, N, H, group,
    ADVANCE: tl.constexpr, LATE: tl.constexpr, FORM: tl.constexpr, EMPTY: tl.constexpr, KEEP: tl.constexpr,
    HAS_STATE: tl.constexpr, PACKED: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Like `forward_resident`, but every step reads the weights again from the L2 cache, in tiles of BLOCK_H units by
    BLOCK_K inputs, so that only the loops grow with H.

    ``carries`` ``(programs, parts, width, ROWS)``, in float32, holds the states and, in the form "late", the arguments
    of the gates between the first and the last; width is H rounded up to BLOCK_H. ``operands`` ``(programs, 2, width,
    ROWS)`` holds h as operand of the products and, in the form "late", the operand that waits. There is then a barrier
    in the middle and at the end of a step. In other forms the halves of ``operands`` take turns: a step reads one and
    writes the other, and needs a barrier at its end only.
    """
    gates: tl.constexpr = len(W)
    early: tl.constexpr = gates - 1 if FORM == "late" else gates
    parts: tl.constexpr = len(EMPTY) + gates - 2 if FORM == "late" else len(EMPTY)
    sequence, head, first, steps, exists = rows_of_program(cu_seqlens, order, B, S, T, N, group, ROWS, PACKED)
    weight_head = tl.program_id(0) % (N // group) * group
    part = tl.arange(0, BLOCK_K)
    row = tl.arange(0, ROWS)[None, :]
    tile = part[:, None] * ROWS + row
    size = tl.cdiv(H, BLOCK_H) * (BLOCK_H * ROWS)
    operands += tl.program_id(0).to(tl.int64) * 2 * size
    carries += tl.program_id(0).to(tl.int64) * parts * size
    x_rows = ()
    for g in tl.static_range(gates):
        x_rows = x_rows + (x[g] + rows_of(x_strides[g], sequence, first, head, x_shares[g], PACKED)[None, :],)
    here = ((first * N + head) * H)[None, :]

    for start in tl.range(0, bound(H), BLOCK_H):
        unit = (start + tl.arange(0, BLOCK_H))[:, None]
        mask = (unit < H) & exists[None, :]
        states = initial_states(initial, initial_strides, sequence, head, unit.to(tl.int64), mask, EMPTY, HAS_STATE)
        tl.store(operands + unit * ROWS + row, narrow(states[0], OPERAND, PRECISION))
        for s in tl.static_range(len(EMPTY)):
            tl.store(carries + s * size + unit * ROWS + row, states[s])
    tl.debug_barrier()

    for step in tl.range(0, bound(tl.max(steps, 0)), num_stages=1):
        t = tl.cast(step, tl.int64)
        if FORM == "late":
            read, write = operands, operands
        else:
            read, write = operands + step % 2 * size, operands + (step + 1) % 2 * size
        for start in tl.range(0, bound(H), BLOCK_H, num_stages=1):
            unit = start + tl.arange(0, BLOCK_H)
            wide = unit.to(tl.int64)[:, None]
            mine = unit[:, None] * ROWS + row
            runs = (unit < H)[:, None] & (step < steps)[None, :]
            at = each_plus(x_rows, wide, x_strides, 3)
            of_bias = bias_of(bias, weight_head, W_shares[gates - 1], unit[:, None], H, FORM)
            u = starts_of_products(at[:early], x_strides, t, of_bias, runs, FORM)
            for k in tl.range(0, bound(H), BLOCK_K, num_stages=STAGES):
                into = (k + part)[None, :]
                square = (unit < H)[:, None] & (into < H)
                operand = tl.load(read + k * ROWS + tile)
                weights = tiles_of_weights(W, W_strides, weight_head, W_shares, unit[:, None], into, square, 0, early,
                                           OPERAND)  # fmt: skip
                u = products(weights, operand, u, 0, early, PRECISION)
            if FORM == "late":
                late, rest = LATE(u, tl.load(carries + mine), FAST)
                tl.store(operands + size + mine, narrow(late, OPERAND, PRECISION))
                for g in tl.static_range(gates - 2):
                    tl.store(carries + (len(EMPTY) + g) * size + mine, rest[g])
            else:
                u = with_last_input(u, at, x_strides, t, runs, FORM)
                end_step(u, carries + mine, size, write + mine, y, kept, here + t * N * H + wide, runs, ADVANCE, EMPTY,
                         KEEP, OPERAND, PRECISION, FAST)  # fmt: skip
        tl.debug_barrier()
        if FORM == "late":
            for start in tl.range(0, bound(H), BLOCK_H, num_stages=1):
                unit = start + tl.arange(0, BLOCK_H)
                wide = unit.to(tl.int64)[:, None]
                mine = unit[:, None] * ROWS + row
                runs = (unit < H)[:, None] & (step < steps)[None, :]
                at = each_plus(x_rows, wide, x_strides, 3)
                u = (tl.load(at[early] + t * x_strides[early][1], mask=runs, other=0.0).to(tl.float32),)
                for k in tl.range(0, bound(H), BLOCK_K, num_stages=STAGES):
                    into = (k + part)[None, :]
                    square = (unit < H)[:, None] & (into < H)
                    operand = tl.load(operands + size + k * ROWS + tile)
                    weights = tiles_of_weights(W, W_strides, weight_head, W_shares, unit[:, None], into, square, early,
                                               gates, OPERAND)  # fmt: skip
                    u = products(weights, operand, u, 0, 1, PRECISION)
                u = load_each(carries + mine, size, len(EMPTY), parts) + u
                end_step(u, carries + mine, size, operands + mine, y, kept, here + t * N * H + wide, runs, ADVANCE,
                         EMPTY, KEEP, OPERAND, PRECISION, FAST)  # fmt: skip
            tl.debug_barrier()

    for start in tl.range(0, bound(H), BLOCK_H):
        unit = (start + tl.arange(0, BLOCK_H))[:, None]
        states = load_each(carries + unit * ROWS + row, size, 0, len(EMPTY))
        for s in tl.static_range(len(EMPTY)):
            to = ((sequence * N + head) * H)[None, :] + unit
            put(last[s] + to, states[s], (unit < H) & exists[None, :])
