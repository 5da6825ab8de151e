"""mlstm_kernels (JAX): the scan over steps rounds log σ(f) to 16 bits, though its state is in float32.

    pip install mlstm-kernels jax && python mlstm_kernels_jax_scan_16_bits.py

log σ(f) is computed in the dtype of the gates, and then added to the float32 stabiliser. With input gates of −∞ and a
constant forget gate the final stabiliser is S·log σ(f). A gate of 5 is a 16-bit number, so nothing is lost on the way
in.
"""

import _jax_alone  # noqa: F401
import jax.numpy as jnp
from _shared import decayed, verdict
from mlstm_kernels.jax.recurrent.native_sequence_scan import mlstm_recurrent_sequence__native_fw as scan

S, gate = 256, 5.0
exact = decayed(S, gate)
wrong = False
for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
    ones, gates = jnp.ones((1, 1, S, 1), dtype), jnp.ones((1, 1, S), dtype)
    options = {"state_dtype": jnp.float32, "return_last_states": True, "eps": 0.0}
    _, (_, _, m) = scan(ones, ones, ones, -jnp.inf * gates, gate * gates, **options)
    error = abs(m.item() / exact - 1)
    name = jnp.dtype(dtype).name
    print(f"{name:9} gates: m = {m.item():.7f} in {m.dtype}, exact {exact:.7f}: off by {error:.1e} of its size")
    wrong |= dtype != jnp.float32 and error > 1e-4
verdict(wrong)
