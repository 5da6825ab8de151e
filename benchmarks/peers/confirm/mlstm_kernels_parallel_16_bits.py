"""mlstm_kernels (PyTorch): the native parallel functions form weights, sums and decays in the 16 bits of their inputs.

    pip install mlstm-kernels torch && python mlstm_kernels_parallel_16_bits.py

The same 16-bit numbers are given to each function in their own dtype, and in float32, whose result is rounded once at
the end. Both are compared with the function in float64, in units of one rounding of the largest result.
"""

import sys

import torch
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
    kernel = get_mlstm_kernel(name)
    for dtype in (torch.bfloat16, torch.float16):
        narrow = [x.to(dtype) for x in arrays]
        exact = kernel(*(x.double() for x in narrow), eps=0.0)
        unit = torch.finfo(dtype).eps / 2 * exact.abs().max()
        own = (kernel(*narrow, eps=0.0).double() - exact).abs().max() / unit
        once = (kernel(*(x.float() for x in narrow), eps=0.0).to(dtype).double() - exact).abs().max() / unit
        print(f"{name:34} {dtype!s:15}: off by {own:6.1f} roundings; in float32 and rounded once: {once:.1f}")
        wrong |= bool(own > 4 * once)
print("Verdict:", "confirmed." if wrong else "not seen with this version.")
sys.exit(wrong)
