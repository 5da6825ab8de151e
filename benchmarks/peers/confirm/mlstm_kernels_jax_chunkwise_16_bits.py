"""mlstm_kernels (JAX): in 16 bits the chunkwise function rounds sums of log σ(f), and h has the dtype of its state.

    pip install mlstm-kernels jax && python mlstm_kernels_jax_chunkwise_16_bits.py

log σ(f) and its running sums are in the dtype of the gates, also where the initial state is in float32. Without one,
the state is kept in the dtype of the inputs. The stabiliser of a memory that only decays is m_T = Σ log σ(f_t); it is
compared, in double precision, for gates that are 16-bit numbers. JAX promotes h, computed from 16-bit queries and a
float32 state, to float32.
"""

import _jax_alone  # noqa: F401
import jax
import jax.numpy as jnp
from _shared import decayed, verdict
from mlstm_kernels.jax.chunkwise import registry

S, gate = 256, 5.0
exact = decayed(S, gate)
kernel = jax.jit(lambda *arrays: registry["native_autograd"](*arrays, chunk_size=32, return_last_states=True, eps=0.0))
wrong = False
for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
    ones, f = jnp.ones((1, 1, S, 1), dtype), jnp.full((1, 1, S), gate, dtype)
    for said, state in (
        ("no initial state", ()),
        ("a float32 state", (jnp.ones((1, 1, 1, 1)), jnp.ones((1, 1, 1)), jnp.zeros((1, 1)))),
    ):
        # An input gate that writes next to nothing, so that m is what is left of the initial m = 0.
        h, (C, n, m) = kernel(ones, ones, ones, jnp.full_like(f, -100.0), f, *state)
        error = abs(m.item() / exact - 1)
        print(f"{jnp.dtype(dtype).name:8} inputs, {said:16}: h is {h.dtype!s:8}, m in {m.dtype!s:8} off by {error:.1e}")
        wrong |= dtype != jnp.float32 and error > 1e-4
verdict(wrong)
