"""The part of the GRU's backward pass that is parallel over time: the factors of the preactivations' gradients.

With u the argument of each nonlinearity, p = h W + b, dh' the gradient of h', and the reset gate inside the product
("late") or after it ("apart")::

    du_z = dh'⊙a_z      a_z = (1−f)⊙(1−z²)
    du_f = dh'⊙a_f      a_f = (h−z)⊙f⊙(1−f)
    late:   du_r = (du_z Wᵀ)⊙a_r   a_r = h⊙r⊙(1−r)     dh = dh'⊙f + (du_z Wᵀ)⊙r + du_f W_fᵀ + du_r W_rᵀ
    apart:  du_r = du_z⊙a_r        a_r = p⊙r⊙(1−r)     dh = dh'⊙f + (du_z⊙r) Wᵀ + du_f W_fᵀ + du_r W_rᵀ

The factors a, f and r do not depend on a gradient. They are recomputed from the inputs and the outputs for all steps at
once, so that a step of the loop has no exponential. The loop replaces each a by its du, in place.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from torch_impl._recurrent.triton.shared import (
    bias_of,
    narrow,
    sigmoids,
    states_before,
    tanh,
    tanh_slope,
    tokens_of,
    weight_of,
)
from torch_impl._triton.shared import bound, dot, put


@triton.jit(do_not_specialize=["S", "T"])
def factors(
    x, x_strides, x_share, W, W_strides, W_share, bias,
    xf, xf_strides, xf_share, Wf, Wf_strides, Wf_share,
    xr, xr_strides, xr_share, Wr, Wr_strides, Wr_share,
    state, state_strides, y, cu_seqlens, sequence_of, r_out, f_out, az, af, ar, S, T, N, H,
    FORM: tl.constexpr, HAS_STATE: tl.constexpr, PACKED: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_T: tl.constexpr,
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
    if FORM == "late":
        scaled = h
        uz = dot(narrow(r * h, OPERAND, PRECISION), weights, uz, PRECISION)
    else:
        start = bias_of(bias, head, W_share, unit[None, :], H, FORM)
        scaled = dot(operand, weights, tl.zeros((BLOCK_T, BLOCK_H), tl.float32) + start, PRECISION)
        uz += r * scaled
    z, z_slope = tanh(uz, FAST), tanh_slope(uz, FAST)

    at = ((token * N + head) * H)[:, None] + wide
    put(r_out + at, r, mask)
    put(f_out + at, f, mask)
    put(az + at, f_left * z_slope, mask)
    put(af + at, (h - z) * f * f_left, mask)
    put(ar + at, scaled * r * r_left, mask)


@triton.jit(do_not_specialize=["S", "T"])
def factors_gates(
    xf, xf_strides, xf_share, Wf, Wf_strides, Wf_share,
    xr, xr_strides, xr_share, Wr, Wr_strides, Wr_share,
    state, state_strides, y, cu_seqlens, sequence_of, r_out, f_out, af, ar, S, T, N, H,
    FORM: tl.constexpr, HAS_STATE: tl.constexpr, PACKED: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_T: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """For heads wider than a tile, first half, BLOCK_H units of BLOCK_T tokens: r, f, a_r (in the form "apart"
    without its factor p) and, in ``af``, 1−f."""
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
    slope = r * r_left
    if FORM == "late":
        slope = slope * states_before(y, state, state_strides, cu_seqlens, sequence_of, token[:, None], head, wide,
                                      mask, S, T, N, H, HAS_STATE, PACKED)  # fmt: skip
    at = ((token * N + head) * H)[:, None] + wide
    put(r_out + at, r, mask)
    put(f_out + at, f, mask)
    put(af + at, f_left, mask)
    put(ar + at, slope, mask)


@triton.jit(do_not_specialize=["S", "T"])
def factors_candidate(
    x, x_strides, x_share, W, W_strides, W_share, bias,
    state, state_strides, y, cu_seqlens, sequence_of, r_in, f_in, az, af, ar, S, T, N, H,
    FORM: tl.constexpr, HAS_STATE: tl.constexpr, PACKED: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_T: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """For heads wider than a tile, second half: a_z, and a_f and a_r in place of what the first half stored there."""
    tiles = tl.cdiv(H, BLOCK_H)
    head = tl.program_id(0) // tiles % N
    token = (tl.program_id(0) // (tiles * N)).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    unit = tl.program_id(0) % tiles * BLOCK_H + tl.arange(0, BLOCK_H)
    inside = unit < H
    mask = (token < T)[:, None] & inside[None, :]
    wide = unit.to(tl.int64)[None, :]

    uz = tl.load(x + tokens_of(x_strides, token, head, x_share, S, PACKED)[:, None] + wide * x_strides[3],
                 mask=mask, other=0.0).to(tl.float32)  # fmt: skip
    if FORM == "late":
        product = uz
    else:
        product = tl.zeros((BLOCK_T, BLOCK_H), tl.float32) + bias_of(bias, head, W_share, unit[None, :], H, FORM)
    for k in tl.range(0, bound(H), BLOCK_K, num_stages=STAGES):
        into = k + tl.arange(0, BLOCK_K)
        read = (token < T)[:, None] & (into < H)[None, :]
        square = (into < H)[:, None] & inside[None, :]
        h = states_before(y, state, state_strides, cu_seqlens, sequence_of, token[:, None], head,
                          into.to(tl.int64)[None, :], read, S, T, N, H, HAS_STATE, PACKED)  # fmt: skip
        if FORM == "late":
            h *= tl.load(r_in + ((token * N + head) * H)[:, None] + into.to(tl.int64)[None, :], mask=read, other=0.0)
        weights = weight_of(W, W_strides, head, W_share, unit[None, :], into[:, None], square).to(OPERAND)
        product = dot(narrow(h, OPERAND, PRECISION), weights, product, PRECISION)
    at = ((token * N + head) * H)[:, None] + wide
    if FORM == "late":
        uz = product
    else:
        r = tl.load(r_in + at, mask=mask, other=0.0)
        uz += r * product
        put(ar + at, product * tl.load(ar + at, mask=mask, other=0.0).to(tl.float32), mask)
    z, z_slope = tanh(uz, FAST), tanh_slope(uz, FAST)
    h = states_before(y, state, state_strides, cu_seqlens, sequence_of, token[:, None], head, wide, mask, S, T, N, H,
                      HAS_STATE, PACKED)  # fmt: skip
    f = tl.load(f_in + at, mask=mask, other=0.0)
    f_left = tl.load(af + at, mask=mask, other=0.0).to(tl.float32)
    put(az + at, f_left * z_slope, mask)
    put(af + at, (h - z) * f * f_left, mask)
