"""Helpers shared by kernels: products, tiles of strided tensors, and the logarithm of a forget gate."""

from collections.abc import Callable

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from torch_impl._triton.interpreter import interpreted

INTERPRETED = tl.constexpr(interpreted())


def device_function(function: Callable) -> Callable:
    """Decorator of a function that kernels call: ``triton.jit``, or under the interpreter the function that it runs.

    The interpreter prepares Triton's language at each launch, and again at each call of a ``triton.jit`` function,
    which took two fifths of the time of the GRU's tests.
    """
    compiled = triton.jit(function)
    return compiled.rewrite() if interpreted() else compiled


@device_function
def dot(x, y, z, PRECISION: tl.constexpr):
    """``x y + z`` with z in float32. The interpreter needs wider operands, which do not change the value."""
    if INTERPRETED:
        x = x.to(tl.float32)
        y = y.to(tl.float32)
    return tl.dot(x, y, z, input_precision=PRECISION)


@device_function
def bound(x):
    """The bound of a loop, an integer known when the kernel runs. The interpreter holds it in an array of one element,
    which `range` does not accept."""
    if INTERPRETED:
        return x.handle.data.item()
    return x


@device_function
def both(mask, condition):
    """``mask & condition`` of a tile and a scalar. The interpreter widens a scalar to integers, and the masks of Triton
    3.9 are Boolean."""
    if INTERPRETED:
        return (mask.to(tl.int32) & condition.to(tl.int32)) != 0
    return mask & condition


@device_function
def rounded(x, dtype: tl.constexpr):
    """float32 ``x`` rounded to the nearest value of ``dtype``; the interpreter alone would truncate to bfloat16."""
    if INTERPRETED:
        if dtype == tl.bfloat16:
            bits = x.to(tl.int32, bitcast=True)
            even = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
            x = tl.where(x == x, even.to(tl.float32, bitcast=True), x)
    return x.to(dtype)


@device_function
def operand(x, dtype: tl.constexpr, PRECISION: tl.constexpr):
    """A float32 intermediate as an operand of a product: rounded to bfloat16, or to TF32, or not rounded.

    Tensor cores would read a float32 number as TF32 by dropping its low bits: always towards 0, with an error twice as
    large.
    """
    if dtype == tl.float32:
        return to_tf32(x) if PRECISION == "tf32" else x
    else:
        return rounded(x, dtype)


@device_function
def to_tf32(x):
    """float32 ``x`` rounded to TF32, ties away from 0; NaN stays NaN."""
    if INTERPRETED:
        bits = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
        return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)
    else:
        bits = tl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,f", [x], dtype=tl.int32, is_pure=True, pack=1)
        return bits.to(tl.float32, bitcast=True)


@device_function
def maximum(x, y):
    """The larger of two numbers; NaN if one is NaN, which `tl.maximum` would drop on NVIDIA GPUs."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@device_function
def minimum(x, y):
    """The smaller of two numbers; NaN if one is NaN."""
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@device_function
def load_apart(address, mask):
    """Numbers of which another load makes an operand of a product: they have to be loaded apart from it.

    Triton 3.6 keeps a load that only a product of Hopper's reads in two buffers, and in one if something else reads it
    too, although the product may still run when the next copy starts: on an H100, bfloat16's h was off by 4 % and not
    the same in two calls. `benchmarks.gpu.races` looks for such loops. The eviction policy is what makes it another
    load for the compiler.
    """
    return tl.load(address, mask=mask, other=0.0, eviction_policy="evict_last")


@device_function
def put(address, x, mask):
    """Store float32 ``x`` in the dtype of the destination, rounded to the nearest."""
    tl.store(address, rounded(x, address.dtype.element_ty), mask=mask)


@device_function
def log_sigmoid(x):
    """``min(x, 0) − log(1 + exp(−|x|))``: exact at ±∞, and accurate where the result is small."""
    small = tl.exp(-tl.abs(x))
    whole = 1.0 + small
    # log(1 + s) = s · log(u)/(u − 1) with u the rounded 1 + s, which cancels the rounding of u.
    tail = tl.where(whole == 1.0, small, tl.log(whole) * (small / tl.where(whole == 1.0, 1.0, whole - 1.0)))
    return tl.minimum(x, 0.0) - tail


@device_function
def steps_at(x, strides, sequence, t, n):
    """Address of ``x[sequence, t, n]``, with strides by sequence, step, head and the rest; 32 bits do in a tile."""
    return x + sequence.to(tl.int64) * strides[0] + n.to(tl.int64) * strides[2] + t.to(tl.int64) * strides[1]


@device_function
def load_tile(base, strides, slot, c, left, width):
    """The ``(slot, c)`` tile at ``base``; 0 from slot ``left`` on and from column ``width`` on."""
    place = slot[:, None] * strides[1] + c[None, :] * strides[3]
    return tl.load(base + place, mask=(slot < left)[:, None] & (c < width)[None, :], other=0.0)


@device_function
def load_tile_apart(base, strides, slot, c, left, width):
    """`load_tile` by `load_apart`."""
    place = slot[:, None] * strides[1] + c[None, :] * strides[3]
    return load_apart(base + place, (slot < left)[:, None] & (c < width)[None, :])


@device_function
def load_tile_transposed(base, strides, slot, c, left, width):
    """The same tile as ``(c, slot)``."""
    place = slot[None, :] * strides[1] + c[:, None] * strides[3]
    return tl.load(base + place, mask=(slot < left)[None, :] & (c < width)[:, None], other=0.0)


@device_function
def store_tile(base, strides, slot, c, left, width, y):
    """Write the ``(slot, c)`` tile at ``base`` in its dtype, up to slot ``left`` and column ``width``."""
    place = slot[:, None] * strides[1] + c[None, :] * strides[3]
    put(base + place, y, (slot < left)[:, None] & (c < width)[None, :])
