"""mlstm_kernels (PyTorch): the custom backward passes treat the normaliser as a constant.

    pip install mlstm-kernels torch && python mlstm_kernels_normaliser.py

h_t = (Σ_j w_tj v_j) / max(|Σ_j w_tj|, exp(−m_t)), and both sums depend on q, k, i and f. Three derivatives of L = Σ
h·dh along a random direction of one argument are compared, in float64: the difference quotient of the function's own
forward pass, what its backward pass returns, and autograd of the same equations with the denominator detached. The
second equals the third, not the first, wherever |Σ_j w_tj| is above exp(−m_t).
"""

import torch
from _shared import along, chunks, detached, quotient, verdict
from mlstm_kernels.torch import get_mlstm_kernel

NAMES = ("chunkwise--native_custbw", "parallel--native_custbw", "parallel--native_stablef_custbw")

torch.manual_seed(0)
B, N, S, K = 1, 2, 16, 8
arrays = [2 * torch.randn(B, N, S, K, dtype=torch.float64) for _ in "qkv"]
arrays += [torch.randn(B, N, S, dtype=torch.float64), 3 + torch.randn(B, N, S, dtype=torch.float64)]
dh = torch.randn(B, N, S, K, dtype=torch.float64)


def without_normaliser(*arrays):
    return (detached(*arrays) * dh).sum()


wrong = False
for name in NAMES:
    kernel, options = get_mlstm_kernel(name), chunks(name, 8)

    def total(*arrays, kernel=kernel, options=options):
        return (kernel(*arrays, eps=0.0, **options) * dh).sum()

    print(f"{name}\n  {'':10}{'difference':>14}{'its backward':>14}{'detached':>14}")
    for at, letter in enumerate("qkvif"):
        direction = torch.randn_like(arrays[at])
        exact = quotient(total, arrays, at, direction, 1e-6)
        own, constant = (along(each, arrays, at, direction) for each in (total, without_normaliser))
        print(f"  d{letter:9}{exact:14.6f}{own:14.6f}{constant:14.6f}")
        wrong |= abs(own - exact) > 1e-4 * abs(exact)
verdict(wrong)
