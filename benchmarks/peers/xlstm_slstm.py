"""The sLSTM of the `xlstm` package in plain PyTorch (its backend ``vanilla``), the loop of its cell."""

import torch
from xlstm.blocks.slstm.src.vanilla import slstm_forward, slstm_pointwise_function_registry

from ._adapter import slstm_recurrence


def loop(x, weights, states):
    """Gates ``x (B, S, 4, N, H)`` and weights ``(4, N, H, H)`` in the order i, f, z, o; states ``(4, B, N, H)``."""
    B, S, _, N, H = x.shape
    R = weights.permute(1, 0, 3, 2).reshape(N, 4 * H, H)
    flat = x.reshape(B, S, 4 * N * H).transpose(0, 1)
    pointwise = slstm_pointwise_function_registry["slstm"]
    every, _, _ = slstm_forward(flat, states.reshape(4, B, N * H), R, x.new_zeros(4 * N * H), pointwise)
    every = every.reshape(4, S + 1, B, N, H)
    return every[0, 1:].transpose(0, 1), every[:, -1]


slstm = slstm_recurrence(loop, torch)
