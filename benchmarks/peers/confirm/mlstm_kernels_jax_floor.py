"""mlstm_kernels (JAX): JAX's derivative is NaN where the denominator exp(−m) overflows or, squared, underflows.

    pip install mlstm-kernels jax && python mlstm_kernels_jax_floor.py

The denominator is exp(−m) where |n·q̂| is smaller. Two steps in float32, whose q, k, v and gates are single numbers; i
and f are those of the second step. Where q is 0, or f and i are very negative, h is q·v·exp(i), and its derivative with
respect to q is exp(i).
"""

import math

import _jax_alone  # noqa: F401
import jax
import jax.numpy as jnp
from _shared import verdict
from mlstm_kernels.jax.chunkwise import registry as chunkwise
from mlstm_kernels.jax.parallel import registry as parallel
from mlstm_kernels.jax.recurrent import mlstm_recurrent_sequence__native_fw as loop
from mlstm_kernels.jax.recurrent import mlstm_recurrent_step__native as one_step
from mlstm_kernels.jax.recurrent.native_sequence_scan import mlstm_recurrent_sequence__native_fw as scan


def second_step(q, k, v, i, f, eps):
    """The second of two steps by itself, from the state after the first: C = 1, n = 1, m = 0."""
    one = jnp.ones((1, 1, 1, 1), jnp.float32)
    vectors, gates, state = (x[:, :, 1] for x in (q, k, v)), (i[:, :, 1:], f[:, :, 1:]), (one, one[0], 0 * one[0])
    return one_step(*vectors, *gates, *state, eps=eps)[0][:, :, None]


FUNCTIONS = {
    "chunkwise.native_autograd": (chunkwise["native_autograd"], {"chunk_size": 2}),
    "parallel.native_autograd": (parallel["native_autograd"], {}),
    "parallel.native_stablef_autograd": (parallel["native_stablef_autograd"], {}),
    "recurrent.native_sequence": (loop, {"return_last_states": False}),
    "recurrent.native_sequence_scan": (scan, {"return_last_states": False}),
    "recurrent.native_step": (second_step, {}),
}
wrong = False
for name, (function, options) in FUNCTIONS.items():

    def h(q, i, f, function=function, options=options):
        array, second = jnp.ones((1, 1, 2, 1), jnp.float32), jnp.array([[[0.0, 1.0]]])
        return function(q * array, array, array, i * second, f * second, eps=0.0, **options)[0, 0, -1, 0]

    print(name)
    for q, i, f in ((0.0, 20.0, 5.0), (0.0, 40.0, 5.0), (0.0, 50.0, 5.0), (1.0, -50.0, -1e3), (1.0, -100.0, -1e3)):
        of_h, (dq, di, df) = jax.value_and_grad(h, (0, 1, 2))(q, i, f)
        print(
            f"  q = {q:.0f}, i = {i:6.1f}, f = {f:8.1f}: h = {of_h:8.2g}, "
            f"dq = {dq:8.2g} (exact {math.exp(i):8.2g}), di = {di:8.2g}, df = {df:8.2g}"
        )
        wrong |= not all(math.isfinite(x) for x in (dq, di, df))
verdict(wrong)
