"""keras.layers.GRU on JAX: in 16 bits its gates and its state are rounded to 16 bits at each step.

    pip install keras jax && python keras_gru_16_bits.py

With kernels of 0 and a bias of the update gate, h_T = σ(b)^T h_0. For a bias and an h_0 that are 16-bit numbers, the
last state of `keras.layers.GRU(1, reset_after=False, dtype=…)` is compared, in double precision, with that product; the
same layer in float32 is given the same numbers.
"""

import math
import os

from _shared import verdict

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

T, bias = 512, 6.0
exact = (1 + math.exp(-bias)) ** -T
wrong = False
for dtype, rounding in (("float32", 2.0**-23), ("bfloat16", 2.0**-7), ("float16", 2.0**-10)):
    layer = keras.layers.GRU(1, reset_after=False, recurrent_initializer="zeros", dtype=dtype)
    layer.build((1, T, 1))
    # The columns are update gate, reset gate, candidate.
    layer.set_weights([np.zeros((1, 3)), np.zeros((1, 3)), np.array([bias, 0.0, 0.0])])
    last = layer(np.zeros((1, T, 1)), initial_state=np.ones((1, 1)))
    error = abs(float(last[0, 0]) / exact - 1)
    said = f"off by {error:.1e}, a rounding is {rounding:.1e}"
    print(f"{last.dtype!s:9}: h_T = {float(last[0, 0]):.6f}, exact {exact:.6f}: {said}")
    wrong |= dtype != "float32" and error > 8 * rounding
verdict(wrong)
