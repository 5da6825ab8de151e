"""flash-linear-attention (naive_chunk_kda): the gradient is NaN where the decays of one chunk add up to less than −88.

    pip install flash-linear-attention torch && python fla_naive_kda_gradient.py

For a step and a later one of its chunk, it computes the exponential of the decay with the wrong sign too, and masks the
product afterwards. Where the sum of g over the chunk is below −88, this exponential is infinite in float32. The mask
keeps it out of the values, and the backward pass multiplies it with the mask's 0. A loop over steps has no such factor.
"""

import torch
from _linear import NAMES, arrays, with_gradients
from _shared import verdict
from fla.ops.kda.naive import naive_chunk_kda, naive_recurrent_kda

torch.manual_seed(0)
q, k, v, gates, beta = arrays(channels=True, delta=True, S=64)
shown = True
for total in (-20.0, -60.0, -80.0, -100.0, -400.0):
    # Every channel's decays of the 64 steps, one chunk, add up to this.
    g = total * gates / gates.sum(1, keepdim=True)
    words = []
    for function in (naive_chunk_kda, naive_recurrent_kda):
        o, _, *gradients = with_gradients(lambda *x, f=function: f(*x, output_final_state=True), [q, k, v, g, beta])
        nan = {name: bool(x.isnan().any()) for name, x in zip(NAMES[2:], gradients, strict=True)}
        words.append(f"{function.__name__} NaN in {', '.join(name for name in nan if nan[name]) or 'no gradient'}")
        shown &= not o.isnan().any() and any(nan.values()) == (function is naive_chunk_kda and total < -88)
    print(f"sum of g {total:5g}: {'; '.join(words)}")
verdict(shown)
