"""mlstm_kernels (Triton): the backward pass of `parallel--triton_limit_headdim` takes eps = 1e-6, whatever is given.

    pip install mlstm-kernels torch triton && python mlstm_kernels_triton_eps.py

On a GPU if there is one, else under Triton's interpreter (numpy < 2.4 there). h is linear in v, so that the derivative
of Σ h·dh along a random direction of v is the sum itself at that direction, to roundoff. Other functions are shown for
comparison.
"""

import torch
from _device import device
from _shared import TRITON, chunks, verdict
from mlstm_kernels.torch import get_mlstm_kernel

torch.manual_seed(0)
S = K = 64
q, k, v, direction, dh = (torch.randn(1, 1, S, K, device=device) for _ in range(5))
i, f = torch.randn(1, 1, S, device=device), 3 + torch.randn(1, 1, S, device=device)
wrong = False
for name in TRITON:
    kernel, options = get_mlstm_kernel(name), chunks(name, 64)
    for eps in (0.0, 1e-2, 1.0):
        exact = (kernel(q, k, direction, i, f, eps=eps, **options) * dh).sum().item()
        leaf = v.clone().requires_grad_()
        (kernel(q, k, leaf, i, f, eps=eps, **options) * dh).sum().backward()
        own = (leaf.grad * direction).sum().item()
        print(f"{name:32} eps = {eps:4}: derivative {exact:10.4f}, its backward {own:10.4f}")
        wrong |= abs(own - exact) > 1e-2 * max(abs(exact), 1)
verdict(wrong)
