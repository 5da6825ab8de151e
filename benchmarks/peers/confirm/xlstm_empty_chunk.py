"""xlstm: a chunk in which all input gates are −∞ gives NaN in the final state of `chunkwise_simple`.

    pip install xlstm torch && python xlstm_empty_chunk.py

Such a chunk writes nothing, and leaves exp(Σ log σ(f)) of the memory C·exp(m) that it was given. That is compared, in
float64, with what the function returns, for input gates of −30, −10³, −10⁸ and −∞.
"""

import torch
from _shared import verdict
from xlstm.blocks.mlstm.backends import chunkwise_simple

torch.manual_seed(0)
S, K = 4, 4
q, k, v = (torch.randn(1, 1, S, K, dtype=torch.float64) for _ in "qkv")
f, C, n = torch.zeros(1, 1, S).double(), torch.randn(1, 1, K, K).double(), torch.randn(1, 1, K).double()
exact = C * 0.5**S
wrong = False
for gate in (-30.0, -1e3, -1e8, -torch.inf):
    i, m = torch.full((1, 1, S), gate, dtype=torch.float64), torch.zeros(1, 1).double()
    state = {"initial_C": C, "initial_n": n, "initial_m": m}
    _, (last, _, m_last) = chunkwise_simple(q, k, v, i, f, **state, chunk_size=S, return_last_state=True, eps=0.0)
    error = (last * m_last.reshape(1, 1, 1, 1).exp() - exact).abs().max().item()
    print(f"i = {gate:8.0e}: largest |C·exp(m) - exact| {error:.1e}")
    wrong |= not error < 1e-10
verdict(wrong)
