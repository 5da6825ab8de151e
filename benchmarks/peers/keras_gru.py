"""``keras.layers.GRU`` on Keras' JAX backend, mapped over heads."""

import os
from functools import cache

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import keras

from ._adapter import recurrence

if keras.backend.backend() != "jax":
    raise ImportError(f"Keras runs on {keras.backend.backend()} here; set KERAS_BACKEND=jax")


@cache
def _layer(F, H, dtype, reset_after):
    options = {"return_sequences": True, "return_state": True, "reset_after": reset_after, "dtype": dtype}
    layer = keras.layers.GRU(H, use_bias=reset_after, **options)
    layer.build((1, 1, F))
    return layer


def gru_layer(x, into, weight, forget_weight, reset_weight, h0=None, bias=None, reset_after=False):
    """``x (B, S, N, F)``, projections ``into (N, 3, F, H)`` of reset, forget gate, candidate → states, last one."""
    N, _, F, H = into.shape
    layer = _layer(F, H, str(x.dtype), reset_after)
    # Its columns are update (the forget gate), reset and candidate.
    columns = jnp.concatenate([into[:, 1], into[:, 0], into[:, 2]], -1)
    kernels: tuple = columns, jnp.concatenate([forget_weight, reset_weight, weight], -1)
    if reset_after:
        # Biases of the input, then those of the state.
        biases = jnp.zeros((N, 2, 3 * H), x.dtype)
        kernels += (biases if bias is None else biases.at[:, 1, 2 * H :].set(bias),)
    fixed = [variable.value for variable in layer.non_trainable_variables]

    def one_head(kernels, x, h0):
        return layer.stateless_call(list(kernels), fixed, x, initial_state=h0)[0]

    return jax.vmap(one_head, (0, 2, None if h0 is None else 1), (2, 1))(kernels, x, h0)


gru = recurrence(gru_layer, jnp, both=True)
