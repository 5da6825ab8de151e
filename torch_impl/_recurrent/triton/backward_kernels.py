"""The backward pass of any cell: the loop over steps, last to first, then the gradients of the weights.

`torch_impl._recurrent.triton.cell` describes what a cell is. A tuple among the arguments has an element for every gate,
for every part of the state, of which h is the first, or for every saved array.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from torch_impl._recurrent.triton.shared import (
    load_each,
    narrow,
    rows_of,
    rows_of_program,
    selected,
    states_before,
    tiles_of_weights,
    weight_of,
)
from torch_impl._triton.shared import bound, device_function, dot, put


@device_function
def clipped(dh, clip, CLIP: tl.constexpr):
    """dh limited to ±clip; NaN stays NaN."""
    if CLIP:
        return tl.where(dh > clip, clip, tl.where(dh < -clip, -clip, dh))
    else:
        return dh


@device_function
def final_cotangents(dlast, strides, sequence, head, unit, mask, STATES: tl.constexpr, HAS_DLAST: tl.constexpr):
    """The cotangents of the states after the last step, each ``(units, ROWS)``."""
    found = ()
    for s in tl.static_range(STATES):
        if HAS_DLAST:
            rows = (sequence * strides[s][0] + head * strides[s][1])[None, :]
            found = found + (tl.load(dlast[s] + rows + unit * strides[s][2], mask=mask, other=0.0).to(tl.float32),)
        else:
            found = found + (tl.zeros(mask.shape, tl.float32),)
    return found


@device_function
def saved_of(arrays, here, runs, READ: tl.constexpr):
    """The saved values of a step, 0 where a row does not run."""
    found = ()
    for k in tl.static_range(READ):
        found = found + (tl.load(arrays[k] + here, mask=runs, other=0.0).to(tl.float32),)
    return found


@triton.jit(do_not_specialize=["B", "S", "T", "clip"])
def backward_resident(
    W, W_strides, W_shares, dy, dy_strides, dlast, dlast_strides, dinitial, arrays, cu_seqlens, order, clip,
    B, S, T, N, H, group,
    BACKWARD: tl.constexpr, LATE: tl.constexpr, FORM: tl.constexpr, STATES: tl.constexpr, READ: tl.constexpr,
    INTO: tl.constexpr, HAS_DY: tl.constexpr, HAS_DLAST: tl.constexpr, CLIP: tl.constexpr, PACKED: tl.constexpr,
    BLOCK_H: tl.constexpr, ROWS: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """All steps of ROWS rows, last to first, ``(H, ROWS)``.

    A step reads the first READ of ``arrays``, and writes the gradient of gate g's preactivations to the one with number
    ``INTO[g]``, which may be one that it has read.
    """
    gates: tl.constexpr = len(W)
    sequence, head, first, steps, exists = rows_of_program(cu_seqlens, order, B, S, T, N, group, ROWS, PACKED)
    unit = tl.arange(0, BLOCK_H)
    inside = unit < H
    block = inside[:, None] & exists[None, :]
    weight_head = tl.program_id(0) % (N // group) * group
    square = inside[:, None] & inside[None, :]
    weights = tiles_of_weights(W, W_strides, weight_head, W_shares, unit[None, :], unit[:, None], square, 0, gates,
                               OPERAND)  # fmt: skip

    unit = unit.to(tl.int64)[:, None]
    if HAS_DY:
        dy += rows_of(dy_strides, sequence, first, head, 1, PACKED)[None, :] + unit * dy_strides[3]
    at = ((first * N + head) * H)[None, :] + unit
    carried = final_cotangents(dlast, dlast_strides, sequence, head, unit, block, STATES, HAS_DLAST)

    most = tl.max(steps, 0)
    for back in tl.range(0, bound(most), num_stages=STAGES, loop_unroll_factor=UNROLL):
        step = most - 1 - back
        t = tl.cast(step, tl.int64)
        runs = inside[:, None] & (step < steps)[None, :]
        here = at + t * N * H
        values = saved_of(arrays, here, runs, READ)
        reaching = clipped(carried[0], clip, CLIP)
        if HAS_DY:
            reaching += tl.load(dy + t * dy_strides[1], mask=runs, other=0.0).to(tl.float32)
        gradients, before, rest = BACKWARD(reaching, carried[1:], values)
        if FORM == "late":
            late = dot(weights[gates - 1], narrow(gradients[gates - 2], OPERAND, PRECISION), tl.zeros_like(before),
                       PRECISION)  # fmt: skip
            for g in tl.static_range(1, gates - 1):
                before = dot(weights[g], narrow(gradients[g - 1], OPERAND, PRECISION), before, PRECISION)
            of_first, more = LATE(late, values)
            before = dot(weights[0], narrow(of_first, OPERAND, PRECISION), before + more, PRECISION)
            gradients = (of_first,) + gradients
        else:
            for g in tl.static_range(gates):
                before = dot(weights[g], narrow(gradients[g], OPERAND, PRECISION), before, PRECISION)
        carried = selected(runs, (before,) + rest, carried) if PACKED else (before,) + rest
        for g in tl.static_range(gates):
            if FORM == "apart" and g == gates - 1:
                put(arrays[INTO[g]] + here, gradients[gates], runs)
            else:
                put(arrays[INTO[g]] + here, gradients[g], runs)

    for s in tl.static_range(STATES):
        put(dinitial[s] + (((sequence * N + head) * H)[None, :] + unit), carried[s], block)


@triton.jit(do_not_specialize=["B", "S", "T", "clip"])
def backward_streamed(
    W, W_strides, W_shares, dy, dy_strides, dlast, dlast_strides, dinitial, arrays, cu_seqlens, order,
    operands, carries, clip, B, S, T, N, H, group,
    BACKWARD: tl.constexpr, LATE: tl.constexpr, FORM: tl.constexpr, STATES: tl.constexpr, READ: tl.constexpr,
    INTO: tl.constexpr, HAS_DY: tl.constexpr, HAS_DLAST: tl.constexpr, CLIP: tl.constexpr, PACKED: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Like `backward_resident`, but every step reads the weights again from the L2 cache, as in `forward_streamed`.

    ``operands`` ``(programs, gates, width, ROWS)`` holds the du as operands of products, ``carries`` ``(programs,
    STATES, width, ROWS)`` holds the gradients of the states in float32. There is a barrier between a write to either
    and any read of the values before or after it: after the part of a step without products, after its products, and
    in the form "late" also between these and the first gate's.
    """
    gates: tl.constexpr = len(W)
    sequence, head, first, steps, exists = rows_of_program(cu_seqlens, order, B, S, T, N, group, ROWS, PACKED)
    weight_head = tl.program_id(0) % (N // group) * group
    part = tl.arange(0, BLOCK_K)
    row = tl.arange(0, ROWS)[None, :]
    tile = part[:, None] * ROWS + row
    size = tl.cdiv(H, BLOCK_H) * (BLOCK_H * ROWS)
    operands += tl.program_id(0).to(tl.int64) * gates * size
    carries += tl.program_id(0).to(tl.int64) * STATES * size
    if HAS_DY:
        dy += rows_of(dy_strides, sequence, first, head, 1, PACKED)[None, :]
    at = ((first * N + head) * H)[None, :]

    for start in tl.range(0, bound(H), BLOCK_H):
        unit = (start + tl.arange(0, BLOCK_H))[:, None]
        mask = (unit < H) & exists[None, :]
        d = final_cotangents(dlast, dlast_strides, sequence, head, unit.to(tl.int64), mask, STATES, HAS_DLAST)
        for s in tl.static_range(STATES):
            tl.store(carries + s * size + unit * ROWS + row, d[s])
    tl.debug_barrier()

    most = tl.max(steps, 0)
    for back in tl.range(0, bound(most), num_stages=1):
        step = most - 1 - back
        t = step.to(tl.int64)
        for start in tl.range(0, bound(H), BLOCK_H, num_stages=1):
            unit = (start + tl.arange(0, BLOCK_H))[:, None]
            mine = unit * ROWS + row
            runs = (unit < H) & (step < steps)[None, :]
            here = at + t * N * H + unit
            d = load_each(carries + mine, size, 0, STATES)
            reaching = clipped(d[0], clip, CLIP)
            if HAS_DY:
                offsets = t * dy_strides[1] + unit.to(tl.int64) * dy_strides[3]
                reaching += tl.load(dy + offsets, mask=runs, other=0.0).to(tl.float32)
            gradients, before, rest = BACKWARD(reaching, d[1:], saved_of(arrays, here, runs, READ))
            d = selected(runs, (before,) + rest, d)
            for s in tl.static_range(STATES):
                tl.store(carries + s * size + mine, d[s])
            if FORM == "late":
                for g in tl.static_range(1, gates):
                    put(arrays[INTO[g]] + here, gradients[g - 1], runs)
                    of_row = tl.where(runs, gradients[g - 1], 0.0)
                    tl.store(operands + g * size + mine, narrow(of_row, OPERAND, PRECISION))
            else:
                for g in tl.static_range(gates):
                    if FORM == "apart" and g == gates - 1:
                        put(arrays[INTO[g]] + here, gradients[gates], runs)
                    else:
                        put(arrays[INTO[g]] + here, gradients[g], runs)
                    # A row that does not run keeps its dh, to which the products are added.
                    of_row = tl.where(runs, gradients[g], 0.0)
                    tl.store(operands + g * size + mine, narrow(of_row, OPERAND, PRECISION))
        tl.debug_barrier()
        for start in tl.range(0, bound(H), BLOCK_H, num_stages=1):
            unit = start + tl.arange(0, BLOCK_H)
            mine = unit[:, None] * ROWS + row
            before = tl.load(carries + mine)
            late = tl.zeros((BLOCK_H, ROWS), tl.float32)
            for k in tl.range(0, bound(H), BLOCK_K, num_stages=STAGES):
                out = (k + part)[None, :]
                square = (unit < H)[:, None] & (out < H)
                for g in tl.static_range(1 if FORM == "late" else 0, gates):
                    of_gate = tl.load(operands + g * size + k * ROWS + tile)
                    W_g = weight_of(W[g], W_strides[g], weight_head, W_shares[g], out, unit[:, None], square)
                    if FORM == "late" and g == gates - 1:
                        late = dot(W_g.to(OPERAND), of_gate, late, PRECISION)
                    else:
                        before = dot(W_g.to(OPERAND), of_gate, before, PRECISION)
            if FORM == "late":
                runs = (unit < H)[:, None] & (step < steps)[None, :]
                here = at + t * N * H + unit[:, None]
                of_first, more = LATE(late, saved_of(arrays, here, runs, READ))
                put(arrays[INTO[0]] + here, of_first, runs)
                tl.store(operands + mine, narrow(of_first, OPERAND, PRECISION))
                before += more
            tl.store(carries + mine, before)
        tl.debug_barrier()
        if FORM == "late":
            for start in tl.range(0, bound(H), BLOCK_H, num_stages=1):
                unit = start + tl.arange(0, BLOCK_H)
                mine = unit[:, None] * ROWS + row
                before = tl.load(carries + mine)
                for k in tl.range(0, bound(H), BLOCK_K, num_stages=STAGES):
                    out = (k + part)[None, :]
                    square = (unit < H)[:, None] & (out < H)
                    of_first = tl.load(operands + k * ROWS + tile)
                    W_0 = weight_of(W[0], W_strides[0], weight_head, W_shares[0], out, unit[:, None], square)
                    before = dot(W_0.to(OPERAND), of_first, before, PRECISION)
                tl.store(carries + mine, before)
            tl.debug_barrier()

    for start in tl.range(0, bound(H), BLOCK_H):
        unit = (start + tl.arange(0, BLOCK_H))[:, None]
        d = load_each(carries + unit * ROWS + row, size, 0, STATES)
        for s in tl.static_range(STATES):
            put(dinitial[s] + (((sequence * N + head) * H)[None, :] + unit), d[s], (unit < H) & exists[None, :])


@triton.jit(do_not_specialize=["S", "T", "span"])
def weights_gradient(
    state, state_strides, y, cu_seqlens, sequence_of, scale, du, dW, dbias, span, S, T, N, H,
    FORM: tl.constexpr, HAS_STATE: tl.constexpr, PACKED: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_T: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    """Σ_t hᵀ du over ``span`` tokens for every gate, in float32: ``(chunks, N, H, H)``, a tile per program.

    For the last gate, ``scale`` multiplies h in the form "late" and du in the form "apart", in which ``dbias``
    ``(chunks, N, H)``, unless None, is the sum of what then multiplies h. The chunks are summed afterwards, in order,
    so that the same call always gives the same bits. APART: whether h is loaded again where it is scaled, see
    `load_apart`.
    """
    gates: tl.constexpr = len(du)
    tiles_i, tiles_j = tl.cdiv(H, BLOCK_I), tl.cdiv(H, BLOCK_J)
    program = tl.program_id(0)
    i = program % tiles_i * BLOCK_I + tl.arange(0, BLOCK_I)
    j = program // tiles_i % tiles_j * BLOCK_J + tl.arange(0, BLOCK_J)
    chunk_head = program // (tiles_i * tiles_j)
    head = chunk_head % N
    start = (chunk_head // N).to(tl.int64) * span
    end = tl.minimum(start + span, T)

    sums = ()
    for _ in tl.static_range(gates):
        sums = sums + (tl.zeros((BLOCK_I, BLOCK_J), tl.float32),)
    of_bias = tl.zeros((BLOCK_J,), tl.float32)
    for offset in tl.range(0, bound(span), BLOCK_T, num_stages=STAGES):
        token = start + offset + tl.arange(0, BLOCK_T)
        read_i = (i < H)[:, None] & (token < end)[None, :]
        read_j = (token < end)[:, None] & (j < H)[None, :]
        h = states_before(y, state, state_strides, cu_seqlens, sequence_of, token[None, :], head,
                          i.to(tl.int64)[:, None], read_i, S, T, N, H, HAS_STATE, PACKED)  # fmt: skip
        at = ((token * N + head) * H)[:, None] + j[None, :]
        operand = narrow(h, OPERAND, PRECISION)
        found = ()
        for g in tl.static_range(gates):
            left = operand
            of_gate = tl.load(du[g] + at, mask=read_j, other=0.0)
            right = of_gate.to(OPERAND)
            if FORM == "late" and g == gates - 1:
                here = ((token * N + head) * H)[None, :] + i[:, None]
                if APART:
                    h = states_before(y, state, state_strides, cu_seqlens, sequence_of, token[None, :], head,
                                      i.to(tl.int64)[:, None], read_i, S, T, N, H, HAS_STATE, PACKED, True)  # fmt: skip
                left = narrow(tl.load(scale + here, mask=read_i, other=0.0) * h, OPERAND, PRECISION)
            if FORM == "apart" and g == gates - 1:
                scaled = tl.load(scale + at, mask=read_j, other=0.0) * of_gate.to(tl.float32)
                right = narrow(scaled, OPERAND, PRECISION)
                if dbias is not None:
                    of_bias += tl.sum(scaled, 0)
            found = found + (dot(left, right, sums[g], PRECISION),)
        sums = found

    to = chunk_head.to(tl.int64) * H * H + i.to(tl.int64)[:, None] * H + j[None, :]
    mask = (i < H)[:, None] & (j < H)[None, :]
    for g in tl.static_range(gates):
        put(dW[g] + to, sums[g], mask)
    if dbias is not None:
        put(dbias + chunk_head.to(tl.int64) * H + j, of_bias, (j < H) & (program % tiles_i == 0))
