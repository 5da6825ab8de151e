"""The definition of the mLSTM as a `jax.lax.scan`, differentiated by JAX through everything that it computes.

The counterpart of `mlstm_torch`: see there for what is remarkable about it.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

LARGEST_M = 64.0
Normalise = Callable[[jax.Array, jax.Array], jax.Array]


class State(NamedTuple):
    C: jax.Array
    n: jax.Array
    m: jax.Array


def divide(numerator: jax.Array, normaliser: jax.Array) -> jax.Array:
    return numerator / normaliser


def divide_by_constant(numerator: jax.Array, normaliser: jax.Array) -> jax.Array:
    """A wrong gradient that public kernels have: the normaliser is taken for a constant."""
    return numerator / jax.lax.stop_gradient(normaliser)


def log_sigmoid(f: jax.Array) -> jax.Array:
    """``log σ(f)``. `jax.nn.log_sigmoid` has no gradient at ±∞."""
    infinite = jnp.isinf(f)
    return jnp.where(infinite, jnp.minimum(f, 0.0), jax.nn.log_sigmoid(jnp.where(infinite, 0.0, f)))


def weight(x: jax.Array, m: jax.Array) -> jax.Array:
    """``exp(x − m)``, and 0 where x is −∞, whatever m is."""
    nothing = jnp.isneginf(x)
    return jnp.where(nothing, 0.0, jnp.exp(jnp.where(nothing, 0.0, x) - jnp.where(nothing, 0.0, m)))


def frozen(m: jax.Array) -> jax.Array:
    """1, whose derivative holds m at its value in what is measured in units of ``exp(m)``."""
    finite = jnp.where(jnp.isneginf(m), 0.0, m)
    return jnp.exp(jax.lax.stop_gradient(finite) - finite)


def floor_of(m: jax.Array) -> jax.Array:
    """``exp(−min(m, 64))``; where that overflows, an infinity without a gradient."""
    overflows = m < -jnp.log(jnp.finfo(m.dtype).max)
    small = jnp.minimum(jnp.where(overflows, 0.0, m), LARGEST_M)
    floor = jnp.where(m > LARGEST_M, jnp.exp(-LARGEST_M).astype(m.dtype) * frozen(m), jnp.exp(-small))
    return jnp.where(overflows, jnp.inf, floor)


def write(state: State, k: jax.Array, v: jax.Array, i: jax.Array, a: jax.Array) -> State:
    """The memory after a step."""
    carried = a + state.m
    m = jnp.where(carried >= i, carried, i)
    decay, gain = weight(carried, m)[..., None], weight(i, m)[..., None]
    C = decay[..., None] * state.C + (gain * k)[..., :, None] * v[..., None, :]
    return State(C, decay * state.n + gain * k, m)


def read(state: State, q: jax.Array, eps: float, normalise: Normalise) -> jax.Array:
    """What a query finds, divided by the normaliser."""
    q = q / q.shape[-1] ** 0.5
    exactly = partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    numerator = exactly("bnkv,bnk->bnv", state.C, q)
    nu = jnp.abs(exactly("bnk,bnk->bn", state.n, q))
    floor = floor_of(state.m)
    normaliser = jnp.where(nu > floor, nu, floor) + eps * frozen(state.m)
    return normalise(numerator, normaliser[..., None])


def mlstm(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    i: jax.Array,
    f: jax.Array,
    *,
    initial_state: tuple | None = None,
    return_state: bool = False,
    chunk_size: int | None = None,
    eps: float = 0.0,
    normalise: Normalise = divide,
    detach_m: bool = False,
) -> jax.Array | tuple[jax.Array, State]:
    """`mlstm` of the contract for dense calls; the arguments are those of `mlstm_torch.mlstm`."""
    dtype = v.dtype
    wide = jnp.float64 if dtype == jnp.float64 else jnp.float32
    tokens = (q.astype(wide), k.astype(wide), v.astype(wide), i.astype(wide), log_sigmoid(f.astype(wide)))
    B, _, N, K = q.shape
    if initial_state is None:
        state = State(jnp.zeros((B, N, K, v.shape[-1]), wide), jnp.zeros((B, N, K), wide), jnp.zeros((B, N), wide))
    else:
        state = State(*initial_state)

    def step(state: State, token: tuple[jax.Array, ...]) -> tuple[State, jax.Array]:
        q, k, v, i, a = token
        state = write(state, k, v, i, a)
        if detach_m:
            state = state._replace(m=jax.lax.stop_gradient(state.m))
        return state, read(state, q, eps, normalise)

    state, h = jax.lax.scan(step, state, tuple(jnp.moveaxis(x, 1, 0) for x in tokens))
    h = jnp.moveaxis(h, 0, 1).astype(dtype)
    return (h, state) if return_state else h
