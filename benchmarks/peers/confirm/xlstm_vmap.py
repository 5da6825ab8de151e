"""xlstm: torch.vmap over `chunkwise_simple` raises.

    pip install xlstm torch && python xlstm_vmap.py

It is called on one sequence after the other, and mapped by `torch.vmap` over a new first axis of all its arguments.
"""

import torch
from _shared import verdict, vmap_raises
from xlstm.blocks.mlstm.backends import chunkwise_simple

A, B, N, S, K = 3, 1, 2, 8, 4
arrays = [torch.randn(A, B, N, S, K) for _ in "qkv"] + [torch.randn(A, B, N, S) for _ in "if"]


def function(*arrays):
    return chunkwise_simple(*arrays, eps=0.0, chunk_size=4)


verdict(vmap_raises(function, arrays))
