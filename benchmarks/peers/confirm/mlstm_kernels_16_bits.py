"""mlstm_kernels (PyTorch): the recurrent step rounds log σ(f) to 16 bits, though it carries its state in float32.

    pip install mlstm-kernels torch && python mlstm_kernels_16_bits.py

`dtype_state=torch.float32` is the step's default, and (C, n, m) come back in float32; log σ(f) and exp are computed in
the dtype of the gates. For a constant gate the stabiliser after S steps is S·log σ(f), and the memory decays by σ(f)^S;
both are compared, in double precision, with what the step returns for bfloat16, float16 and float32 gates of the same
values. A gate of 5 is a 16-bit number, so nothing is lost on the way in.
"""

import torch
from _shared import decayed, verdict
from mlstm_kernels.torch import get_mlstm_step_kernel

step = get_mlstm_step_kernel("native")
S, gate = 256, 5.0
exact = decayed(S, gate)
wrong = False
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    C, n, m = torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1), torch.zeros(1, 1, 1)
    ones, f = torch.ones(1, 1, 1, dtype=dtype), torch.full((1, 1, 1), gate, dtype=dtype)
    for _ in range(S):
        # An input gate that writes nothing.
        h, (C, n, m) = step(ones, ones, ones, torch.full_like(f, -torch.inf), f, C, n, m)
    error = abs(m.item() / exact - 1)
    print(f"{dtype!s:15} gates: m = {m.item():.7f} in {m.dtype}, exact {exact:.7f}: off by {error:.1e} of its size")
    wrong |= dtype != torch.float32 and error > 1e-4
verdict(wrong)
