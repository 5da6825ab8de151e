"""Helpers of the kernels: gates that stay exact where they saturate, operands, rows, and tuples of tiles.

A *row* of a program is one head of one sequence, an independent recurrence; all rows of a program read the same
weights. ``group`` consecutive heads share these weights (the gcd of the weights' shares), so that row l of the g-th
group is head ``g·group + l mod group`` of sequence ``l // group``.
"""

import triton.language as tl  # pyright: ignore[reportMissingImports]

from torch_impl._triton.shared import device_function, dot, load_apart, maximum, minimum, operand


@device_function
def exp2(x, FAST: tl.constexpr):
    """2^x; with FAST by the GPU's own instruction (NVIDIA only), which replaces results below 2⁻¹²⁶ by 0."""
    if FAST:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.exp2(x)


@device_function
def inverse(x, FAST: tl.constexpr):
    """1/x for x of at least 1; FAST as in `exp2`."""
    if FAST:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 1.0 / x


@device_function
def sigmoid(u, FAST: tl.constexpr):
    """σ(u) to full relative precision."""
    return inverse(1.0 + exp2(u * -1.4426950408889634, FAST), FAST)


@device_function
def sigmoids(u, FAST: tl.constexpr):
    """σ(u) and 1 − σ(u) = σ(−u), each to full relative precision."""
    e = exp2(tl.abs(u) * -1.4426950408889634, FAST)
    large = inverse(1.0 + e, FAST)
    small = e * large
    return tl.where(u >= 0, large, small), tl.where(u >= 0, small, large)


@device_function
def tanh(u, FAST: tl.constexpr):
    """tanh(u) = 1 − 2/(1 + exp(2u)) where |u| ≥ 1/4; below, where that would cancel, the Taylor series up to u⁹, whose
    remainder is less than 1e-8 of the value."""
    s = u * u
    series = u * (1.0 + s * (-0.33333333333 + s * (0.13333333333 + s * (-0.05396825397 + s * 0.02186948854))))
    return tl.where(s < 0.0625, series, 1.0 - 2.0 * inverse(1.0 + exp2(u * 2.8853900817779268, FAST), FAST))


@device_function
def tanh_slope(u, FAST: tl.constexpr):
    """1 − tanh²(u) to full relative precision."""
    e = exp2(tl.abs(u) * -2.8853900817779268, FAST)
    half = inverse(1.0 + e, FAST)
    return 4.0 * e * half * half


@device_function
def narrow(x, OPERAND: tl.constexpr, PRECISION: tl.constexpr):
    """A float32 intermediate as an operand: rounded to 16 bits, to TF32 (hardware would truncate), or not rounded."""
    if OPERAND == tl.float16:
        # A state beyond float16's range would turn 0·∞ into NaN; its output overflows in any case.
        return minimum(maximum(x, -65504.0), 65504.0).to(tl.float16)
    else:
        return operand(x, OPERAND, PRECISION)


