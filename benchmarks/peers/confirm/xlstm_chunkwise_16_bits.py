"""xlstm: in 16 bits `chunkwise_simple` rounds its stabiliser and its state to 16 bits.

    pip install xlstm torch && python xlstm_chunkwise_16_bits.py

For gates that are 16-bit numbers the stabiliser of a memory that only decays is m_T = Σ log σ(f_t), which is compared
in double precision with the m that comes back for bfloat16, float16 and float32 inputs.
"""

import torch
from _shared import decayed, verdict
from xlstm.blocks.mlstm.backends import chunkwise_simple

S, gate = 256, 5.0
exact = decayed(S, gate)
wrong = False
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    ones, f = torch.ones(1, 1, S, 1, dtype=dtype), torch.full((1, 1, S), gate, dtype=dtype)
    # An input gate that writes next to nothing, so that m is what is left of the initial m = 0.
    options = {"chunk_size": 32, "return_last_state": True, "eps": 0.0}
    _, (C, n, m) = chunkwise_simple(ones, ones, ones, torch.full_like(f, -100.0), f, **options)
    error = abs(m.item() / exact - 1)
    print(f"{dtype!s:15}: C in {C.dtype}, m in {m.dtype}, m off by {error:.1e}")
    wrong |= dtype != torch.float32 and error > 1e-4
verdict(wrong)
