"""flax.linen.GRUCell: in 16 bits its gates and its state are rounded to 16 bits at each step.

    pip install flax jax && python flax_gru_16_bits.py

With all weights 0 and a bias of the update gate, h_T = σ(b)^T h_0. For a bias and an h_0 that are 16-bit numbers, the
last state of `nn.RNN(nn.GRUCell(1))`, whose parameters, inputs and initial carry have the dtype, is compared, in double
precision, with that product; the same layer in float32 is given the same numbers.
"""

import math

import jax
import jax.numpy as jnp
from _shared import verdict
from flax import linen

T, bias = 512, 6.0
exact = (1 + math.exp(-bias)) ** -T
layer = linen.RNN(linen.GRUCell(1), return_carry=True)
wrong = False
for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
    x, h0 = jnp.zeros((1, T, 1), dtype), jnp.ones((1, 1), dtype)
    zeros = jax.tree.map(lambda leaf: jnp.zeros_like(leaf, dtype), layer.init(jax.random.key(0), x))  # noqa: B023
    zeros["params"]["cell"]["iz"]["bias"] = jnp.full((1,), bias, dtype)
    last, _ = layer.apply(zeros, x, initial_carry=h0)
    error = abs(float(last[0, 0]) / exact - 1)
    # One rounding of the result to its dtype.
    allowed = float(jnp.finfo(dtype).eps)
    found = float(last[0, 0])
    said = f"off by {error:.1e}, a rounding is {allowed:.1e}"
    print(f"{jnp.dtype(dtype)!s:9}: h_T = {found:.6f}, exact {exact:.6f}: {said}")
    wrong |= dtype != jnp.float32 and error > 8 * allowed
verdict(wrong)
