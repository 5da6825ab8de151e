"""``keras.layers.GRU(reset_after=False)`` on Keras' JAX backend, mapped over heads."""

import os
from functools import cache

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import keras

if keras.backend.backend() != "jax":
    raise ImportError(f"Keras runs on {keras.backend.backend()} here; set KERAS_BACKEND=jax")


@cache
def _layer(F, H, dtype):
    options = {"return_sequences": True, "return_state": True, "reset_after": False, "use_bias": False, "dtype": dtype}
    layer = keras.layers.GRU(H, **options)
    layer.build((1, 1, F))
    return layer


def gru_layer(x, into, weight, forget_weight, reset_weight, h0=None):
    """``x (B, S, N, F)``, projections ``into (N, 3, F, H)`` of reset, forget gate, candidate → states, last one."""
    _, _, F, H = into.shape
    layer = _layer(F, H, str(x.dtype))
    # Its columns are update (the forget gate), reset and candidate.
    columns = jnp.concatenate([into[:, 1], into[:, 0], into[:, 2]], -1)
    kernels = columns, jnp.concatenate([forget_weight, reset_weight, weight], -1)
    fixed = [variable.value for variable in layer.non_trainable_variables]

    def one_head(kernels, x, h0):
        return layer.stateless_call(list(kernels), fixed, x, initial_state=h0)[0]

    return jax.vmap(one_head, (0, 2, None if h0 is None else 1), (2, 1))(kernels, x, h0)


def gru(input, weight, forget_input, forget_weight, reset_input, reset_weight, input_state=None, **unserved):
    H, inputs, weights = weight.shape[-1], (reset_input, forget_input, input), (weight, forget_weight, reset_weight)
    for refused, reason in (
        (unserved, ", ".join(unserved)),
        (input.shape[1] == 0, "sequences without steps"),
        (len({x.dtype for x in (*inputs, *weights)}) > 1, "arrays of several dtypes"),
        (input_state is not None and input_state.dtype != input.dtype, "a state of another dtype"),
    ):
        if refused:
            raise NotImplementedError(f"it does not support {reason}")
    N = max(*(x.shape[2] for x in inputs), *(w.shape[0] for w in weights))
    # Beyond 1e4 a gate is shut or open to the last bit, and no zero of the identity below meets an infinity.
    x = jnp.concatenate([jnp.repeat(x, N // x.shape[2], 2) for x in inputs], -1).clip(-1e4, 1e4)
    weights = [jnp.repeat(w, N // w.shape[0], 0) for w in weights]
    # The gates' inputs are projected already: each takes its part of x as it is.
    into = jnp.eye(3 * H, dtype=x.dtype).reshape(3 * H, 3, H).swapaxes(0, 1)
    return gru_layer(x, jnp.broadcast_to(into, (N, *into.shape)), *weights, input_state)
