"""One step of the mLSTM as a single Triton kernel: the memory is read once and written once.

Source: Beck et al., arXiv:2405.04517, equations 19 to 27; names are those of `torch_impl._mlstm.api`. A program
computes a part of V of one head and loops over tiles of K. All arithmetic is float32, and arrays may have any strides.
"""

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from torch_impl._mlstm.triton.shared import LARGEST_M, LARGEST_UNIT, finite, stabilised_decay
from torch_impl._triton.shared import both, log_sigmoid, maximum, put


@triton.jit
def step(
    q, q_strides, k, k_strides, v, v_strides, i, i_strides, f, f_strides, C, C_strides, n, n_strides, m, m_strides,
    h, C_out, n_out, m_out, N, K, V, scale, eps,
    BK: tl.constexpr, BV: tl.constexpr, NK: tl.constexpr, NV: tl.constexpr,
):  # fmt: skip
    """``C' = γC + w k vᵀ``, ``n' = γn + w k``, ``h = C'ᵀq̂ / (max(|n'·q̂|, exp(−min(m', 64))) + eps)``.

    Inputs are strided over ``(B, N, ·)``; results are contiguous.
    """
    y = tl.program_id(0) % NV
    head = tl.program_id(0) // NV % N
    sequence = tl.program_id(0) // NV // N
    b, s = sequence.to(tl.int64), head.to(tl.int64)
    state = b * N + s
    col = (y * BV + tl.arange(0, BV)).to(tl.int64)
    decay = log_sigmoid(tl.load(f + b * f_strides[0] + s * f_strides[1]).to(tl.float32))
    gate = tl.load(i + b * i_strides[0] + s * i_strides[1]).to(tl.float32)
    before = tl.load(m + b * m_strides[0] + s * m_strides[1])
    total = decay + before
    top = maximum(total, gate)
    top_finite = finite(top)
    alpha, iota = stabilised_decay(decay, before, total, top_finite), gate - top_finite
    largest = finite(tl.maximum(alpha, iota))
    excess = tl.where(tl.abs(top) < LARGEST_UNIT, 0.0, largest)
    kept, written = tl.exp(alpha - excess), tl.exp(iota - excess)
    values = tl.load(v + b * v_strides[0] + s * v_strides[1] + col * v_strides[2], mask=col < V, other=0.0)
    values = values.to(tl.float32) * written
    num = tl.zeros((BV,), tl.float32)
    nu = tl.zeros((BK,), tl.float32)
    for x in range(NK):
        row = (x * BK + tl.arange(0, BK)).to(tl.int64)
        queries = tl.load(q + b * q_strides[0] + s * q_strides[1] + row * q_strides[2], mask=row < K, other=0.0)
        queries = queries.to(tl.float32) * scale
        keys = tl.load(k + b * k_strides[0] + s * k_strides[1] + row * k_strides[2], mask=row < K, other=0.0)
        keys = keys.to(tl.float32)
        fits = (row < K)[:, None] & (col < V)[None, :]
        place = C + b * C_strides[0] + s * C_strides[1]
        memory = tl.load(place + (row * C_strides[2])[:, None] + (col * C_strides[3])[None, :], mask=fits, other=0.0)
        memory = memory * kept + keys[:, None] * values[None, :]
        tl.store(C_out + (state * K + row)[:, None] * V + col[None, :], memory, mask=fits)
        num += tl.sum(memory * queries[:, None], axis=0)
        vector = tl.load(n + b * n_strides[0] + s * n_strides[1] + row * n_strides[2], mask=row < K, other=0.0)
        vector = vector * kept + keys * written
        tl.store(n_out + state * K + row, vector, mask=both(row < K, y == 0))
        nu += vector * queries
    Y = maximum(tl.abs(tl.sum(nu, axis=0)), tl.exp(-tl.minimum(top, LARGEST_M))) + eps
    put(h + state * V + col, num / Y, col < V)
    tl.store(m_out + state, top, mask=y == 0)
