"""mlstm_kernels (PyTorch): where a step forgets all and writes next to nothing, autograd's gradient is NaN.

    pip install mlstm-kernels torch && python mlstm_kernels_empty_step.py

With f_t = −∞ (or −10⁴) and i_t = −800 the stabiliser is m_t = i_t, and exp(−m_t), the floor of the normaliser, exceeds
what float64 holds. h_t is 0, and so is its derivative: the weight exp(−800) of the step is 0 in float64. Autograd of
the functions returns NaN for i_t. With f_t = i_t = −∞ h itself is NaN.
"""

import sys

import torch
from mlstm_kernels.torch import get_mlstm_kernel, get_mlstm_sequence_kernel

FUNCTIONS = {
    "recurrent: native_sequence__native": (
        get_mlstm_sequence_kernel("native_sequence__native"),
        {"dtype_state": torch.float64},
    ),
    "parallel--native_stablef_autograd": (get_mlstm_kernel("parallel--native_stablef_autograd"), {}),
}
ones = torch.ones(1, 1, 3, 1, dtype=torch.float64)
wrong = False
for name, (kernel, options) in FUNCTIONS.items():
    for forget in (-1e4, -torch.inf):
        for write in (-30.0, -300.0, -800.0, -torch.inf):
            i = torch.tensor([[[0.0, 0.0, write]]], dtype=torch.float64, requires_grad=True)
            f = torch.tensor([[[0.0, 0.0, forget]]], dtype=torch.float64, requires_grad=True)
            h = kernel(ones, ones, ones, i, f, eps=0.0, **options)
            h.sum().backward()
            found = h[0, 0, :, 0].tolist(), i.grad[0, 0].tolist()
            print(f"{name:36} f_3 = {forget:8}, i_3 = {write:6}: h = {found[0]}, di = {found[1]}")
            wrong |= not bool(i.grad.isfinite().all() and h.isfinite().all())
print("Verdict:", "confirmed." if wrong else "not seen with this version.")
sys.exit(wrong)
