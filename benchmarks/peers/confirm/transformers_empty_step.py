"""transformers (xLSTM without `xlstm`): where a step forgets all and writes next to nothing, the gradient is NaN.

    pip install transformers torch && python transformers_empty_step.py

With f_t = −∞ (or −10⁴) the stabiliser is m_t = i_t. For i_t = −100 in float32 (−800 in float64) exp(−m_t), the floor of
the normaliser, exceeds what the dtype holds. h_t is 0, and so is its derivative. Autograd of the recurrent form returns
NaN for i_t.
"""

import sys

import torch
import transformers.utils

# These functions are defined where `xlstm` is not installed.
transformers.utils.is_xlstm_available = lambda: False
from transformers.models.xlstm.modeling_xlstm import mlstm_recurrent_sequence_native  # noqa: E402

wrong = False
for dtype, writes in ((torch.float32, (-30.0, -100.0)), (torch.float64, (-30.0, -100.0, -800.0))):
    ones = torch.ones(1, 1, 3, 1, dtype=dtype)
    for forget in (-1e4, -torch.inf):
        for write in writes:
            i = torch.tensor([[[0.0, 0.0, write]]], dtype=dtype, requires_grad=True)
            f = torch.tensor([[[0.0, 0.0, forget]]], dtype=dtype, requires_grad=True)
            h = mlstm_recurrent_sequence_native(ones, ones, ones, i, f, eps=0.0, dtype_state=dtype)
            h = h[0] if isinstance(h, tuple) else h
            h.sum().backward()
            found = h[0, 0, :, 0].tolist(), i.grad[0, 0].tolist()
            print(f"{dtype} f_3 = {forget:8}, i_3 = {write:6}: h = {found[0]}, di = {found[1]}")
            wrong |= not bool(i.grad.isfinite().all() and h.isfinite().all())
print("Verdict:", "confirmed." if wrong else "not seen with this version.")
sys.exit(wrong)
