"""mlstm_kernels (Triton): the backward passes treat the normaliser as a constant.

    pip install mlstm-kernels torch triton && python mlstm_kernels_triton_normaliser.py

On a GPU if there is one, else under Triton's interpreter (numpy < 2.4 there). The derivative of Σ h·dh along a random
direction of each argument is compared with the difference quotient of the kernels' own forward pass, in float32, so
that 2 % passes; and with autograd of the same equations, in float64, with the denominator detached.
"""

import torch
from _device import device
from _shared import TRITON, along, chunks, detached, quotient, verdict
from mlstm_kernels.torch import get_mlstm_kernel

torch.manual_seed(0)
S = K = 64
arrays = [torch.randn(1, 1, S, K, dtype=torch.float64) for _ in "qkv"]
# Keys near queries and input gates of 3: the denominator is large and positive, and moves with every argument.
arrays[1] = arrays[1] + arrays[0].mean(2, keepdim=True) + 1
arrays[0] = arrays[0] + 1
arrays += [3 + torch.randn(1, 1, S, dtype=torch.float64), 3 + torch.randn(1, 1, S, dtype=torch.float64)]
dh = torch.randn(1, 1, S, K, dtype=torch.float64)


def without_normaliser(*arrays):
    return (detached(*arrays) * dh).sum()


wrong = False
for name in TRITON:
    kernel, options = get_mlstm_kernel(name), chunks(name, 64)

    def total(*arrays, kernel=kernel, options=options):
        near = (x.float().to(device) for x in arrays)
        return (kernel(*near, eps=0.0, **options).double().cpu() * dh).sum()

    print(f"{name}\n  {'':6}{'difference':>14}{'its backward':>14}{'detached':>14}")
    for at, letter in enumerate("qkvif"):
        direction = torch.randn_like(arrays[at])
        exact = quotient(total, arrays, at, direction, 1e-2)
        own, constant = (along(each, arrays, at, direction) for each in (total, without_normaliser))
        print(f"  d{letter:5}{exact:14.4f}{own:14.4f}{constant:14.4f}")
        wrong |= abs(own - exact) > 0.02 * max(abs(exact), 1)
verdict(wrong)
