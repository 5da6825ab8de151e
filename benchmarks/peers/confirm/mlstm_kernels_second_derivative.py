"""mlstm_kernels (PyTorch): through the custom backward passes, second derivatives are not those of the gradient.

    pip install mlstm-kernels torch && python mlstm_kernels_second_derivative.py

⟨gradient, u⟩ is differentiated again along a random direction of one argument, as `create_graph=True` allows, and
compared with the difference quotient of the function's own ⟨gradient, u⟩, in float64. The function under autograd is
shown for comparison.
"""

import sys

import torch
from mlstm_kernels.torch import get_mlstm_kernel

torch.manual_seed(0)
S, K, width = 8, 4, 1e-5
arrays = [torch.randn(1, 1, S, K, dtype=torch.float64) for _ in "qkv"]
arrays += [torch.randn(1, 1, S, dtype=torch.float64), 3 + torch.randn(1, 1, S, dtype=torch.float64)]
dh, along = torch.randn_like(arrays[2]), [torch.randn_like(x) for x in arrays]


def first(kernel, options, arrays, graph=False):
    """The arguments, and ⟨gradient, u⟩."""
    leaves = [x.clone().requires_grad_() for x in arrays]
    h = kernel(*leaves, eps=0.0, **options)
    gradient = torch.autograd.grad((h * dh).sum(), leaves, create_graph=graph)
    return leaves, sum((x * u).sum() for x, u in zip(gradient, along, strict=True))


wrong = False
print(f"{'':36}{'':4}{'differentiated':>16}{'quotient':>12}")
for name in (
    "chunkwise--native_autograd",
    "chunkwise--native_custbw",
    "parallel--native_custbw",
    "parallel--native_stablef_custbw",
):
    kernel, options = get_mlstm_kernel(name), {"chunk_size": 4} if "chunkwise" in name else {}
    for at in (0, 1):
        direction = torch.randn_like(arrays[at])
        leaves, of_gradient = first(kernel, options, arrays, graph=True)
        second = (torch.autograd.grad(of_gradient, leaves, allow_unused=True)[at] * direction).sum().item()
        ends = []
        for step in (width, -width):
            moved = [x + step * direction if j == at else x for j, x in enumerate(arrays)]
            ends.append(first(kernel, options, moved)[1].item())
        quotient = (ends[0] - ends[1]) / (2 * width)
        print(f"{name:36}by {'qk'[at]}{second:16.4f}{quotient:12.4f}")
        wrong |= abs(second - quotient) > 1e-4 * max(abs(quotient), 1)
print("Verdict:", "confirmed." if wrong else "not seen with this version.")
sys.exit(wrong)
