"""xlstm: in its plain PyTorch sLSTM, whether a memory is empty is asked of the whole batch.

    pip install xlstm torch && python xlstm_slstm_batch.py

From an empty memory (c = n = 0), the first write decides alone: h = σ(o) tanh(z), however small its input gate is. The
first step of such a sequence is computed alone, and in a batch with a second sequence whose memory is not empty. The
stabiliser is then max(i, m + log σ(f)) for both, with m = 0 for the empty one, whose write is scaled down to nothing if
i is small: h = 0/0.
"""

import torch
from _shared import verdict
from _slstm import next_to_another
from xlstm.blocks.slstm.src.vanilla import slstm_forward, slstm_pointwise_function_registry


def step(i, f, z, o, c, n, m):
    B = len(i)
    states = torch.stack([torch.zeros(B), c, n, m])[..., None]
    x, R = torch.stack([i, f, z, o], 1)[None], torch.zeros(1, 4, 1)
    every, _, _ = slstm_forward(x, states, R, torch.zeros(4), slstm_pointwise_function_registry["slstm"])
    return every[0, 1, :, 0]


verdict(next_to_another(step))
