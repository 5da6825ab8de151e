"""mlstm_kernels (Triton): in float16, h or its gradient is wrong where the denominator of h is small.

    pip install mlstm-kernels torch triton && python mlstm_kernels_triton_float16.py

On a GPU if there is one, else under Triton's interpreter (numpy < 2.4 there). With small queries the denominator is its
floor exp(−m), and m is the input gate; h is a weighted mean of v with small weights, but its numerator and the
derivative by it leave the range of float16. The same 16-bit numbers in float32 are shown for comparison.
"""

import torch
from _device import device
from _shared import TRITON, chunks, verdict
from mlstm_kernels.torch import get_mlstm_kernel

torch.manual_seed(0)
S = K = 64
arrays = [torch.randn(1, 1, S, K, device=device) for _ in "qkv"]
dh = torch.randn(1, 1, S, K, device=device)
wrong = False
for name in TRITON:
    kernel, options = get_mlstm_kernel(name), chunks(name, 64)
    for write in (0.0, 4.0, 8.0, 12.0):
        found = []
        for dtype in (torch.float32, torch.float16):
            q, k, v = (x.half() for x in arrays)
            # So small that |n·q̂| stays below exp(−m).
            q = (q.float() * 1e-2 * torch.exp(torch.tensor(-write))).half()
            gates = torch.full((1, 1, S), write, device=device), torch.full((1, 1, S), -3.0, device=device)
            leaves = [x.to(dtype, copy=True).requires_grad_() for x in (q, k, v, *gates)]
            h = kernel(*leaves, eps=0.0, autocast_kernel_dtype=dtype, **options)
            (h * dh.to(dtype)).sum().backward()
            found.append((h.detach().float(), leaves[2].grad))
        (h, dv), (narrow, narrow_dv) = found
        off, count = ((h - narrow).abs().max() / h.abs().max()).item(), int(narrow_dv.isnan().sum())
        print(f"{name:32} i = {write:4}: in float16 h is off by {off:.1e} of its size; NaN in {count:4} of {S * K} dv")
        wrong |= (count > 0 or off > 0.1) and bool(dv.isfinite().all())
verdict(wrong)
