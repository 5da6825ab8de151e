"""``keras.layers.GRU(reset_after=False)`` on Keras' JAX backend, mapped over heads."""

import os
from typing import Any

from benchmarks.cases import Case
from benchmarks.contenders import Contender, Function, UnavailableError, imported


def _load(case: Case, _: Any) -> Function:
    os.environ.setdefault("KERAS_BACKEND", "jax")
    keras, jax = imported("keras"), imported("jax")
    if keras.backend.backend() != "jax":
        raise UnavailableError(f"Keras runs on {keras.backend.backend()} here; set KERAS_BACKEND=jax")
    jnp = jax.numpy
    layer = keras.layers.GRU(case.K, return_sequences=True, reset_after=False, use_bias=False, dtype=case.dtype)
    layer.build((case.B, case.S, case.K))

    def one_head(kernels: Any, x: Any) -> Any:
        return layer.stateless_call(list(kernels), [v.value for v in layer.non_trainable_variables], x)[0]

    def gru(
        x: Any,
        input_projection: Any,
        forget_projection: Any,
        reset_projection: Any,
        weight: Any,
        forget_weight: Any,
        reset_weight: Any,
    ) -> tuple[Any]:
        kernels = (
            jnp.concatenate([forget_projection, reset_projection, input_projection], -1),
            jnp.concatenate([forget_weight, reset_weight, weight], -1),
        )
        return (jax.vmap(one_head, in_axes=(0, 2), out_axes=2)(kernels, x),)

    return gru


CONTENDERS = [Contender("keras.layers.GRU", "gru", "jax", _load)]
