"""flashrnn: its vanilla GRU, in 16 bits, rounds its gates and its state to 16 bits at each step.

    pip install flashrnn torch && python flashrnn_gru_16_bits.py

With recurrent weights and inputs of 0 and a bias of the update gate, h_T = σ(b)^T h_0. For a bias and an h_0 that are
16-bit numbers, the last state is compared, in double precision, with that product; the same function in float32 is
given the same numbers.
"""

import logging
import math

import torch
from _shared import verdict

# Without CUDA, flashrnn's import warns.
logging.disable(logging.WARNING)
from flashrnn import flashrnn  # noqa: E402

T, bias = 512, 6.0
exact = (1 + math.exp(-bias)) ** -T
wrong = False
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    # Inputs of three gates (reset, update, candidate); weights and biases of four (candidate, reset, update and input).
    x, R, b = torch.zeros(1, T, 3, 1, 1), torch.zeros(3, 1, 1, 1), torch.zeros(4, 1, 1)
    x[:, :, 1] = bias
    states = torch.ones(1, 1, 1, 1, 1)
    arrays = [each.to(dtype) for each in (x, R, b, states)]
    name = str(dtype).removeprefix("torch.")
    _, last = flashrnn(*arrays, function="gru", backend="vanilla", dtype=name)
    found = last.flatten()[0].item()
    error, rounding = abs(found / exact - 1), torch.finfo(dtype).eps
    said = f"off by {error:.1e}, a rounding is {rounding:.1e}"
    print(f"{last.dtype!s:15}: h_T = {found:.6f}, exact {exact:.6f}: {said}")
    wrong |= dtype != torch.float32 and error > 8 * rounding
verdict(wrong)
