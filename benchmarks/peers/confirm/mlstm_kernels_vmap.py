"""mlstm_kernels (PyTorch): torch.vmap over a function of sequences raises.

    pip install mlstm-kernels torch && python mlstm_kernels_vmap.py

Each function is called on one sequence, and then mapped by `torch.vmap` over a new first axis of all its arguments.
"""

import sys

import torch
from mlstm_kernels.torch import get_mlstm_kernel

NAMES = (
    "chunkwise--native_autograd",
    "chunkwise--native_custbw",
    "parallel--native_autograd",
    "parallel--native_custbw",
    "parallel--native_stablef_autograd",
    "parallel--native_stablef_custbw",
)
A, B, N, S, K = 3, 1, 2, 8, 4
arrays = [torch.randn(A, B, N, S, K) for _ in "qkv"] + [torch.randn(A, B, N, S) for _ in "if"]
wrong = False
for name in NAMES:
    kernel, options = get_mlstm_kernel(name), {"chunk_size": 4} if "chunkwise" in name else {}

    def function(*arrays, kernel=kernel, options=options):
        return kernel(*arrays, eps=0.0, **options)

    one_by_one = torch.stack([function(*(x[a] for x in arrays)) for a in range(A)])
    try:
        error = (torch.vmap(function)(*arrays) - one_by_one).abs().max().item()
        print(f"{name:36} mapped: differs by {error:.1e} from one call after the other")
        wrong |= not error < 1e-4
    except RuntimeError as raised:
        print(f"{name:36} mapped: RuntimeError: {str(raised).splitlines()[0][:160]}")
        wrong = True
print("Verdict:", "confirmed." if wrong else "not seen with this version.")
sys.exit(wrong)
