"""mlstm_kernels (JAX): given no initial state, the recurrent sequence functions keep theirs in 16 bits, as the inputs.

    pip install mlstm-kernels jax && python mlstm_kernels_jax_recurrent_16_bits.py

For a constant gate and nothing written, the stabiliser after S steps is S·log σ(f). It is compared, in double
precision, with the one that the functions return for bfloat16, float16 and float32 inputs of the same values. A gate of
5 is a 16-bit number, so nothing is lost on the way in.
"""

import _jax_alone  # noqa: F401
import jax.numpy as jnp
from _shared import decayed, verdict
from mlstm_kernels.jax.recurrent import native_sequence, native_sequence_scan

S, gate = 64, 5.0
exact = decayed(S, gate)
wrong = False
for module in (native_sequence, native_sequence_scan):
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        q = jnp.ones((1, 1, S, 1), dtype)
        i, f = (jnp.full((1, 1, S), value, dtype) for value in (-jnp.inf, gate))
        _, (C, n, m) = module.mlstm_recurrent_sequence__native_fw(q, q, q, i, f, return_last_states=True)
        last = float(m.reshape(()))
        error = abs(last / exact - 1)
        where = f"{module.__name__.rpartition('.')[2]}, {jnp.dtype(dtype).name}"
        print(f"{where:31}: C is {C.dtype}; m = {last:.6f} in {m.dtype}, exact {exact:.6f}: off by {error:.0e} of it")
        wrong |= dtype != jnp.float32 and error > 1e-4
verdict(wrong)
