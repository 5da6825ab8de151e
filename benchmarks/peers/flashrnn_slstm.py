"""FlashRNN's sLSTM (NX-AI) in plain PyTorch, its backend ``vanilla``."""

import torch
from flashrnn import flashrnn

from ._adapter import slstm_recurrence


def loop(x, weights, states):
    """Gates ``x (B, S, 4, N, H)`` and weights ``(4, N, H, H)`` in the order i, f, z, o; states ``(4, B, N, H)``."""
    options = {"function": "slstm", "backend": "vanilla", "dtype": str(x.dtype).removeprefix("torch.")}
    bias = x.new_zeros(4, *x.shape[3:])
    every, last = flashrnn(x.contiguous(), weights.mT.contiguous(), bias, states[:, :, None], **options)
    return every[0], last[:, :, 0]


slstm = slstm_recurrence(loop, torch)
