"""mlstm_kernels (PyTorch): the custom backward passes treat the normaliser as a constant.

    pip install mlstm-kernels torch && python mlstm_kernels_normaliser.py

h_t = (Σ_j w_tj v_j) / max(|Σ_j w_tj|, exp(−m_t)), and both sums depend on q, k, i and f. Three derivatives of L = Σ
h·dh along a random direction of one argument are compared, in float64: the difference quotient of the function's own
forward pass, what its backward pass returns, and autograd of the same equations with the denominator detached. The
second equals the third, not the first, wherever |Σ_j w_tj| is above exp(−m_t).
"""

import sys

import torch
from mlstm_kernels.torch import get_mlstm_kernel

NAMES = ("chunkwise--native_custbw", "parallel--native_custbw", "parallel--native_stablef_custbw")


def detached(q, k, v, i, f):
    """The parallel form, with nothing differentiated through its denominator."""
    S, a = q.shape[2], torch.nn.functional.logsigmoid(f)
    sums = a[..., :, None].expand(*a.shape, S).tril(-1).cumsum(-2)
    D = (sums + i[..., None, :]).masked_fill(~torch.ones(S, S, dtype=torch.bool).tril(), -torch.inf)
    m = D.amax(-1, keepdim=True).detach()
    w = (D - m).exp() * (q @ k.mT) * q.shape[-1] ** -0.5
    return w @ v / torch.maximum(w.sum(-1, keepdim=True).abs(), (-m).exp()).detach()


def along(function, arrays, dh, argument, direction):
    """⟨gradient of Σ h·dh, direction⟩ by autograd."""
    leaves = [x.clone().requires_grad_() for x in arrays]
    (function(*leaves) * dh).sum().backward()
    return (leaves[argument].grad * direction).sum().item()


torch.manual_seed(0)
B, N, S, K = 1, 2, 16, 8
arrays = [2 * torch.randn(B, N, S, K, dtype=torch.float64) for _ in "qkv"]
arrays += [torch.randn(B, N, S, dtype=torch.float64), 3 + torch.randn(B, N, S, dtype=torch.float64)]
dh = torch.randn(B, N, S, K, dtype=torch.float64)
wrong = False
for name in NAMES:
    kernel, options = get_mlstm_kernel(name), {"chunk_size": 8} if "chunkwise" in name else {}

    def function(*arrays, kernel=kernel, options=options):
        return kernel(*arrays, eps=0.0, **options)

    print(f"{name}\n  {'':10}{'difference':>14}{'its backward':>14}{'detached':>14}")
    for argument, letter in enumerate("qkvif"):
        direction = torch.randn_like(arrays[argument])
        ends = []
        for step in (1e-6, -1e-6):
            moved = [x + step * direction if at == argument else x for at, x in enumerate(arrays)]
            ends.append((function(*moved) * dh).sum().item())
        quotient = (ends[0] - ends[1]) / 2e-6
        own = along(function, arrays, dh, argument, direction)
        print(f"  d{letter:9}{quotient:14.6f}{own:14.6f}{along(detached, arrays, dh, argument, direction):14.6f}")
        wrong |= abs(own - quotient) > 1e-4 * abs(quotient)
print("Verdict:", "confirmed." if wrong else "not seen with this version.")
sys.exit(wrong)
