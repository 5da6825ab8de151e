"""mlstm_kernels (PyTorch): autograd's gradient is NaN where the floor exp(−m) overflows, and h where m is −∞.

    pip install mlstm-kernels torch && python mlstm_kernels_empty_step.py

With f_t = −10⁴ and i_t = −800 the stabiliser is m_t = i_t, and exp(−m_t), the floor of the normaliser, exceeds what
float64 holds; with f_t = −800 and i_t = −900, after m = 0, it is m_t = −800. h_t is 0, and so are its derivatives. Yet
autograd of the functions returns NaN for i_t, and for f_t. With f_t = i_t = −∞, m_t is −∞ and h_t NaN, while its
numerator is 0.
"""

import torch
from _shared import empty_steps, verdict
from mlstm_kernels.torch import get_mlstm_kernel, get_mlstm_sequence_kernel, get_mlstm_step_kernel


def sequence(kernel, **options):
    """h of a sequence of three steps, as a function of the last step's i and f."""

    def last(i, f):
        ones = torch.ones(1, 1, 3, 1, dtype=i.dtype)
        gates = (torch.cat([torch.zeros(1, 1, 2, dtype=x.dtype), x[..., None]], -1) for x in (i, f))
        h = kernel(ones, ones, ones, *gates, eps=0.0, **options)
        return h[0] if isinstance(h, tuple) else h

    return last


def one_step(i, f):
    """h of a step from a memory of ones with m = 0."""
    row = torch.ones(1, 1, 1, dtype=i.dtype)
    wide = torch.promote_types(i.dtype, torch.float32)
    memory = (x.to(wide) for x in (row[..., None], row, torch.zeros_like(row)))
    kernel = get_mlstm_step_kernel("native")
    return kernel(row, row, row, i[..., None], f[..., None], *memory, eps=0.0, dtype_state=wide)[0]


FUNCTIONS = {
    "native_sequence__native": sequence(get_mlstm_sequence_kernel("native_sequence__native")),
    "step native": one_step,
    "chunkwise--native_autograd": sequence(get_mlstm_kernel("chunkwise--native_autograd"), chunk_size=3),
    "parallel--native_autograd": sequence(get_mlstm_kernel("parallel--native_autograd")),
    "parallel--native_stablef_autograd": sequence(get_mlstm_kernel("parallel--native_stablef_autograd")),
}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

verdict(empty_steps(FUNCTIONS, DTYPES), "not seen with this version in every function.")
