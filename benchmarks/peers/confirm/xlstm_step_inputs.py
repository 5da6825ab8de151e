"""xlstm: one step of the mLSTM changes the shape of the tensors that it is given.

    pip install xlstm torch && python xlstm_step_inputs.py

`recurrent_step_stabilized_simple` calls `q.squeeze_(2)`, in place, on its arguments: a caller's (B, N, 1, K) tensors
are (B, N, K) afterwards, and a second call with them fails.
"""

import torch
from _shared import verdict
from xlstm.blocks.mlstm.backends import recurrent_step_stabilized_simple

K = 4
rows = {name: torch.randn(1, 1, 1, K) for name in "qkv"}
state = (torch.zeros(1, 1, K, K), torch.zeros(1, 1, K, 1), torch.zeros(1, 1, 1, 1))
gate = torch.zeros(1, 1, 1, 1)
before = {name: tuple(x.shape) for name, x in rows.items()}
recurrent_step_stabilized_simple(*state, *rows.values(), gate, gate)
after = {name: tuple(x.shape) for name, x in rows.items()}
print("before", before, "after", after)
wrong = before != after
verdict(wrong)
