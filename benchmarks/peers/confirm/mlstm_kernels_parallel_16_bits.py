"""mlstm_kernels (PyTorch): the native parallel functions form weights, sums and decays in the 16 bits of their inputs.

    pip install mlstm-kernels torch && python mlstm_kernels_parallel_16_bits.py

The same 16-bit numbers are given to each function in their own dtype, and in float32, whose result is rounded once at
the end. Both are compared with the function in float64, in units of one rounding of the largest result.
"""

import torch
from _shared import rounded_sums, verdict
from mlstm_kernels.torch import get_mlstm_kernel

NAMES = (
    "parallel--native_autograd",
    "parallel--native_custbw",
    "parallel--native_stablef_autograd",
    "parallel--native_stablef_custbw",
)
torch.manual_seed(0)
B, N, S, K = 1, 2, 64, 8
arrays = [torch.randn(B, N, S, K) for _ in "qkv"] + [torch.randn(B, N, S), 3 + torch.randn(B, N, S)]
wrong = False
for name in NAMES:
    wrong |= rounded_sums(get_mlstm_kernel(name), arrays, f"{name:34} ")
verdict(wrong)
