"""mlstm_kernels (Triton): in float16 the gradient is NaN where the denominator of h is small.

    pip install mlstm-kernels torch triton && python mlstm_kernels_triton_float16.py

On a GPU if there is one, else under Triton's interpreter (numpy < 2.4 there). With small queries the denominator is its
floor exp(−m), and m is the input gate. The largest derivative by v is below 1 throughout: h is a weighted mean of v
with small weights. The same numbers in float32 are shown for comparison.
"""

import os
import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime.autotuner import Autotuner

    # Nothing can be timed under the interpreter: the first configuration stands for all.
    Autotuner.run = lambda self, *args, **options: self.fn.run(*args, **{**options, **self.configs[0].all_kwargs()})

from mlstm_kernels.torch import get_mlstm_kernel  # noqa: E402

torch.manual_seed(0)
S = K = 64
arrays = [torch.randn(1, 1, S, K, device=device) for _ in "qkv"]
dh = torch.randn(1, 1, S, K, device=device)
wrong = False
for name in ("chunkwise--triton_xl_chunk", "chunkwise--triton_limit_chunk", "parallel--triton_limit_headdim"):
    kernel, options = get_mlstm_kernel(name), {"chunk_size": 64} if "chunkwise" in name else {}
    for write in (0.0, 5.0, 12.0, 20.0):
        found = []
        for dtype in (torch.float32, torch.float16):
            q, k, v = (x.to(dtype).clone() for x in arrays)
            # So small that |n·q̂| stays below exp(−m).
            q = (q * 1e-2 * torch.exp(torch.tensor(-write))).to(dtype)
            gates = torch.full((1, 1, S), write, device=device), torch.full((1, 1, S), -3.0, device=device)
            leaves = [x.to(dtype).requires_grad_() for x in (q, k, v, *gates)]
            h = kernel(*leaves, eps=0.0, autocast_kernel_dtype=dtype, **options)
            (h * dh.to(dtype)).sum().backward()
            found.append(leaves[2].grad)
        largest, count = found[0].abs().max().item(), int(found[1].isnan().sum())
        print(f"{name:32} i = {write:4}: largest dv {largest:.2e} in float32; NaN in {count:4} of {S * K} in float16")
        wrong |= count > 0 and bool(found[0].isfinite().all())
print("Verdict:", "confirmed." if wrong else "not seen with this version.")
sys.exit(wrong)
