"""Cumulative sums along the last axis in either direction, as one kernel."""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from torch_impl._triton.shared import bound, device_function, put


@device_function
def row_offset(row, sizes, strides):
    """Offset of every row of an array with at most three leading axes of these sizes and strides."""
    inner = row // sizes[2]
    return row % sizes[2] * strides[2] + inner % sizes[1] * strides[1] + inner // sizes[1] * strides[0]


@device_function
def one_of(x, column: tl.constexpr):
    """Column ``x[:, column]``, used for the total of a cumulative sum: if `tl.sum` of its terms is added to a value
    that the loop carries, Triton 3.6 fails to compile ("loopResult.hasOneUse()")."""
    return tl.sum(tl.where(tl.arange(0, x.shape[1])[None, :] == column, x, 0.0), 1)


@triton.jit(do_not_specialize=["rows", "S"])
def cumulative(
    x, sizes, strides, step, y, rows, S,
    REVERSE: tl.constexpr, EXCLUSIVE: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """``y_t = Σ_{s≤t} x_s``; REVERSE sums from the other end, EXCLUSIVE excludes x_t itself; float32 inside.

    A program computes BLOCK_R rows, BLOCK_S elements at a time: each block as a tree, the totals of the blocks one
    after the other. An excluded element is never added, so nothing is subtracted.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    x += row_offset(row, sizes, strides)[:, None]
    y += row[:, None] * S
    blocks = tl.cdiv(S, BLOCK_S)
    before = tl.zeros((BLOCK_R,), tl.float32)
    for number in tl.range(0, bound(blocks), num_stages=3):
        block = blocks - 1 - number if REVERSE else number
        t = (block * BLOCK_S + tl.arange(0, BLOCK_S)).to(tl.int64)[None, :]
        source = t + (1 if REVERSE else -1) if EXCLUSIVE else t
        read = (row < rows)[:, None] & (source >= 0) & (source < S)
        terms = tl.load(x + source * step, mask=read, other=0.0).to(tl.float32)
        sums = tl.cumsum(terms, 1, reverse=REVERSE) + before[:, None]
        put(y + t, sums, (row < rows)[:, None] & (t < S))
        before = one_of(sums, 0 if REVERSE else BLOCK_S - 1)
