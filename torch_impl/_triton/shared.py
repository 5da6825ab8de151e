"""Pieces that kernels share: products, tiles of strided tensors, and the logarithm of a forget gate."""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from torch_impl._triton.interpreter import interpreted

INTERPRETED = tl.constexpr(interpreted())


@triton.jit
def dot(x, y, z, PRECISION: tl.constexpr):
    """``x y + z`` with z in float32. Under the interpreter the operands are widened, which changes no value."""
    if INTERPRETED:
        x = x.to(tl.float32)
        y = y.to(tl.float32)
    return tl.dot(x, y, z, input_precision=PRECISION)


@triton.jit
def bound(x):
    """A loop's bound: an integer known when the kernel runs. The interpreter holds it in an array of one element, which
    `range` does not take."""
    if INTERPRETED:
        return x.handle.data.item()
    return x


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """float32 ``x`` in ``dtype``, to the nearest. The interpreter would truncate what becomes bfloat16."""
    if INTERPRETED:
        if dtype == tl.bfloat16:
            bits = x.to(tl.int32, bitcast=True)
            even = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
            x = tl.where(x == x, even.to(tl.float32, bitcast=True), x)
    return x.to(dtype)


@triton.jit
def put(address, x, mask):
    """Store float32 ``x`` in the dtype that lies there, rounded to the nearest."""
    tl.store(address, rounded(x, address.dtype.element_ty), mask=mask)


@triton.jit
def log_sigmoid(x):
    """``min(x, 0) − log(1 + exp(−|x|))``: exact at ±∞, accurate where the result is small."""
    small = tl.exp(-tl.abs(x))
    whole = 1.0 + small
    # log(1 + s) = s · log(u)/(u − 1) with u the rounded 1 + s, which cancels the rounding of u.
    tail = tl.where(whole == 1.0, small, tl.log(whole) * (small / tl.where(whole == 1.0, 1.0, whole - 1.0)))
    return tl.minimum(x, 0.0) - tail


@triton.jit
def steps_at(x, strides, sequence, t, n):
    """Address of ``x[sequence, t, n]``; strides along sequence, step, head and the rest. Within a tile 32 bits do."""
    return x + sequence.to(tl.int64) * strides[0] + n.to(tl.int64) * strides[2] + t.to(tl.int64) * strides[1]


@triton.jit
def load_tile(base, strides, slot, c, left, width):
    """The ``(slot, c)`` tile at ``base``; 0 from slot ``left`` and from column ``width`` on."""
    place = slot[:, None] * strides[1] + c[None, :] * strides[3]
    return tl.load(base + place, mask=(slot < left)[:, None] & (c < width)[None, :], other=0.0)


@triton.jit
def load_tile_transposed(base, strides, slot, c, left, width):
    """The same tile as ``(c, slot)``."""
    place = slot[None, :] * strides[1] + c[:, None] * strides[3]
    return tl.load(base + place, mask=(slot < left)[None, :] & (c < width)[:, None], other=0.0)


@triton.jit
def store_tile(base, strides, slot, c, left, width, y):
    """Write the ``(slot, c)`` tile at ``base`` in its dtype, up to slot ``left`` and column ``width``."""
    place = slot[:, None] * strides[1] + c[None, :] * strides[3]
    tl.store(base + place, y.to(base.dtype.element_ty), mask=(slot < left)[:, None] & (c < width)[None, :])
