"""mlstm_kernels (Triton): where forget and input gate are both −∞, the step returns NaN.

    pip install mlstm-kernels torch triton && python mlstm_kernels_triton_step_empty.py

On a GPU if there is one, else under Triton's interpreter (numpy < 2.4 there). With f = −∞ the memory before the step is
forgotten, and with i = −∞ nothing is written: C, n and h are 0. For finite input gates h is what the definition in
NumPy gives, and tends to 0 with them. With both gates at −∞ so is the stabiliser, and −∞ − (−∞) is NaN.
"""

import numpy as np
import torch
from _device import device
from _shared import verdict
from mlstm_kernels.torch import get_mlstm_step_kernel

step, K = get_mlstm_step_kernel("triton"), 16
torch.manual_seed(0)
q, k, v = (torch.randn(1, 1, K, device=device) for _ in "qkv")
C, n, m = (
    torch.randn(1, 1, K, K, device=device),
    torch.randn(1, 1, K, device=device),
    torch.zeros(1, 1, 1, device=device),
)
f = torch.full_like(m, -torch.inf)


def definition(i):
    """h after a reset: exp(i)(q̂·k)v / max(exp(i)|q̂·k|, 1)."""
    score = float((q * k).double().sum()) / np.sqrt(K)
    return np.exp(i) * score * v[0, 0].double().cpu().numpy() / max(np.exp(i) * abs(score), 1)


wrong = False
for gate in (0.0, -10.0, -50.0, -80.0, -np.inf):
    h, (C_new, n_new, m_new) = step(q, k, v, torch.full_like(m, gate), f, C, n, m, eps=0.0)
    found, exact = h[0, 0].double().cpu().numpy(), definition(gate)
    nans = sum(int(x.isnan().sum()) for x in (C_new, n_new))
    error = np.abs(found - exact).max()
    print(f"f = -inf, i = {gate:6}: h_1 = {found[0]:.3e}, exact {exact[0]:.3e}; NaN in {nans} elements of C and n")
    wrong |= not error < 1e-5
verdict(wrong)
