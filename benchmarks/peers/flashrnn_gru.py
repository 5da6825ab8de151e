"""FlashRNN (NX-AI): plain PyTorch (``vanilla``) on a CPU, fused CUDA and Triton on a GPU. Its reset gate stands after
the product with the state, tanh(x + r⊙(h W + b)): that of `reset_after`, and without it the same function where H = 1.
"""

import torch
from flashrnn import flashrnn

from ._adapter import recurrence


def gru_layer(x, into, weight, forget_weight, reset_weight, h0=None, bias=None, backend="vanilla"):
    """``x (B, S, N, F)``, projections ``into (N, 3, F, H)`` of reset, forget gate, candidate → states, last one."""
    N, _, _, H = into.shape
    # Its inputs are reset, update (the forget gate), candidate; its recurrent weights candidate, reset, update.
    Wx = torch.einsum("bsnf,ngfh->bsgnh", x, into).contiguous()
    over = torch.stack([weight, reset_weight, forget_weight]).mT.contiguous()
    states = None if h0 is None else h0[None, :, None]
    dtype = str(x.dtype).removeprefix("torch.")
    none = x.new_zeros(4, N, H)
    biases = none if bias is None else torch.cat([bias[None], none[1:]])
    y, last = flashrnn(Wx, over, biases, states, function="gru", backend=backend, dtype=dtype)
    return y[0], last[0, :, 0]


gru = recurrence(gru_layer, torch)
