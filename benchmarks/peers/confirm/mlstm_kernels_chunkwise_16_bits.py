"""mlstm_kernels (PyTorch): the chunkwise functions keep their state in the 16 bits of their inputs, and take no other.

    pip install mlstm-kernels torch && python mlstm_kernels_chunkwise_16_bits.py

For bfloat16 and float16 inputs (C, n, m) come back in that dtype, rounded after each chunk. For gates that are 16-bit
numbers the stabiliser of a memory that only decays is m_T = Σ log σ(f_t), which is compared in double precision. An
initial state in float32, which the recurrent functions of the package return, raises.
"""

import torch
from _shared import decayed, verdict
from mlstm_kernels.torch import get_mlstm_kernel

S, chunk, gate = 256, 32, 5.0
exact = decayed(S, gate)
wrong = False
for name in ("chunkwise--native_autograd", "chunkwise--native_custbw"):
    kernel = get_mlstm_kernel(name)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        ones, f = torch.ones(1, 1, S, 1, dtype=dtype), torch.full((1, 1, S), gate, dtype=dtype)
        options = {"chunk_size": chunk, "return_last_states": True, "eps": 0.0, "autocast_kernel_dtype": dtype}
        # An input gate that writes next to nothing, so that m is what is left of the initial m = 0.
        _, (C, n, m) = kernel(ones, ones, ones, torch.full_like(f, -100.0), f, **options)
        error = abs(m.item() / exact - 1)
        said = f"{name} {dtype!s:15}: m in {m.dtype!s:15} off by {error:.1e}"
        state = {"c_initial": C.float(), "n_initial": n.float(), "m_initial": m.float()}
        try:
            kernel(ones, ones, ones, f, f, **state, **options)
            print(f"{said}; a float32 initial state is taken")
        except RuntimeError as raised:
            print(f"{said}; a float32 initial state: RuntimeError: {str(raised).splitlines()[0]}")
            wrong |= dtype != torch.float32
        wrong |= dtype != torch.float32 and error > 1e-4
verdict(wrong)
