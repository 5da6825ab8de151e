"""mlstm_kernels (Triton): in 16 bits the step rounds the decay of its float32 state to 16 bits.

    pip install mlstm-kernels torch triton && python mlstm_kernels_triton_step_16_bits.py

On a GPU if there is one, else under Triton's interpreter (numpy < 2.4 there), which has no bfloat16 constants: float16
alone there. With a constant forget gate, an input gate of 0 and keys of 0, a memory of 1 is σ(f)^S after S steps. It is
compared, in double precision, with the C that comes back, which is in float32. A gate of 5 is a 16-bit number, so
nothing is lost on the way in.
"""

import math

import torch
from _device import device
from _shared import verdict
from mlstm_kernels.torch import get_mlstm_step_kernel

step, K, S, gate = get_mlstm_step_kernel("triton"), 16, 64, 5.0
exact = (1 + math.exp(-gate)) ** -S
wrong = False
for dtype in (torch.float32, torch.float16, *([torch.bfloat16] if device == "cuda" else [])):
    C, n, m = (torch.ones(1, 1, *shape, device=device) for shape in ((K, K), (K,), (1,)))
    m, zeros = 0 * m, torch.zeros(1, 1, K, dtype=dtype, device=device)
    i, f = (torch.full((1, 1, 1), x, dtype=dtype, device=device) for x in (0.0, gate))
    for _ in range(S):
        _, (C, n, m) = step(zeros, zeros, zeros, i, f, C, n, m, eps=0.0)
    error = abs(C[0, 0, 0, 0].item() / exact - 1)
    print(
        f"{dtype!s:15} inputs: C = {C[0, 0, 0, 0].item():.6f} in {C.dtype}, exact {exact:.6f}: off by {error:.0e} of it"
    )
    wrong |= dtype != torch.float32 and error > 1e-4
verdict(wrong)
