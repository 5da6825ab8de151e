"""transformers (xLSTM without `xlstm`): the gradient is NaN where the floor exp(−m) overflows, and h where m is −∞.

    pip install transformers torch && python transformers_empty_step.py

With f_t = −10⁴ and i_t = −800 the stabiliser is m_t = i_t, and exp(−m_t), the floor of the normaliser, exceeds what
float64 holds; with f_t = −800 and i_t = −900, after m = 0, it is m_t = −800. h_t is 0, and so are its derivatives. Yet
autograd of the functions returns NaN for i_t, and for f_t. With f_t = i_t = −∞, m_t is −∞ and h_t NaN, while its
numerator is 0. The form for any
length takes the recurrent one here.
"""

import sys

import torch
import transformers.utils

# These functions are defined where `xlstm` is not installed.
transformers.utils.is_xlstm_available = lambda: False
from transformers.models.xlstm.modeling_xlstm import (  # noqa: E402
    mlstm_chunkwise_native_autograd,
    mlstm_recurrent_sequence_native,
)


def sequence(kernel, **options):
    """h of a sequence of three steps, as a function of the last step's i and f."""

    def last(i, f):
        ones = torch.ones(1, 1, 3, 1, dtype=i.dtype)
        gates = (torch.cat([torch.zeros(1, 1, 2, dtype=x.dtype), x[..., None]], -1) for x in (i, f))
        h = kernel(ones, ones, ones, *gates, eps=0.0, **options)
        return h[0] if isinstance(h, tuple) else h

    return last


FUNCTIONS = {
    "recurrent": sequence(mlstm_recurrent_sequence_native),
    "chunkwise": sequence(mlstm_chunkwise_native_autograd, chunk_size=3),
}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

# Forget and input gate of the step, and where it gives NaN.
CALLS = ((-1e4, -30.0, ""), (-1e4, -800.0, "di"), (-800.0, -900.0, "df"), (-torch.inf, -torch.inf, "h"))
shown = True
for name, function in FUNCTIONS.items():
    for dtype in DTYPES:
        words = []
        for forget, write, wrong in CALLS:
            i = torch.full((1, 1), write, dtype=dtype, requires_grad=True)
            f = torch.full((1, 1), forget, dtype=dtype, requires_grad=True)
            h = function(i, f).flatten()[-1]
            h.backward()
            found = {"h": h, "di": i.grad, "df": f.grad}
            values = ", ".join(f"{which} = {x.item():.2g}" for which, x in found.items() if which in ("h", wrong))
            words.append(f"f {forget:g}, i {write:g}: {values}")
            shown &= not wrong or bool(found[wrong].isnan().all())
        print(f"{name:34} {str(dtype)[6:]:8} {'; '.join(words)}")
print("Verdict:", "confirmed." if shown else "not seen with this version in every function.")
sys.exit(shown)
