"""The definition of the sLSTM as a `jax.lax.scan`, differentiated by JAX; the counterpart of `slstm_torch`."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tests.suite.definitions.gru_jax import clipped_gradient
from tests.suite.definitions.mlstm_jax import log_sigmoid, weight


class State(NamedTuple):
    c: jax.Array
    n: jax.Array
    m: jax.Array
    h: jax.Array


def slstm(
    z: jax.Array,
    i: jax.Array,
    f: jax.Array,
    o: jax.Array,
    weight_z: jax.Array,
    weight_i: jax.Array,
    weight_f: jax.Array,
    weight_o: jax.Array,
    *,
    initial_state: tuple,
    return_state: bool = False,
    forget_gate: str = "sigmoid",
    gradient_clipping: float | None = None,
) -> jax.Array | tuple[jax.Array, State]:
    """`slstm` of the contract for dense calls in the accumulation dtype."""
    weights = (weight_z, weight_i, weight_f, weight_o)
    times = partial(jnp.einsum, "bni,nij->bnj", precision=jax.lax.Precision.HIGHEST)

    def step(state: State, token: tuple[jax.Array, ...]) -> tuple[State, jax.Array]:
        u_z, u_i, u_f, u_o = (x + times(state.h, W) for x, W in zip(token, weights, strict=True))
        a = u_f if forget_gate == "exp" else log_sigmoid(u_f)
        carried = a + state.m
        m = jnp.where(carried >= u_i, carried, u_i)
        decay, gain = weight(carried, m), weight(u_i, m)
        c, n = decay * state.c + gain * jnp.tanh(u_z), decay * state.n + gain
        nothing = n == 0
        h = jnp.where(nothing, 0.0, jax.nn.sigmoid(u_o) * c / jnp.where(nothing, 1.0, n))
        return State(c, n, m, h if gradient_clipping is None else clipped_gradient(h, abs(gradient_clipping))), h

    last, y = jax.lax.scan(step, State(*initial_state), tuple(jnp.moveaxis(x, 1, 0) for x in (z, i, f, o)))
    y = jnp.moveaxis(y, 0, 1)
    return (y, last) if return_state else y
