"""A trained model as a decoder in JAX."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from examples.language_model.kinds import Kind, Values
from examples.language_model.sampling import Decoder


def decoder(kind: Kind, values: Values) -> Decoder:
    """The decoder of a model with these parameters, compiled once for each prompt length and once for one byte."""
    model = kind.flax(jnp.float32)
    params = {"params": jax.tree.map(jnp.asarray, kind.to_flax(values))}

    @jax.jit
    def run(params: Any, tokens: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        logits, state = model.apply(params, tokens[None], state, return_state=True)
        return logits[0, -1], state

    def decode(tokens: np.ndarray, state: Any) -> tuple[np.ndarray, Any]:
        logits, state = run(params, tokens, state)
        return np.asarray(logits), state

    return decode
