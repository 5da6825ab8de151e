"""The causal forget matrix and D̃, forward and backward, in tiles; each column is a running sum of its own."""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from torch_impl._scan.triton.kernels import one_of, row_offset
from torch_impl._triton.shared import bound, log_sigmoid, put


@triton.jit(do_not_specialize=["S"])
def decay(
    gates, gate_sizes, gate_strides, gate_step, igates, igate_sizes, igate_strides, igate_step, F, S,
    TILDE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """``F[t,j] = Σ_{j<s≤t} a_s``, −∞ above the diagonal; with TILDE a = log σ(gate), and igate_j is added.

    A program computes BLOCK_J columns from top to bottom: each tile as a tree, one tile after the other.
    """
    tiles = tl.cdiv(S, BLOCK_J)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    j = tl.program_id(0) % tiles * BLOCK_J + tl.arange(0, BLOCK_J)
    gates += row_offset(row, gate_sizes, gate_strides)
    F += row * S * S + j[None, :]
    add = tl.zeros((BLOCK_J,), tl.float32)
    if TILDE:
        igates += row_offset(row, igate_sizes, igate_strides)
        add = tl.load(igates + j.to(tl.int64) * igate_step, mask=j < S, other=0.0).to(tl.float32)
    above = tl.zeros((BLOCK_J,), tl.float32)
    for start in tl.range(0, bound(S), BLOCK_T, num_stages=2):
        t = start + tl.arange(0, BLOCK_T)
        a = tl.load(gates + t.to(tl.int64) * gate_step, mask=t < S, other=0.0).to(tl.float32)
        if TILDE:
            a = tl.where(t < S, log_sigmoid(a), 0.0)
        terms = tl.where(t[:, None] > j[None, :], a[:, None], 0.0)
        sums = tl.cumsum(terms, 0) + above[None, :]
        above += tl.sum(terms, 0)
        if TILDE:
            sums = tl.where(sums == float("-inf"), sums, sums + add[None, :])
        sums = tl.where(t[:, None] >= j[None, :], sums, float("-inf"))
        put(F + (t.to(tl.int64) * S)[:, None], sums, (t < S)[:, None] & (j < S)[None, :])


@triton.jit(do_not_specialize=["S"])
def decay_backward(
    dF, sizes, strides, step_t, step_j, da, di, S, TILDE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_J: tl.constexpr,
):  # fmt: skip
    """``da_s = Σ_{t≥s} Σ_{j<s} dF[t,j]`` and, with TILDE, ``di_j = Σ_t dF[t,j]`` over BLOCK_T rows of the matrix.

    A program computes BLOCK_T rows from left to right, with a running sum for each row; da and di are ``(rows, tiles,
    S)``, to be summed over the tiles. A masked element does not contribute to da, whatever its value.
    """
    tiles = tl.cdiv(S, BLOCK_T)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    t = (tl.program_id(0) % tiles * BLOCK_T + tl.arange(0, BLOCK_T))[:, None]
    dF += row_offset(row, sizes, strides) + t.to(tl.int64) * step_t
    da += tl.program_id(0).to(tl.int64) * S
    di += tl.program_id(0).to(tl.int64) * S
    left = tl.zeros((BLOCK_T,), tl.float32)
    for start in tl.range(0, bound(S), BLOCK_J, num_stages=2):
        s = start + tl.arange(0, BLOCK_J)
        j = s[None, :] - 1
        terms = tl.load(dF + j.to(tl.int64) * step_j, mask=(t < S) & (j >= 0) & (j < t), other=0.0).to(tl.float32)
        sums = tl.cumsum(terms, 1) + left[:, None]
        left = one_of(sums, BLOCK_J - 1)
        tl.store(da + s, tl.sum(tl.where(t >= s[None, :], sums, 0.0), 0), mask=s < S)
        if TILDE:
            whole = tl.load(dF + s.to(tl.int64)[None, :] * step_j, mask=(t < S) & (s < S)[None, :], other=0.0)
            tl.store(di + s, tl.sum(whole.to(tl.float32), 0), mask=s < S)
