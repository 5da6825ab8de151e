"""xlstm: one step of the mLSTM raises where 16-bit inputs meet a float32 state.

    pip install xlstm torch && python xlstm_step_16_bits.py

`recurrent_step_stabilized_simple` multiplies its state and its inputs without a cast: a memory that is to outlast many
steps of 16-bit inputs cannot be carried in float32.
"""

import torch
from _shared import verdict
from xlstm.blocks.mlstm.backends import recurrent_step_stabilized_simple

K = 4
wrong = False
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    rows = [torch.randn(1, 1, 1, K, dtype=dtype) for _ in "qkv"] + [torch.zeros(1, 1, 1, 1, dtype=dtype) for _ in "if"]
    state = torch.zeros(1, 1, K, K), torch.zeros(1, 1, K, 1), torch.zeros(1, 1, 1, 1)
    try:
        h, _ = recurrent_step_stabilized_simple(*state, *rows)
        print(f"{dtype!s:15} inputs, float32 state: h in {h.dtype}")
    except RuntimeError as raised:
        print(f"{dtype!s:15} inputs, float32 state: RuntimeError: {str(raised).splitlines()[0]}")
        wrong = True
verdict(wrong)
