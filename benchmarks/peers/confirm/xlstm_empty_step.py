"""xlstm: autograd's gradient is NaN where the floor exp(−m) overflows, and h where m is −∞.

    pip install xlstm torch && python xlstm_empty_step.py

With f_t = −10⁴ and i_t = −800 the stabiliser is m_t = i_t, and exp(−m_t), the floor of the normaliser, exceeds what
float64 holds; with f_t = −800 and i_t = −900, after m = 0, it is m_t = −800. h_t is 0, and so are its derivatives. Yet
autograd of the functions returns NaN for i_t, and for f_t. With f_t = i_t = −∞, m_t is −∞ and h_t NaN, while its
numerator is 0.
"""

import torch
from _shared import empty_steps, verdict
from xlstm.blocks.mlstm.backends import chunkwise_simple, parallel_stabilized_simple, recurrent_step_stabilized_simple


def three_steps(i, f):
    """q, k, v of ones, and gates whose last step has i and f."""
    ones = (torch.ones(1, 1, 3, 1, dtype=i.dtype) for _ in "qkv")
    return *ones, *(torch.cat([torch.zeros(1, 1, 2, dtype=x.dtype), x[..., None]], -1) for x in (i, f))


def parallel(i, f):
    q, k, v, i, f = three_steps(i, f)
    return parallel_stabilized_simple(q, k, v, i[..., None], f[..., None], eps=0.0)


def chunkwise(i, f):
    return chunkwise_simple(*three_steps(i, f), chunk_size=3, eps=0.0)


def one_step(i, f):
    """h of a step from a memory of ones with m = 0."""
    memory = (torch.full((1, 1, 1, 1), x, dtype=i.dtype) for x in (1.0, 1.0, 0.0))
    rows = (torch.ones(1, 1, 1, 1, dtype=i.dtype) for _ in "qkv")
    return recurrent_step_stabilized_simple(*memory, *rows, i[..., None, None], f[..., None, None], eps=0.0)[0]


FUNCTIONS = {
    "parallel_stabilized_simple": parallel,
    "chunkwise_simple": chunkwise,
    "recurrent_step_stabilized_simple": one_step,
}
DTYPES = (torch.float64, torch.float32)

verdict(empty_steps(FUNCTIONS, DTYPES), "not seen with this version in every function.")
