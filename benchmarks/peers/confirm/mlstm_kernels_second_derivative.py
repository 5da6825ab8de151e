"""mlstm_kernels (PyTorch): through the custom backward passes, second derivatives are not those of the gradient.

    pip install mlstm-kernels torch && python mlstm_kernels_second_derivative.py

⟨gradient, u⟩ is differentiated again along a random direction of one argument, as `create_graph=True` allows, and
compared with the difference quotient of the function's own ⟨gradient, u⟩, in float64. The function under autograd is
shown for comparison.
"""

import torch
from _shared import chunks, quotient, verdict
from mlstm_kernels.torch import get_mlstm_kernel

torch.manual_seed(0)
S, K = 8, 4
arrays = [torch.randn(1, 1, S, K, dtype=torch.float64) for _ in "qkv"]
arrays += [torch.randn(1, 1, S, dtype=torch.float64), 3 + torch.randn(1, 1, S, dtype=torch.float64)]
dh, directions = torch.randn_like(arrays[2]), [torch.randn_like(x) for x in arrays]


def first(kernel, options, arrays, graph=False):
    """The arguments, and ⟨gradient, u⟩ for one u."""
    leaves = [x.clone().requires_grad_() for x in arrays]
    h = kernel(*leaves, eps=0.0, **options)
    gradient = torch.autograd.grad((h * dh).sum(), leaves, create_graph=graph)
    return leaves, sum((x * u).sum() for x, u in zip(gradient, directions, strict=True))


wrong = False
print(f"{'':36}{'':4}{'differentiated':>16}{'quotient':>12}")
for name in (
    "chunkwise--native_autograd",
    "chunkwise--native_custbw",
    "parallel--native_custbw",
    "parallel--native_stablef_custbw",
):
    kernel, options = get_mlstm_kernel(name), chunks(name, 4)

    def total(*arrays, kernel=kernel, options=options):
        return first(kernel, options, arrays)[1]

    for at in (0, 1):
        direction = torch.randn_like(arrays[at])
        leaves, of_gradient = first(kernel, options, arrays, graph=True)
        second = (torch.autograd.grad(of_gradient, leaves, allow_unused=True)[at] * direction).sum().item()
        exact = quotient(total, arrays, at, direction, 1e-5)
        print(f"{name:36}by {'qk'[at]}{second:16.4f}{exact:12.4f}")
        wrong |= abs(second - exact) > 1e-4 * max(abs(exact), 1)
verdict(wrong)
