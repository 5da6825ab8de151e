"""flash-linear-attention (naive_recurrent_gated_delta_rule, naive_chunk_kda): torch.vmap over them raises.

    pip install flash-linear-attention torch && python fla_naive_vmap.py

Each writes into an array that is made without the mapped axis. Two calls are mapped, and compared with one call after
the other; the other two functions of these operations are next to them.
"""

import torch
from _linear import arrays
from _shared import verdict, vmap_raises
from fla.ops.gated_delta_rule.naive import naive_chunk_gated_delta_rule, naive_recurrent_gated_delta_rule
from fla.ops.kda.naive import naive_chunk_kda, naive_recurrent_kda

torch.manual_seed(0)
q, k, v, gates, beta = (x[:, None] for x in arrays(channels=False, delta=True, S=5, B=2))
channels = -gates[..., None] * k.abs()
calls = {
    "naive_recurrent_gated_delta_rule": (naive_recurrent_gated_delta_rule, [q, k, v, beta, -gates], {}),
    "naive_chunk_kda": (naive_chunk_kda, [q, k, v, channels, beta], {"chunk_size": 5}),
    "naive_chunk_gated_delta_rule": (naive_chunk_gated_delta_rule, [q, k, v, -gates, beta], {}),
    "naive_recurrent_kda": (naive_recurrent_kda, [q, k, v, channels, beta], {}),
}
raises = [
    vmap_raises(lambda *x, f=function, o=options: f(*x, **o)[0], inputs, f"{name:33}")
    for name, (function, inputs, options) in calls.items()
]
verdict(all(raises[:2]))
