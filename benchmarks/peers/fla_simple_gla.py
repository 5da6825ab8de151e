"""flash-linear-attention's simple_gla, a neighbour of the mLSTM: no stabiliser, no normaliser, a gate of (0, 1) on the
values in place of exp(i). On a GPU, or, but for the chunkwise form, on a CPU with TRITON_INTERPRET=1.

What does not need the mLSTM's own formula holds of it too: causality, permutations, linearity, a state carried on.
"""

import os
from types import SimpleNamespace

import torch
from fla.ops.simple_gla import chunk_simple_gla, fused_recurrent_simple_gla

from ._adapter import refuse

if os.environ.get("TRITON_INTERPRET") == "1":
    from triton.runtime.autotuner import Autotuner

    # Nothing can be timed under the interpreter: the first configuration stands for all.
    Autotuner.run = lambda self, *args, **options: self.fn.run(*args, **{**options, **self.configs[0].all_kwargs()})


def _sequence(kernel):
    def mlstm(q, k, v, i, f, *, initial_state=None, return_state=False, eps=0.0, **unserved):
        refuse(
            (unserved, ", ".join(unserved)),
            (eps, "eps: it has no normaliser"),
            (initial_state is not None or return_state, "the mLSTM's state: it has no normaliser and no stabiliser"),
            (q.shape[1] == 0, "sequences without steps"),
            (not i.dtype == f.dtype == v.dtype, "gates of another dtype than the values"),
        )
        return kernel(q, k, v * torch.sigmoid(i)[..., None], torch.nn.functional.logsigmoid(f.float()))[0]

    return SimpleNamespace(mlstm=mlstm)


chunk = _sequence(chunk_simple_gla)
fused_recurrent = _sequence(fused_recurrent_simple_gla)
