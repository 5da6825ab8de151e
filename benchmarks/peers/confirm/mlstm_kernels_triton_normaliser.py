"""mlstm_kernels (Triton): the backward passes treat the normaliser as a constant.

    pip install mlstm-kernels torch triton && python mlstm_kernels_triton_normaliser.py

On a GPU if there is one, else under Triton's interpreter (numpy < 2.4 there). The derivative of Σ h·dh along a random
direction of each argument is compared with the difference quotient of the kernels' own forward pass, in float32, so
that 2 % passes; and with autograd of the same equations, in float64, with the denominator detached.
"""

import os
import sys

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime.autotuner import Autotuner

    # Nothing can be timed under the interpreter: the first configuration stands for all.
    Autotuner.run = lambda self, *args, **options: self.fn.run(*args, **{**options, **self.configs[0].all_kwargs()})

from mlstm_kernels.torch import get_mlstm_kernel  # noqa: E402


def detached(q, k, v, i, f):
    """The parallel form, with nothing differentiated through its denominator."""
    S, a = q.shape[2], torch.nn.functional.logsigmoid(f)
    sums = a[..., :, None].expand(*a.shape, S).tril(-1).cumsum(-2)
    D = (sums + i[..., None, :]).masked_fill(~torch.ones(S, S, dtype=torch.bool).tril(), -torch.inf)
    m = D.amax(-1, keepdim=True).detach()
    w = (D - m).exp() * (q @ k.mT) * q.shape[-1] ** -0.5
    return w @ v / torch.maximum(w.sum(-1, keepdim=True).abs(), (-m).exp()).detach()


torch.manual_seed(0)
S = K = 64
arrays = [torch.randn(1, 1, S, K, dtype=torch.float64) for _ in "qkv"]
# Keys near queries and input gates of 3: the denominator is large and positive, and moves with every argument.
arrays[1] = arrays[1] + arrays[0].mean(2, keepdim=True) + 1
arrays[0] = arrays[0] + 1
arrays += [3 + torch.randn(1, 1, S, dtype=torch.float64), 3 + torch.randn(1, 1, S, dtype=torch.float64)]
dh = torch.randn(1, 1, S, K, dtype=torch.float64)


def along(function, arrays, dh, at, direction):
    leaves = [x.clone().requires_grad_() for x in arrays]
    (function(*leaves) * dh).sum().backward()
    return (leaves[at].grad.double().cpu() * direction).sum().item()


wrong = False
for name in ("chunkwise--triton_xl_chunk", "chunkwise--triton_limit_chunk", "parallel--triton_limit_headdim"):
    kernel, options = get_mlstm_kernel(name), {"chunk_size": 64} if "chunkwise" in name else {}

    def function(*arrays, kernel=kernel, options=options):
        return kernel(*arrays, eps=0.0, **options)

    near = [x.float().to(device) for x in arrays]
    print(f"{name}\n  {'':6}{'difference':>14}{'its backward':>14}{'detached':>14}")
    for at, letter in enumerate("qkvif"):
        direction = torch.randn_like(arrays[at])
        ends = []
        for step in (1e-2, -1e-2):
            moved = [(x + step * direction).float() if j == at else x.float() for j, x in enumerate(arrays)]
            ends.append((function(*(x.to(device) for x in moved)).double().cpu() * dh).sum().item())
        quotient = (ends[0] - ends[1]) / 2e-2
        own = along(function, near, dh.float().to(device), at, direction)
        print(f"  d{letter:5}{quotient:14.4f}{own:14.4f}{along(detached, arrays, dh, at, direction):14.4f}")
        wrong |= abs(own - quotient) > 0.02 * max(abs(quotient), 1)
print("Verdict:", "confirmed." if wrong else "not seen with this version.")
sys.exit(wrong)
