"""mlstm_kernels (JAX): the step rounds log σ(f) to 16 bits where its state is float32, and returns h in float32.

    pip install mlstm-kernels jax && python mlstm_kernels_jax_step_16_bits.py

log σ(f) is computed in the dtype of the gates, and then added to the float32 stabiliser. For a constant gate the
stabiliser after S steps is S·log σ(f), and the memory decays by σ(f)^S; it is compared, in double precision, with what
the step returns for bfloat16, float16 and float32 gates of the same values. A gate of 5 is a 16-bit number, so nothing
is lost on the way in. JAX promotes h, computed from 16-bit queries and the float32 state, to float32.
"""

import _jax_alone  # noqa: F401
import jax
import jax.numpy as jnp
from _shared import decayed, verdict
from mlstm_kernels.jax.recurrent import mlstm_recurrent_step__native

S, gate = 256, 5.0
exact = decayed(S, gate)


def steps(q, f):
    """S equal steps, each with an input gate that writes nothing: the last h and the state."""

    def one(state, _):
        h, state = mlstm_recurrent_step__native(q, q, q, jnp.full_like(f, -jnp.inf), f, *state)
        return state, h

    state, h = jax.lax.scan(one, (jnp.ones((1, 1, 1, 1)), jnp.ones((1, 1, 1)), jnp.zeros((1, 1, 1))), length=S)
    return h, state


wrong = False
for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
    h, (C, n, m) = jax.jit(steps)(jnp.ones((1, 1, 1), dtype), jnp.full((1, 1, 1), gate, dtype))
    error = abs(m.item() / exact - 1)
    name = jnp.dtype(dtype).name
    print(
        f"{name:9} inputs: h is {h.dtype}; m = {m.item():.7f} in {m.dtype}, exact {exact:.7f}: off by {error:.1e} of it"
    )
    wrong |= dtype != jnp.float32 and (error > 1e-4 or h.dtype != dtype)
verdict(wrong)