@device_function
def rows_of_program(cu_seqlens, order, B, S, T, N, group, ROWS: tl.constexpr, PACKED: tl.constexpr):
    """For every row of this program: its sequence, its head, its first token, its steps, and whether it exists."""
    groups = N // group
    row = tl.program_id(0) // groups * ROWS + tl.arange(0, ROWS)
    exists = row < B * group
    head = (tl.program_id(0) % groups * group + row % group).to(tl.int64)
    sequence = (row // group).to(tl.int64)
    if PACKED:
        sequence = tl.load(order + sequence, mask=exists, other=0).to(tl.int64)
        first, end = bounds(cu_seqlens, sequence, T, exists)
        steps = tl.where(exists, end - first, 0).to(tl.int32)
    else:
        first = sequence * S
        steps = tl.where(exists, S, 0).to(tl.int32)
    return sequence, head, first, steps, exists


@device_function
def bounds(cu_seqlens, sequence, T, mask):
    """The start and end of sequences, limited to the T tokens for any values of ``cu_seqlens``."""
    start = tl.load(cu_seqlens + sequence, mask=mask, other=0).to(tl.int64)
    end = tl.load(cu_seqlens + sequence + 1, mask=mask, other=0).to(tl.int64)
    start = tl.minimum(tl.maximum(start, 0), T)
    return start, tl.minimum(tl.maximum(end, start), T)


@device_function
def rows_of(strides, sequence, first, head, share, PACKED: tl.constexpr):
    """Offset of every row's first step in an array ``(B, S, heads, H)``, or ``(T, heads, H)`` with first stride 0."""
    if PACKED:
        origin = first * strides[1]
    else:
        origin = sequence * strides[0]
    return origin + head // share * strides[2]


@device_function
def weight_of(weight, strides, head, share, out, into, mask):
    """Elements ``weight[head // share, into, out]``."""
    offsets = into.to(tl.int64) * strides[1] + out.to(tl.int64) * strides[2]
    return tl.load(weight + (head // share).to(tl.int64) * strides[0] + offsets, mask=mask, other=0.0)


@device_function
def states_before(y, state, state_strides, cu_seqlens, sequence_of, token, head, unit, mask, S, T, N, H,
                  HAS_STATE: tl.constexpr, PACKED: tl.constexpr, APART: tl.constexpr = False):  # fmt: skip
    """The state before each token: the output of the previous token, or the initial state at a sequence's first token.

    ``token`` and ``unit`` broadcast against each other to the shape of ``mask``; y is contiguous. With APART, y is
    loaded by `load_apart`.
    """
    if PACKED:
        sequence = tl.load(sequence_of + token, mask=token < T, other=0).to(tl.int64)
        start, _ = bounds(cu_seqlens, sequence, T, token < T)
        opens = token == start
    else:
        sequence = token // S
        opens = token % S == 0
    place, read = y + ((token - 1) * N + head) * H + unit, mask & ~opens
    h = (load_apart(place, read) if APART else tl.load(place, mask=read, other=0.0)).to(tl.float32)
    if HAS_STATE:
        offsets = sequence * state_strides[0] + head.to(tl.int64) * state_strides[1] + unit * state_strides[2]
        h += tl.load(state + offsets, mask=mask & opens, other=0.0)
    return h


@device_function
def tokens_of(strides, token, head, share, S, PACKED: tl.constexpr):
    """Offset of every token in an array ``(B, S, heads, H)`` or ``(T, heads, H)``, with these four strides."""
    if PACKED:
        origin = token * strides[1]
    else:
        origin = token // S * strides[0] + token % S * strides[1]
    return origin + (head // share).to(tl.int64) * strides[2]


@device_function
def bias_of(bias, head, share, unit, H, FORM: tl.constexpr):
    """The bias of the last gate's product, contiguous ``(heads, H)``; 0 if there is none."""
    if FORM == "apart" and bias is not None:
        return tl.load(bias + head // share * H + unit, mask=unit < H, other=0.0).to(tl.float32)
    else:
        return 0.0


@device_function
def tiles_of_weights(W, strides, head, shares, out, into, mask, FIRST: tl.constexpr, END: tl.constexpr,
                     OPERAND: tl.constexpr):  # fmt: skip
    """`weight_of` for the weights FIRST to END (exclusive), as operands."""
    tiles = ()
    for g in tl.static_range(FIRST, END):
        tiles = tiles + (weight_of(W[g], strides[g], head, shares[g], out, into, mask).to(OPERAND),)
    return tiles


@device_function
def products(weights, operand, sums, FIRST: tl.constexpr, END: tl.constexpr, PRECISION: tl.constexpr):
    """``sums + weights · operand`` for the gates FIRST to END (exclusive)."""
    found = ()
    for g in tl.static_range(FIRST, END):
        found = found + (dot(weights[g], operand, sums[g], PRECISION),)
    return found


@device_function
def selected(condition, x, y):
    """``x`` where ``condition``, else ``y``, element by element of two tuples."""
    found = ()
    for s in tl.static_range(len(x)):
        found = found + (tl.where(condition, x[s], y[s]),)
    return found


@device_function
def each_plus(addresses, index, strides, AXIS: tl.constexpr):
    """Every address moved by ``index`` along an axis."""
    moved = ()
    for g in tl.static_range(len(addresses)):
        moved = moved + (addresses[g] + index * strides[g][AXIS],)
    return moved


@device_function
def load_each(address, size, FIRST: tl.constexpr, END: tl.constexpr):
    """The tiles at ``address`` of the arrays FIRST to END (exclusive), which follow each other after ``size``."""
    found = ()
    for s in tl.static_range(FIRST, END):
        found = found + (tl.load(address + s * size),)
    return found
