"""The definition of the mLSTM in JAX, differentiated through everything that it computes.

The counterpart of `mlstm_torch`: see there for what is remarkable about it. `mlstm` is a `jax.lax.scan`,
`mlstm_parallel` computes all steps at once, `mlstm_associative` in the logarithm of S levels.
"""

import math
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
    overflows = m < -math.log(jnp.finfo(m.dtype).max)
    free = ~overflows & (m <= LARGEST_M)
    floor = jnp.where(free, jnp.exp(-jnp.where(free, m, LARGEST_M)), math.exp(-LARGEST_M) * frozen(m))
    return jnp.where(overflows, jnp.inf, floor)


def write(state: State, k: jax.Array, v: jax.Array, i: jax.Array, a: jax.Array, detach_m: bool = False) -> State:
    """The memory after a step."""
    carried = a + state.m
    m = jnp.where(carried >= i, carried, i)
    if detach_m:
        m = jax.lax.stop_gradient(m)
    decay, gain = weight(carried, m)[..., None], weight(i, m)[..., None]
    C = decay[..., None] * state.C + (gain * k)[..., :, None] * v[..., None, :]
    return State(C, decay * state.n + gain * k, m)


def normaliser_of(nu: jax.Array, m: jax.Array, eps: float, floor_is_one: bool) -> jax.Array:
    """``max(|ν|, floor) + eps``, with a floor of ``exp(−min(m, 64))`` or of 1."""
    floor, size = frozen(m) if floor_is_one else floor_of(m), jnp.abs(nu)
    return jnp.where(size > floor, size, floor) + eps * frozen(m)


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
    floor_is_one: bool = False,
    normalise: Normalise = divide,
    detach_m: bool = False,
) -> jax.Array | tuple[jax.Array, State]:
    """`mlstm` of the contract for dense calls; the arguments are those of `mlstm_torch.mlstm`."""
    dtype = v.dtype
    q, k, v, i, a, state = _widened(q, k, v, i, f, initial_state)

    def step(state: State, token: tuple[jax.Array, ...]) -> tuple[State, jax.Array]:
        q, k, v, i, a = token
        state = write(state, k, v, i, a, detach_m)
        q_hat = q / q.shape[-1] ** 0.5
        nu = _einsum("bnk,bnk->bn", state.n, q_hat)
        normaliser = normaliser_of(nu, state.m, eps, floor_is_one)[..., None]
        return state, normalise(_einsum("bnkv,bnk->bnv", state.C, q_hat), normaliser)

    state, h = jax.lax.scan(step, state, tuple(jnp.moveaxis(x, 1, 0) for x in (q, k, v, i, a)))
    h = jnp.moveaxis(h, 0, 1).astype(dtype)
    return (h, state) if return_state else h


