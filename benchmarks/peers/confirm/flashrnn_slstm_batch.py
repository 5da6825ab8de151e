"""flashrnn: in its plain PyTorch sLSTM, whether a memory is empty is asked of the whole batch, and n is at least 1.

    pip install flashrnn torch && python flashrnn_slstm_batch.py

From an empty memory (c = n = 0), the first write decides alone: h = σ(o) tanh(z), however small its input gate is. The
first step of such a sequence is computed alone, and in a batch with a second sequence whose memory is not empty. The
stabiliser is then max(i, m + log σ(f)) for both, with m = 0 for the empty one, whose c is small, while its n is raised
to 1.
"""

import logging

import torch
from _shared import verdict
from _slstm import next_to_another

# Without CUDA, flashrnn's import warns.
logging.disable(logging.WARNING)
from flashrnn import flashrnn  # noqa: E402


def step(i, f, z, o, c, n, m):
    B = len(i)
    x, R = torch.stack([i, f, z, o], 1)[:, None, :, None, None], torch.zeros(4, 1, 1, 1)
    states = torch.stack([torch.zeros(B), c, n, m])[:, :, None, None, None]
    every, _ = flashrnn(x, R, torch.zeros(4, 1, 1), states, function="slstm", backend="vanilla", dtype="float32")
    return every[0].reshape(B)


verdict(next_to_another(step))
