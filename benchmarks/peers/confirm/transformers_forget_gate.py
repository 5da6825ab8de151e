"""transformers (xLSTM in chunks): after a very negative forget gate, later steps lose precision, and −∞ gives NaN.

    pip install transformers torch && python transformers_forget_gate.py

Log decays are differences of one running sum of log σ(f). A large |log σ(f_3)| in that sum takes away the digits of
all gates after it, and −∞ leaves −∞ − (−∞), which is NaN. The model's recurrent form has no such difference: what it
returns after step 3 does not depend on f_3 at all once σ(f_3) is 0. Both are compared here, in float64.
"""

import torch
import transformers.utils
from _shared import verdict

# These functions are defined where `xlstm` is not installed.
transformers.utils.is_xlstm_available = lambda: False
from transformers.models.xlstm.modeling_xlstm import (  # noqa: E402
    mlstm_chunkwise_native_autograd,
    mlstm_recurrent_sequence_native,
)

torch.manual_seed(0)
S, K = 8, 4
q, k, v = (torch.randn(1, 1, S, K, dtype=torch.float64) for _ in "qkv")
i, f = torch.randn(1, 1, S, dtype=torch.float64), 1 + torch.randn(1, 1, S, dtype=torch.float64)
wrong = False
for gate in (-1e2, -1e8, -1e14, -1e30, -torch.inf):
    f[..., 3] = gate
    recurrent = mlstm_recurrent_sequence_native(q, k, v, i, f, eps=0.0, dtype_state=torch.float64)
    chunkwise = mlstm_chunkwise_native_autograd(q, k, v, i, f, eps=0.0, chunk_size=S)
    error = (chunkwise - recurrent).abs().max().item()
    print(f"f_3 = {gate:6.0e}: largest |chunkwise - recurrent| {error:.1e}")
    wrong |= not error < 1e-6
verdict(wrong)
