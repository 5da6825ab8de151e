"""xlstm: torch.vmap over `chunkwise_simple` raises.

    pip install xlstm torch && python xlstm_vmap.py

It is called on one sequence after the other, and mapped by `torch.vmap` over a new first axis of all its arguments.
"""

import sys

import torch
from xlstm.blocks.mlstm.backends import chunkwise_simple

A, B, N, S, K = 3, 1, 2, 8, 4
arrays = [torch.randn(A, B, N, S, K) for _ in "qkv"] + [torch.randn(A, B, N, S) for _ in "if"]


def function(*arrays):
    return chunkwise_simple(*arrays, eps=0.0, chunk_size=4)


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
