"""torch.nn.GRU on a CPU: in 16 bits its gates and its state are rounded to 16 bits at each step.

    pip install torch && python torch_gru_16_bits.py

With all weights 0 and a bias of the update gate, h_T = σ(b)^T h_0. For a bias and an h_0 that are 16-bit numbers, the
last state is compared, in double precision, with that product; the same layer in float32 is given the same numbers.
"""

import math

import torch
from _shared import verdict

T, bias = 512, 6.0
exact = (1 + math.exp(-bias)) ** -T
wrong = False
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    layer = torch.nn.GRU(1, 1, dtype=dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.bias_ih_l0[1] = bias
        y, last = layer(torch.zeros(T, 1, 1, dtype=dtype), torch.ones(1, 1, 1, dtype=dtype))
    error = abs(last.item() / exact - 1)
    # One rounding of the result to its dtype.
    allowed = torch.finfo(dtype).eps
    print(f"{dtype!s:15}: h_T = {last.item():.6f}, exact {exact:.6f}: off by {error:.1e}, a rounding is {allowed:.1e}")
    wrong |= dtype != torch.float32 and error > 8 * allowed
verdict(wrong)
