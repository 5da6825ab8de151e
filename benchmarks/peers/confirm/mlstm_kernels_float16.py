"""mlstm_kernels (PyTorch), chunkwise and parallel: in float16, h or its gradient is NaN where its denominator is small.

    pip install mlstm-kernels torch && python mlstm_kernels_float16.py

With small queries the denominator is its floor exp(−m), and m is the input gate; h is a weighted mean of v with small
weights. The functions divide by it in the dtype of the inputs, in which exp(−12) has few digits, its reciprocal
overflows, and exp(−20) is 0. The same numbers in float32 are shown for comparison.
"""

import torch
from _shared import NATIVE, chunks, verdict
from mlstm_kernels.torch import get_mlstm_kernel

torch.manual_seed(0)
S = K = 16
arrays = [torch.randn(1, 1, S, K) for _ in "qkv"]
dh = torch.randn(1, 1, S, K)
wrong = False
for name in NATIVE:
    kernel, options = get_mlstm_kernel(name), chunks(name, S)
    for write in (0.0, 5.0, 12.0, 20.0):
        found = []
        for dtype in (torch.float32, torch.float16):
            own = {"autocast_kernel_dtype": dtype} if "custbw" in name else {}
            q, k, v = (x.to(dtype) for x in arrays)
            # So small that |n·q̂| stays below exp(−m).
            q = (q.float() * 1e-2 * torch.exp(torch.tensor(-write))).to(dtype)
            gates = torch.full((1, 1, S), write), torch.full((1, 1, S), -3.0)
            leaves = [x.clone().to(dtype).requires_grad_() for x in (q, k, v, *gates)]
            h = kernel(*leaves, eps=0.0, **options, **own)
            (h * dh.to(dtype)).sum().backward()
            found.append([int((~x.isfinite()).sum()) for x in (h, leaves[0].grad)])
        (h32, dq32), (h16, dq16) = found
        said = f"not finite in float32: {h32} of h, {dq32} of dq; in float16: {h16:3} of h, {dq16:3} of dq ({S * K})"
        print(f"{name:34} i = {write:4}: {said}")
        wrong |= h16 + dq16 > 0 and h32 + dq32 == 0
verdict(wrong)
