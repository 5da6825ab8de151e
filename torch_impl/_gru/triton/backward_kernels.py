"""The GRU's backward kernels: the part that is parallel over time, the loop over steps, then the weights' gradients.

With u the argument of each nonlinearity and dh' the gradient of h'::

    du_z = dh'⊙a_z      a_z = (1−f)⊙(1−z²)        dh = dh'⊙f + (du_z Wᵀ)⊙r + du_f W_fᵀ + du_r W_rᵀ
    du_f = dh'⊙a_f      a_f = (h−z)⊙f⊙(1−f)
    du_r = (du_z Wᵀ)⊙a_r      a_r = h⊙r⊙(1−r)

The factors a, f and r do not depend on a gradient. They are recomputed from the inputs and the outputs for all steps at
once, so that a step of the loop consists of two products in sequence and no exponential. The loop replaces each a by
its du, in place.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from torch_impl._gru.triton.shared import (
    narrow,
    rows_of,
    rows_of_program,
    sigmoids,
    states_before,
    tanh,
    tanh_slope,
    tokens_of,
    weight_of,
)
from torch_impl._triton.shared import bound, device_function, dot, put


@triton.jit(do_not_specialize=["S", "T"])
def factors(
    x, x_strides, x_share, W, W_strides, W_share,
    xf, xf_strides, xf_share, Wf, Wf_strides, Wf_share,
    xr, xr_strides, xr_share, Wr, Wr_strides, Wr_share,
    state, state_strides, y, cu_seqlens, sequence_of, r_out, f_out, az, af, ar, S, T, N, H,
    HAS_STATE: tl.constexpr, PACKED: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """r, f and the three factors a of BLOCK_T tokens of one head that fits in one tile; outputs ``(T, N, H)``."""
    head = tl.program_id(0) % N
    token = (tl.program_id(0) // N).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    unit = tl.arange(0, BLOCK_H)
    inside = unit < H
    mask = (token < T)[:, None] & inside[None, :]
    square = inside[:, None] & inside[None, :]
    wide = unit.to(tl.int64)[None, :]

    h = states_before(y, state, state_strides, cu_seqlens, sequence_of, token[:, None], head, wide, mask, S, T, N, H,
                      HAS_STATE, PACKED)  # fmt: skip
    operand = narrow(h, OPERAND, PRECISION)
    ur = tl.load(xr + tokens_of(xr_strides, token, head, xr_share, S, PACKED)[:, None] + wide * xr_strides[3],
                 mask=mask, other=0.0).to(tl.float32)  # fmt: skip
    weights = weight_of(Wr, Wr_strides, head, Wr_share, unit[None, :], unit[:, None], square).to(OPERAND)
    r, r_left = sigmoids(dot(operand, weights, ur, PRECISION), FAST)
    uf = tl.load(xf + tokens_of(xf_strides, token, head, xf_share, S, PACKED)[:, None] + wide * xf_strides[3],
                 mask=mask, other=0.0).to(tl.float32)  # fmt: skip
    weights = weight_of(Wf, Wf_strides, head, Wf_share, unit[None, :], unit[:, None], square).to(OPERAND)
    f, f_left = sigmoids(dot(operand, weights, uf, PRECISION), FAST)
    uz = tl.load(x + tokens_of(x_strides, token, head, x_share, S, PACKED)[:, None] + wide * x_strides[3],
                 mask=mask, other=0.0).to(tl.float32)  # fmt: skip
    weights = weight_of(W, W_strides, head, W_share, unit[None, :], unit[:, None], square).to(OPERAND)
    uz = dot(narrow(r * h, OPERAND, PRECISION), weights, uz, PRECISION)
    z, z_slope = tanh(uz, FAST), tanh_slope(uz, FAST)

    at = ((token * N + head) * H)[:, None] + wide
    put(r_out + at, r, mask)
    put(f_out + at, f, mask)
    put(az + at, f_left * z_slope, mask)
    put(af + at, (h - z) * f * f_left, mask)
    put(ar + at, h * r * r_left, mask)


@triton.jit(do_not_specialize=["S", "T"])
def factors_gates(
    xf, xf_strides, xf_share, Wf, Wf_strides, Wf_share,
    xr, xr_strides, xr_share, Wr, Wr_strides, Wr_share,
    state, state_strides, y, cu_seqlens, sequence_of, r_out, f_out, af, ar, S, T, N, H,
    HAS_STATE: tl.constexpr, PACKED: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_T: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """For heads wider than a tile, first half: r, f, a_r and, in ``af``, 1−f; BLOCK_H units of BLOCK_T tokens."""
    tiles = tl.cdiv(H, BLOCK_H)
    head = tl.program_id(0) // tiles % N
    token = (tl.program_id(0) // (tiles * N)).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    unit = tl.program_id(0) % tiles * BLOCK_H + tl.arange(0, BLOCK_H)
    inside = unit < H
    mask = (token < T)[:, None] & inside[None, :]
    wide = unit.to(tl.int64)[None, :]

    ur = tl.load(xr + tokens_of(xr_strides, token, head, xr_share, S, PACKED)[:, None] + wide * xr_strides[3],
                 mask=mask, other=0.0).to(tl.float32)  # fmt: skip
    uf = tl.load(xf + tokens_of(xf_strides, token, head, xf_share, S, PACKED)[:, None] + wide * xf_strides[3],
                 mask=mask, other=0.0).to(tl.float32)  # fmt: skip
    for k in tl.range(0, bound(H), BLOCK_K, num_stages=STAGES):
        into = k + tl.arange(0, BLOCK_K)
        read = (token < T)[:, None] & (into < H)[None, :]
        square = (into < H)[:, None] & inside[None, :]
        h = states_before(y, state, state_strides, cu_seqlens, sequence_of, token[:, None], head,
                          into.to(tl.int64)[None, :], read, S, T, N, H, HAS_STATE, PACKED)  # fmt: skip
        operand = narrow(h, OPERAND, PRECISION)
        weights = weight_of(Wr, Wr_strides, head, Wr_share, unit[None, :], into[:, None], square).to(OPERAND)
        ur = dot(operand, weights, ur, PRECISION)
        weights = weight_of(Wf, Wf_strides, head, Wf_share, unit[None, :], into[:, None], square).to(OPERAND)
        uf = dot(operand, weights, uf, PRECISION)
    r, r_left = sigmoids(ur, FAST)
    f, f_left = sigmoids(uf, FAST)
    h = states_before(y, state, state_strides, cu_seqlens, sequence_of, token[:, None], head, wide, mask, S, T, N, H,
                      HAS_STATE, PACKED)  # fmt: skip
    at = ((token * N + head) * H)[:, None] + wide
    put(r_out + at, r, mask)
    put(f_out + at, f, mask)
    put(af + at, f_left, mask)
    put(ar + at, h * r * r_left, mask)


@triton.jit(do_not_specialize=["S", "T"])
def factors_candidate(
    x, x_strides, x_share, W, W_strides, W_share,
    state, state_strides, y, cu_seqlens, sequence_of, r_in, f_in, az, af, S, T, N, H,
    HAS_STATE: tl.constexpr, PACKED: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_T: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """For heads wider than a tile, second half: a_z, and a_f in place of the 1−f that the first half stored there."""
    tiles = tl.cdiv(H, BLOCK_H)
    head = tl.program_id(0) // tiles % N
    token = (tl.program_id(0) // (tiles * N)).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    unit = tl.program_id(0) % tiles * BLOCK_H + tl.arange(0, BLOCK_H)
    inside = unit < H
    mask = (token < T)[:, None] & inside[None, :]
    wide = unit.to(tl.int64)[None, :]

    uz = tl.load(x + tokens_of(x_strides, token, head, x_share, S, PACKED)[:, None] + wide * x_strides[3],
                 mask=mask, other=0.0).to(tl.float32)  # fmt: skip
    for k in tl.range(0, bound(H), BLOCK_K, num_stages=STAGES):
        into = k + tl.arange(0, BLOCK_K)
        read = (token < T)[:, None] & (into < H)[None, :]
        square = (into < H)[:, None] & inside[None, :]
        h = states_before(y, state, state_strides, cu_seqlens, sequence_of, token[:, None], head,
                          into.to(tl.int64)[None, :], read, S, T, N, H, HAS_STATE, PACKED)  # fmt: skip
        r = tl.load(r_in + ((token * N + head) * H)[:, None] + into.to(tl.int64)[None, :], mask=read, other=0.0)
        weights = weight_of(W, W_strides, head, W_share, unit[None, :], into[:, None], square).to(OPERAND)
        uz = dot(narrow(r * h, OPERAND, PRECISION), weights, uz, PRECISION)
    z, z_slope = tanh(uz, FAST), tanh_slope(uz, FAST)
    h = states_before(y, state, state_strides, cu_seqlens, sequence_of, token[:, None], head, wide, mask, S, T, N, H,
                      HAS_STATE, PACKED)  # fmt: skip
    at = ((token * N + head) * H)[:, None] + wide
    f = tl.load(f_in + at, mask=mask, other=0.0)
    f_left = tl.load(af + at, mask=mask, other=0.0).to(tl.float32)
    put(az + at, f_left * z_slope, mask)
    put(af + at, (h - z) * f * f_left, mask)


@device_function
def clipped(dh, clip, CLIP: tl.constexpr):
    """dh limited to ±clip; NaN stays NaN."""
    if CLIP:
        return tl.where(dh > clip, clip, tl.where(dh < -clip, -clip, dh))
    else:
        return dh


@triton.jit(do_not_specialize=["B", "S", "T", "clip"])
def backward_resident(
    W, W_strides, W_share, Wf, Wf_strides, Wf_share, Wr, Wr_strides, Wr_share,
    dy, dy_strides, dlast, dlast_strides, dstate, r_in, f_in, az, af, ar, cu_seqlens, order, clip, B, S, T, N, H, group,
    HAS_DY: tl.constexpr, HAS_DLAST: tl.constexpr, CLIP: tl.constexpr, PACKED: tl.constexpr,
    BLOCK_H: tl.constexpr, ROWS: tl.constexpr, OPERAND: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """All steps of ROWS rows, last to first, ``(H, ROWS)``; az, af, ar become the gradients of the preactivations."""
    sequence, head, first, steps, exists = rows_of_program(cu_seqlens, order, B, S, T, N, group, ROWS, PACKED)
    unit = tl.arange(0, BLOCK_H)
    inside = unit < H
    block = inside[:, None] & exists[None, :]
    weight_head = tl.program_id(0) % (N // group) * group
    square = inside[:, None] & inside[None, :]
    W_i = weight_of(W, W_strides, weight_head, W_share, unit[None, :], unit[:, None], square).to(OPERAND)
    Wf_i = weight_of(Wf, Wf_strides, weight_head, Wf_share, unit[None, :], unit[:, None], square).to(OPERAND)
    Wr_i = weight_of(Wr, Wr_strides, weight_head, Wr_share, unit[None, :], unit[:, None], square).to(OPERAND)

    unit = unit.to(tl.int64)[:, None]
    if HAS_DY:
        dy += rows_of(dy_strides, sequence, first, head, 1, PACKED)[None, :] + unit * dy_strides[3]
    at = ((first * N + head) * H)[None, :] + unit

    dh = tl.zeros((BLOCK_H, ROWS), tl.float32)
    if HAS_DLAST:
        offsets = (sequence * dlast_strides[0] + head * dlast_strides[1])[None, :] + unit * dlast_strides[2]
        dh = tl.load(dlast + offsets, mask=block, other=0.0).to(tl.float32)

    most = tl.max(steps, 0)
    for back in tl.range(0, bound(most), num_stages=STAGES, loop_unroll_factor=UNROLL):
        step = most - 1 - back
        t = tl.cast(step, tl.int64)
        runs = inside[:, None] & (step < steps)[None, :]
        here = at + t * N * H
        r = tl.load(r_in + here, mask=runs, other=0.0)
        f = tl.load(f_in + here, mask=runs, other=0.0)
        duz = tl.load(az + here, mask=runs, other=0.0).to(tl.float32)
        duf = tl.load(af + here, mask=runs, other=0.0).to(tl.float32)
        dur = tl.load(ar + here, mask=runs, other=0.0).to(tl.float32)
        reaching = clipped(dh, clip, CLIP)
        if HAS_DY:
            reaching += tl.load(dy + t * dy_strides[1], mask=runs, other=0.0).to(tl.float32)
        duz *= reaching
        duf *= reaching
        drh = dot(W_i, narrow(duz, OPERAND, PRECISION), tl.zeros_like(dh), PRECISION)
        before = dot(Wf_i, narrow(duf, OPERAND, PRECISION), reaching * f, PRECISION)
        dur *= drh
        before = dot(Wr_i, narrow(dur, OPERAND, PRECISION), before + drh * r, PRECISION)
        dh = tl.where(runs, before, dh) if PACKED else before
        put(az + here, duz, runs)
        put(af + here, duf, runs)
        put(ar + here, dur, runs)

    put(dstate + ((sequence * N + head) * H)[None, :] + unit, dh, block)


@triton.jit(do_not_specialize=["B", "S", "T", "clip"])
def backward_streamed(
    W, W_strides, W_share, Wf, Wf_strides, Wf_share, Wr, Wr_strides, Wr_share,
    dy, dy_strides, dlast, dlast_strides, dstate, r_in, f_in, az, af, ar, cu_seqlens, order, operands, carries, clip,
    B, S, T, N, H, group,
    HAS_DY: tl.constexpr, HAS_DLAST: tl.constexpr, CLIP: tl.constexpr, PACKED: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Like `backward_resident`, but every step reads the weights again from the L2 cache, as in `forward_streamed`.

    ``operands`` ``(programs, 3, width, ROWS)`` holds the three du as operands of products, ``carries`` ``(programs,
    width, ROWS)`` holds dh in float32; the barriers are those of `forward_streamed`.
    """
    sequence, head, first, steps, exists = rows_of_program(cu_seqlens, order, B, S, T, N, group, ROWS, PACKED)
    weight_head = tl.program_id(0) % (N // group) * group
    part = tl.arange(0, BLOCK_K)
    row = tl.arange(0, ROWS)[None, :]
    tile = part[:, None] * ROWS + row
    size = tl.cdiv(H, BLOCK_H) * (BLOCK_H * ROWS)
    operands += tl.program_id(0).to(tl.int64) * 3 * size
    carries += tl.program_id(0).to(tl.int64) * size
    if HAS_DY:
        dy += rows_of(dy_strides, sequence, first, head, 1, PACKED)[None, :]
    at = ((first * N + head) * H)[None, :]

    for u in tl.range(0, bound(H), BLOCK_H):
        unit = (u + tl.arange(0, BLOCK_H))[:, None]
        dh = tl.zeros((BLOCK_H, ROWS), tl.float32)
        if HAS_DLAST:
            rows = (sequence * dlast_strides[0] + head * dlast_strides[1])[None, :]
            offsets = rows + unit.to(tl.int64) * dlast_strides[2]
            dh = tl.load(dlast + offsets, mask=(unit < H) & exists[None, :], other=0.0).to(tl.float32)
        tl.store(carries + unit * ROWS + row, dh)
    tl.debug_barrier()

    most = tl.max(steps, 0)
    for back in tl.range(0, bound(most), num_stages=1):
        step = most - 1 - back
        t = step.to(tl.int64)
        for u in tl.range(0, bound(H), BLOCK_H, num_stages=1):
            unit = (u + tl.arange(0, BLOCK_H))[:, None]
            mine = unit * ROWS + row
            runs = (unit < H) & (step < steps)[None, :]
            here = at + t * N * H + unit
            dh = tl.load(carries + mine)
            reaching = clipped(dh, clip, CLIP)
            if HAS_DY:
                offsets = t * dy_strides[1] + unit.to(tl.int64) * dy_strides[3]
                reaching += tl.load(dy + offsets, mask=runs, other=0.0).to(tl.float32)
            duz = tl.load(az + here, mask=runs, other=0.0).to(tl.float32) * reaching
            duf = tl.load(af + here, mask=runs, other=0.0).to(tl.float32) * reaching
            put(az + here, duz, runs)
            put(af + here, duf, runs)
            tl.store(operands + mine, narrow(duz, OPERAND, PRECISION))
            tl.store(operands + size + mine, narrow(duf, OPERAND, PRECISION))
            tl.store(carries + mine, tl.where(runs, reaching * tl.load(f_in + here, mask=runs, other=0.0), dh))
        tl.debug_barrier()
        for u in tl.range(0, bound(H), BLOCK_H, num_stages=1):
            unit = u + tl.arange(0, BLOCK_H)
            mine = unit[:, None] * ROWS + row
            runs = (unit < H)[:, None] & (step < steps)[None, :]
            here = at + t * N * H + unit[:, None]
            before = tl.load(carries + mine)
            drh = tl.zeros((BLOCK_H, ROWS), tl.float32)
            for k in tl.range(0, bound(H), BLOCK_K, num_stages=STAGES):
                out = (k + part)[None, :]
                square = (unit < H)[:, None] & (out < H)
                duz_k = tl.load(operands + k * ROWS + tile)
                duf_k = tl.load(operands + size + k * ROWS + tile)
                W_i = weight_of(W, W_strides, weight_head, W_share, out, unit[:, None], square).to(OPERAND)
                Wf_i = weight_of(Wf, Wf_strides, weight_head, Wf_share, out, unit[:, None], square).to(OPERAND)
                drh = dot(W_i, duz_k, drh, PRECISION)
                before = dot(Wf_i, duf_k, before, PRECISION)
            dur = tl.load(ar + here, mask=runs, other=0.0).to(tl.float32) * drh
            put(ar + here, dur, runs)
            tl.store(operands + 2 * size + mine, narrow(dur, OPERAND, PRECISION))
            tl.store(carries + mine, before + drh * tl.load(r_in + here, mask=runs, other=0.0))
        tl.debug_barrier()
        for u in tl.range(0, bound(H), BLOCK_H, num_stages=1):
            unit = u + tl.arange(0, BLOCK_H)
            mine = unit[:, None] * ROWS + row
            before = tl.load(carries + mine)
            for k in tl.range(0, bound(H), BLOCK_K, num_stages=STAGES):
                out = (k + part)[None, :]
                square = (unit < H)[:, None] & (out < H)
                dur_k = tl.load(operands + 2 * size + k * ROWS + tile)
                Wr_i = weight_of(Wr, Wr_strides, weight_head, Wr_share, out, unit[:, None], square).to(OPERAND)
                before = dot(Wr_i, dur_k, before, PRECISION)
            tl.store(carries + mine, before)
        tl.debug_barrier()

    for u in tl.range(0, bound(H), BLOCK_H):
        unit = (u + tl.arange(0, BLOCK_H))[:, None]
        dh = tl.load(carries + unit * ROWS + row)
        put(dstate + ((sequence * N + head) * H)[None, :] + unit, dh, (unit < H) & exists[None, :])


@triton.jit(do_not_specialize=["S", "T", "span"])
def weights_gradient(
    state, state_strides, y, cu_seqlens, sequence_of, r_in, duz, duf, dur, dW, dWf, dWr, span, S, T, N, H,
    HAS_STATE: tl.constexpr, PACKED: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_T: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Σ_t (r⊙h)ᵀ du_z, hᵀ du_f and hᵀ du_r over ``span`` tokens, in float32: ``(chunks, N, H, H)``, a tile per program.

    The chunks are summed afterwards, in order, so that the same call always gives the same bits.
    """
    tiles_i, tiles_j = tl.cdiv(H, BLOCK_I), tl.cdiv(H, BLOCK_J)
    program = tl.program_id(0)
    i = program % tiles_i * BLOCK_I + tl.arange(0, BLOCK_I)
    j = program // tiles_i % tiles_j * BLOCK_J + tl.arange(0, BLOCK_J)
    chunk_head = program // (tiles_i * tiles_j)
    head = chunk_head % N
    start = (chunk_head // N).to(tl.int64) * span
    end = tl.minimum(start + span, T)

    az = tl.zeros((BLOCK_I, BLOCK_J), tl.float32)
    af = tl.zeros((BLOCK_I, BLOCK_J), tl.float32)
    ar = tl.zeros((BLOCK_I, BLOCK_J), tl.float32)
    for offset in tl.range(0, bound(span), BLOCK_T, num_stages=STAGES):
        token = start + offset + tl.arange(0, BLOCK_T)
        read_i = (i < H)[:, None] & (token < end)[None, :]
        read_j = (token < end)[:, None] & (j < H)[None, :]
        h = states_before(y, state, state_strides, cu_seqlens, sequence_of, token[None, :], head,
                          i.to(tl.int64)[:, None], read_i, S, T, N, H, HAS_STATE, PACKED)  # fmt: skip
        r = tl.load(r_in + ((token * N + head) * H)[None, :] + i[:, None], mask=read_i, other=0.0)
        at = ((token * N + head) * H)[:, None] + j[None, :]
        operand = narrow(h, OPERAND, PRECISION)
        az = dot(
            narrow(r * h, OPERAND, PRECISION), tl.load(duz + at, mask=read_j, other=0.0).to(OPERAND), az, PRECISION
        )
        af = dot(operand, tl.load(duf + at, mask=read_j, other=0.0).to(OPERAND), af, PRECISION)
        ar = dot(operand, tl.load(dur + at, mask=read_j, other=0.0).to(OPERAND), ar, PRECISION)

    to = chunk_head.to(tl.int64) * H * H + i.to(tl.int64)[:, None] * H + j[None, :]
    mask = (i < H)[:, None] & (j < H)[None, :]
    put(dW + to, az, mask)
    put(dWf + to, af, mask)
    put(dWr + to, ar, mask)
