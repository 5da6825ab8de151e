"""transformers (xLSTM without `xlstm`): the recurrent step rounds log σ(f) to 16 bits, though its state is in float32.

    pip install transformers torch && python transformers_recurrent_16_bits.py

For a constant gate the stabiliser after S steps is S·log σ(f), which is compared, in double precision, with the m that
the recurrent form returns for bfloat16, float16 and float32 gates of the same values. A gate of 5 is a 16-bit number.
"""

import torch
import transformers.utils
from _shared import decayed, verdict

# These functions are defined where `xlstm` is not installed.
transformers.utils.is_xlstm_available = lambda: False
from transformers.models.xlstm.modeling_xlstm import mlstm_recurrent_sequence_native  # noqa: E402

S, gate = 256, 5.0
exact = decayed(S, gate)
wrong = False
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    ones, f = torch.ones(1, 1, S, 1, dtype=dtype), torch.full((1, 1, S), gate, dtype=dtype)
    # An input gate that writes next to nothing, so that m is what is left of the initial m = 0.
    i, options = torch.full_like(f, -100.0), {"return_last_states": True, "eps": 0.0, "dtype_state": torch.float32}
    _, (C, n, m) = mlstm_recurrent_sequence_native(ones, ones, ones, i, f, **options)
    error = abs(m.item() / exact - 1)
    print(f"{dtype!s:15} gates: m = {m.item():.7f} in {m.dtype}, exact {exact:.7f}: off by {error:.1e} of its size")
    wrong |= dtype != torch.float32 and error > 1e-4
verdict(wrong)
