"""mlstm_kernels (Triton): the chunkwise functions return no gradient for n and m, and m counts as a constant.

    pip install mlstm-kernels torch triton && python mlstm_kernels_triton_states.py

On a GPU if there is one, else under Triton's interpreter (numpy < 2.4 there). The functions take an initial state
(C, n, m) and return a final one. For each output and some inputs, the derivative along a random direction is compared
with the difference quotient of the function's own forward pass, in float32, so that 5 % passes.
"""

from functools import partial

import torch
from _device import device
from _shared import along, quotient, verdict
from mlstm_kernels.torch import get_mlstm_kernel

torch.manual_seed(2)
B, N, S, K = 1, 2, 16, 16
INPUTS = ("q", "k", "v", "i", "f", "C", "n", "m")
shapes = [(B, N, S, K)] * 3 + [(B, N, S)] * 2 + [(B, N, K, K), (B, N, K), (B, N, 1)]
arrays = [torch.randn(shape, device=device) for shape in shapes]
arrays[4] += 3
weights = dict(zip("hCnm", (torch.randn(shapes[at], device=device) for at in (2, 5, 6, 7)), strict=True))
wrong = False
for name in ("chunkwise--triton_xl_chunk", "chunkwise--triton_limit_chunk"):
    kernel = get_mlstm_kernel(name)

    def weighted(output, q, k, v, i, f, C, n, m, kernel=kernel):
        state = {"c_initial": C, "n_initial": n, "m_initial": m}
        h, last = kernel(q, k, v, i, f, eps=0.0, chunk_size=16, return_last_states=True, **state)
        return (dict(zip("hCnm", (h, *last), strict=True))[output] * weights[output]).sum()

    print(f"{name}\n{'':14}{'difference':>12}{'its backward':>14}")
    for output, inputs in (("h", "nm"), ("C", "C"), ("n", "kn"), ("m", "im")):
        for letter in inputs:
            at = INPUTS.index(letter)
            direction = torch.randn_like(arrays[at])
            total = partial(weighted, output)
            exact, own = quotient(total, arrays, at, direction, 1e-2), along(total, arrays, at, direction)
            print(f"  d{output} by {letter:6}{exact:12.4f}{own:14.4f}")
            wrong |= abs(own - exact) > 0.05 * max(abs(exact), 0.1)
verdict(wrong)
