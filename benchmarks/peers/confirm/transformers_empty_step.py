"""transformers (xLSTM without `xlstm`): the gradient is NaN where the floor exp(−m) overflows, and h where m is −∞.

    pip install transformers torch && python transformers_empty_step.py

With f_t = −10⁴ and i_t = −800 the stabiliser is m_t = i_t, and exp(−m_t), the floor of the normaliser, exceeds what
float64 holds; with f_t = −800 and i_t = −900, after m = 0, it is m_t = −800. h_t is 0, and so are its derivatives. Yet
autograd of the functions returns NaN for i_t, and for f_t. With f_t = i_t = −∞, m_t is −∞ and h_t NaN, while its
numerator is 0. The form for any
length takes the recurrent one here.
"""

import torch
import transformers.utils
from _shared import empty_steps, verdict

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

verdict(empty_steps(FUNCTIONS, DTYPES), "not seen with this version in every function.")
