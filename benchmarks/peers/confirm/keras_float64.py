"""Keras on JAX: tanh and other functions of a float64 array are computed in float32.

    pip install keras jax && python keras_float64.py

`keras.backend.result_type("float64", float)` is float32, and the JAX backend casts to it before it computes tanh, sin
and others; exp, log and sigmoid stay in float64. `keras.layers.GRU(dtype="float64")` so is a layer in float32 but for
its products. `keras.ops.matmul` of float64 arrays is computed in float64.
"""

import os

from _shared import verdict

os.environ["KERAS_BACKEND"] = "jax"

import jax

jax.config.update("jax_enable_x64", True)

import keras  # noqa: E402
import numpy as np  # noqa: E402

x = np.linspace(0.1, 0.9, 9)
wrong = False
print('keras.backend.result_type("float64", float) =', keras.backend.result_type("float64", float))
for name in ("tanh", "sin", "cos", "arctan", "sinh", "exp", "log", "log1p"):
    y = getattr(keras.ops, name)(jax.numpy.asarray(x))
    error = np.abs(np.asarray(y) - getattr(np, name)(x)).max()
    print(f"keras.ops.{name:8} of float64: {y.dtype!s:8} error {error:.1e}")
    wrong |= error > 1e-12
a, b = np.random.default_rng(0).standard_normal((2, 64, 64))
print(f"keras.ops.matmul of float64: error {np.abs(np.asarray(keras.ops.matmul(a, b)) - a @ b).max():.1e}")
verdict(wrong)
