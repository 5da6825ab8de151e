"""``torch.nn.GRU`` (cuDNN on a GPU): one layer for each head. Its reset gate stands after the product with the state,
tanh(x + r⊙(h W + b)): that of `reset_after`, and without it the same function where H = 1.
"""

import torch

from ._adapter import recurrence


def gru_layer(x, into, weight, forget_weight, reset_weight, h0=None, bias=None):
    """``x (B, S, N, F)``, projections ``into (N, 3, F, H)`` of reset, forget gate, candidate → states, last one."""
    N, _, F, H = into.shape
    # Its rows are reset, update (the forget gate) and candidate; its products are W·h.
    into = into.mT.reshape(N, 3 * H, F)
    over = torch.stack([reset_weight, forget_weight, weight], 1).mT.reshape(N, 3 * H, H)
    h0 = x.new_zeros((x.shape[0], N, H)) if h0 is None else h0
    none = x.new_zeros((N, 3 * H))
    biases = none if bias is None else torch.cat([none[:, : 2 * H], bias], 1)
    options = (True, 1, 0.0, True, False, True)
    # cuDNN takes a contiguous state only.
    first = h0.transpose(0, 1).contiguous()
    heads = [
        torch._VF.gru(x[:, :, n], first[n, None], [into[n], over[n], none[n], biases[n]], *options) for n in range(N)
    ]
    return torch.stack([y for y, _ in heads], 2), torch.stack([last[0] for _, last in heads], 1)


gru = recurrence(gru_layer, torch)
