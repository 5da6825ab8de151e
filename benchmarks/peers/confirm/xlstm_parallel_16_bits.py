"""xlstm: in 16 bits `parallel_stabilized_simple` forms weights, sums and decays in the 16 bits of its inputs.

    pip install xlstm torch && python xlstm_parallel_16_bits.py

The same 16-bit numbers are given to it in their own dtype, and in float32, whose result is rounded once at the end.
Both are compared with its result in float64, in units of one rounding of the largest result.
"""

import sys

import torch
from xlstm.blocks.mlstm.backends import parallel_stabilized_simple

torch.manual_seed(0)
B, N, S, K = 1, 2, 64, 8
arrays = [torch.randn(B, N, S, K) for _ in "qkv"] + [torch.randn(B, N, S, 1), 3 + torch.randn(B, N, S, 1)]
wrong = False
for dtype in (torch.bfloat16, torch.float16):
    narrow = [x.to(dtype) for x in arrays]
    exact = parallel_stabilized_simple(*(x.double() for x in narrow), eps=0.0)
    unit = torch.finfo(dtype).eps / 2 * exact.abs().max()
    own = (parallel_stabilized_simple(*narrow, eps=0.0).double() - exact).abs().max() / unit
    wide = parallel_stabilized_simple(*(x.float() for x in narrow), eps=0.0)
    once = (wide.to(dtype).double() - exact).abs().max() / unit
    print(f"{dtype!s:15}: off by {own:6.1f} roundings; in float32 and rounded once: {once:.1f}")
    wrong |= bool(own > 4 * once)
print("Verdict:", "confirmed." if wrong else "not seen with this version.")
sys.exit(wrong)
