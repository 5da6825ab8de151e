"""A kernel whose loop reads a tile for a product and for a sum, by one load or by two."""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from torch_impl._triton.shared import load_apart


@triton.jit
def product_and_sum(x, y, product, sums, K: tl.constexpr, APART: tl.constexpr):
    row, col = tl.arange(0, 64)[:, None], tl.arange(0, 64)[None, :]
    found, total = tl.zeros((64, 64), tl.float32), tl.zeros((64,), tl.float32)
    for start in range(0, K, 64):
        left = tl.load(x + row * K + start + col)
        found = tl.dot(left, tl.load(y + (start + row) * 64 + col), found)
        again = load_apart(x + row * K + start + col, row < 64) if APART else left
        total += tl.sum(again.to(tl.float32), axis=1)
    tl.store(product + row * 64 + col, found)
    tl.store(sums + tl.arange(0, 64), total)
