"""transformers (xLSTM without `xlstm`): its function for any length raises in 16 bits where there are 64 steps or more.

    pip install transformers torch && python transformers_bfloat16.py

`wrap_chunkwise_arbitrary_sequence_length` makes its initial state in float32 and hands it to the chunkwise form, which
mixes it with the arrays' own dtype in a matrix product. Shorter sequences go to the recurrent form, which takes both.
"""

import torch
import transformers.utils
from _shared import verdict

# These functions are defined where `xlstm` is not installed.
transformers.utils.is_xlstm_available = lambda: False
from transformers.models.xlstm.modeling_xlstm import (  # noqa: E402
    mlstm_chunkwise_native_autograd,
    mlstm_recurrent_sequence_native,
    mlstm_recurrent_step_native,
    wrap_chunkwise_arbitrary_sequence_length,
)

kernels = (mlstm_chunkwise_native_autograd, mlstm_recurrent_sequence_native, mlstm_recurrent_step_native)
wrong = False
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    for S in (5, 64, 70):
        q, k, v = (torch.randn(1, 1, S, 4, dtype=dtype) for _ in "qkv")
        f, i = (torch.randn(1, 1, S, dtype=dtype) for _ in "fi")
        try:
            h, _ = wrap_chunkwise_arbitrary_sequence_length(*kernels, q, k, v, f, i)
            print(f"{dtype}, {S} steps: h in {h.dtype}")
        except RuntimeError as error:
            print(f"{dtype}, {S} steps: RuntimeError: {error}")
            wrong = True
verdict(wrong)
