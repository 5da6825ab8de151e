"""transformers (xLSTM without `xlstm`): torch.vmap over the chunkwise form raises.

    pip install transformers torch && python transformers_vmap.py

It is called on one sequence after the other, and mapped by `torch.vmap` over a new first axis of all its arguments.
"""

import sys

import torch
import transformers.utils

# These functions are defined where `xlstm` is not installed.
transformers.utils.is_xlstm_available = lambda: False
from transformers.models.xlstm.modeling_xlstm import mlstm_chunkwise_native_autograd  # noqa: E402

A, B, N, S, K = 3, 1, 2, 8, 4
arrays = [torch.randn(A, B, N, S, K) for _ in "qkv"] + [torch.randn(A, B, N, S) for _ in "if"]


def function(*arrays):
    return mlstm_chunkwise_native_autograd(*arrays, eps=0.0, chunk_size=4)


one_by_one = torch.stack([function(*(x[a] for x in arrays)) for a in range(A)])
try:
    error = (torch.vmap(function)(*arrays) - one_by_one).abs().max().item()
    print(f"mapped: differs by {error:.1e} from one call after the other")
    wrong = not error < 1e-4
except RuntimeError as raised:
    print(f"mapped: RuntimeError: {str(raised).splitlines()[0][:160]}")
    wrong = True
print("Verdict:", "confirmed." if wrong else "not seen with this version.")
sys.exit(wrong)
