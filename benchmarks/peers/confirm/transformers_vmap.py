"""transformers (xLSTM without `xlstm`): torch.vmap over the chunkwise form raises.

    pip install transformers torch && python transformers_vmap.py

It is called on one sequence after the other, and mapped by `torch.vmap` over a new first axis of all its arguments.
"""

import torch
import transformers.utils
from _shared import verdict, vmap_raises

# These functions are defined where `xlstm` is not installed.
transformers.utils.is_xlstm_available = lambda: False
from transformers.models.xlstm.modeling_xlstm import mlstm_chunkwise_native_autograd  # noqa: E402

A, B, N, S, K = 3, 1, 2, 8, 4
arrays = [torch.randn(A, B, N, S, K) for _ in "qkv"] + [torch.randn(A, B, N, S) for _ in "if"]


def function(*arrays):
    return mlstm_chunkwise_native_autograd(*arrays, eps=0.0, chunk_size=4)


verdict(vmap_raises(function, arrays))