def mlstm_associative(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    i: jax.Array,
    f: jax.Array,
    *,
    initial_state: tuple | None = None,
    return_state: bool = False,
    eps: float = 0.0,
    floor_is_one: bool = False,
) -> jax.Array | tuple[jax.Array, State]:
    """Stabilisers by one `jax.lax.associative_scan`, memories by another; the arguments are those of `mlstm`."""
    dtype = v.dtype
    q, k, v, i, a, initial = _widened(q, k, v, i, f, initial_state)
    if not q.shape[1]:
        return (v.astype(dtype), initial) if return_state else v.astype(dtype)

    def later(early: tuple[jax.Array, jax.Array], late: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        (a, m), (b, n) = early, late
        return a + b, jnp.where(b + m >= n, b + m, n)

    decays = jnp.concatenate([jnp.zeros_like(initial.m)[:, None], a], axis=1)
    m = jax.lax.associative_scan(later, (decays, jnp.concatenate([initial.m[:, None], i], axis=1)), axis=1)[1]
    decay, gain = weight(a + m[:, :-1], m[:, 1:]), weight(i, m[:, 1:])
    values = jnp.concatenate([v, jnp.ones_like(v[..., :1])], axis=-1)
    start = jnp.concatenate([initial.C, initial.n[..., None]], axis=-1)[:, None]
    writes = (gain[..., None] * k)[..., :, None] * values[..., None, :]

    def joined(early: tuple[jax.Array, jax.Array], late: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return early[0] * late[0], late[0] * early[1] + late[1]

    weights = jnp.concatenate([jnp.ones_like(initial.m)[:, None], decay], axis=1)[..., None, None]
    held = jax.lax.associative_scan(joined, (weights, jnp.concatenate([start, writes], axis=1)), axis=1)[1]
    found = _einsum("bsnkv,bsnk->bsnv", held[:, 1:], q / q.shape[-1] ** 0.5)
    h = found[..., :-1] / normaliser_of(found[..., -1], m[:, 1:], eps, floor_is_one)[..., None]
    state = State(held[:, -1, ..., :-1], held[:, -1, ..., -1], m[:, -1])
    return (h.astype(dtype), state) if return_state else h.astype(dtype)


def mlstm_parallel(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    i: jax.Array,
    f: jax.Array,
    *,
    initial_state: tuple | None = None,
    return_state: bool = False,
    eps: float = 0.0,
    floor_is_one: bool = False,
    detach_m: bool = False,
) -> jax.Array | tuple[jax.Array, State]:
    """All steps at once, with a matrix of weights (S, S); the arguments are those of `mlstm`."""
    dtype = v.dtype
    q, k, v, i, a, state = _widened(q, k, v, i, f, initial_state)
    S = q.shape[1]
    if not S:
        return (v.astype(dtype), state) if return_state else v.astype(dtype)
    q, k, v, i, a = (jnp.moveaxis(x, 1, 2) for x in (q / q.shape[-1] ** 0.5, k, v, i, a))
    lower = jnp.tri(S, S, dtype=bool)
    decays = jnp.cumsum(jnp.where(jnp.tri(S, S, -1, dtype=bool), a[..., :, None], 0.0), axis=-2)
    D = jnp.where(lower, decays + i[..., None, :], -jnp.inf)
    carried, written = jnp.cumsum(a, axis=-1) + state.m[..., None], D.max(axis=-1)
    m = jnp.where(carried >= written, carried, written)
    if detach_m:
        m = jax.lax.stop_gradient(m)
    E, e = weight(D, m[..., None]), weight(carried, m)
    P = _einsum("bntk,bnjk->bntj", q, k) * E
    numerator = _einsum("bntj,bnjv->bntv", P, v) + e[..., None] * _einsum("bntk,bnkv->bntv", q, state.C)
    nu = P.sum(axis=-1) + e * _einsum("bntk,bnk->bnt", q, state.n)
    h = jnp.moveaxis(numerator / normaliser_of(nu, m, eps, floor_is_one)[..., None], 2, 1).astype(dtype)
    last = E[..., -1, :, None] * k
    C = e[..., -1, None, None] * state.C + _einsum("bnjk,bnjv->bnkv", last, v)
    state = State(C, e[..., -1, None] * state.n + last.sum(axis=-2), m[..., -1])
    return (h, state) if return_state else h


_einsum = partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)


def _widened(
    q: jax.Array, k: jax.Array, v: jax.Array, i: jax.Array, f: jax.Array, initial_state: tuple | None
) -> tuple:
    """The arguments in the accumulation dtype, log forget gates, and the initial state."""
    wide = jnp.float64 if v.dtype == jnp.float64 else jnp.float32
    q, k, v, i, f = (x.astype(wide) for x in (q, k, v, i, f))
    B, _, N, K = q.shape
    zeros = (jnp.zeros((B, N, K, v.shape[-1]), wide), jnp.zeros((B, N, K), wide), jnp.zeros((B, N), wide))
    return q, k, v, i, log_sigmoid(f), State(*(initial_state or zeros))
