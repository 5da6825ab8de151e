"""flashrnn: torch.vmap over its vanilla GRU raises.

    pip install flashrnn torch && python flashrnn_vmap.py

It is called on one set of arrays after the other, and mapped by `torch.vmap` over a new first axis of all of them.
"""

import logging

import torch
from _shared import verdict, vmap_raises

# Without CUDA, flashrnn's import warns.
logging.disable(logging.WARNING)
from flashrnn import flashrnn  # noqa: E402

A, B, T, N, H = 3, 1, 5, 1, 2
# Inputs of three gates, recurrent weights of three, biases of four, an initial state.
shapes = (A, B, T, 3, N, H), (A, 3, N, H, H), (A, 4, N, H), (A, 1, B, 1, N, H)
arrays = [torch.randn(*shape) for shape in shapes]


def function(*arrays):
    return flashrnn(*arrays, function="gru", backend="vanilla", dtype="float32")[0]


verdict(vmap_raises(function, arrays))
