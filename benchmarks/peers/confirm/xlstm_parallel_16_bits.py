"""xlstm: in 16 bits `parallel_stabilized_simple` forms weights, sums and decays in the 16 bits of its inputs.

    pip install xlstm torch && python xlstm_parallel_16_bits.py

The same 16-bit numbers are given to it in their own dtype, and in float32, whose result is rounded once at the end.
Both are compared with its result in float64, in units of one rounding of the largest result.
"""

import torch
from _shared import rounded_sums, verdict
from xlstm.blocks.mlstm.backends import parallel_stabilized_simple

torch.manual_seed(0)
B, N, S, K = 1, 2, 64, 8
arrays = [torch.randn(B, N, S, K) for _ in "qkv"] + [torch.randn(B, N, S, 1), 3 + torch.randn(B, N, S, 1)]
verdict(rounded_sums(parallel_stabilized_simple, arrays))
