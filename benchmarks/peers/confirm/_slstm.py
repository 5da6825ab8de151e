"""One unit whose memory is empty, alone and next to a unit of another sequence whose memory is not."""

import math


def next_to_another(step):
    """Whether h of an empty memory depends on a second sequence, which shares nothing with it.

    Args:
        step: takes the gates i, f, z, o of one step, then c, n and m, each ``(B,)``, and returns h, ``(B,)``.
    """
    import torch

    shown = False
    for write in (-1.0, -5.0, -20.0, -200.0):
        gates = [torch.full((2,), gate) for gate in (write, 0.0, 1.0, 0.0)]
        c, n, m = torch.tensor([0.0, 0.5]), torch.tensor([0.0, 1.0]), torch.zeros(2)
        alone = step(*(x[:1] for x in (*gates, c, n, m)))[0].item()
        shared = step(*gates, c, n, m)[0].item()
        exact = math.tanh(1.0) / 2
        print(f"i = {write:6.0f}: h = σ(o)·tanh(z) = {exact:.6f}; alone {alone:.6f}, next to another {shared:.6g}")
        shown |= not abs(shared - exact) < 1e-5
    return shown
