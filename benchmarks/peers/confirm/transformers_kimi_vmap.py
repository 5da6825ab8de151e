"""transformers (Kimi delta attention, step by step): torch.vmap over it raises.

    pip install transformers torch && python transformers_kimi_vmap.py

The function writes each step's output into an array that is made without the mapped axis. Two calls are mapped, and
compared with one call after the other; the function in chunks is next to it.
"""

import inspect

import torch
from _linear import arrays
from _shared import verdict, vmap_raises
from transformers.models.kimi_linear import modeling_kimi_linear as kimi

torch.manual_seed(0)
q, k, v, gates, beta = arrays(channels=True, delta=True, S=5, B=2)
inputs = [x[:, None] for x in (q, k, v, -gates, beta)]
# Their decorators call installed kernels in their place.
steps = inspect.unwrap(kimi.recurrent_kimi_delta_attention)
chunks = inspect.unwrap(kimi.chunk_kimi_delta_attention)
raises = vmap_raises(lambda *x: steps(*x, initial_state=None, output_final_state=True)[0], inputs, "step by step ")
vmap_raises(lambda *x: chunks(*x)[0], inputs, "in chunks    ")
verdict(raises)
