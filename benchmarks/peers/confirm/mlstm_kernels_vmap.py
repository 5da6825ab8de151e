"""mlstm_kernels (PyTorch): torch.vmap over a function of sequences raises.

    pip install mlstm-kernels torch && python mlstm_kernels_vmap.py

Each function is called on one sequence, and then mapped by `torch.vmap` over a new first axis of all its arguments.
"""

import torch
from _shared import NATIVE, chunks, verdict, vmap_raises
from mlstm_kernels.torch import get_mlstm_kernel

A, B, N, S, K = 3, 1, 2, 8, 4
arrays = [torch.randn(A, B, N, S, K) for _ in "qkv"] + [torch.randn(A, B, N, S) for _ in "if"]
wrong = False
for name in NATIVE:
    kernel, options = get_mlstm_kernel(name), chunks(name, 4)

    def function(*arrays, kernel=kernel, options=options):
        return kernel(*arrays, eps=0.0, **options)

    wrong |= vmap_raises(function, arrays, f"{name:36} ")
verdict(wrong)
