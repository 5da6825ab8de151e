"""Gate functions that stay exact and finite for preactivations from −∞ to +∞, and sums of log gates."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jax_impl._arrays import is_symbolic
from jax_impl._mesh_axes import vary_like

_MOST_ROWS = 128
"""Maximum number of steps of a matrix that a CPU sums row by row."""


def log_sigmoid(x: jax.Array) -> jax.Array:
    """``log σ(x) = min(x, 0) − log(1 + exp(−|x|))``; −∞ at −∞, 0 at +∞."""
    return jnp.minimum(x, 0) - jnp.log1p(jnp.exp(-jnp.abs(x)))


def sigmoid(x: jax.Array) -> jax.Array:
    """``σ(x)``, with full relative precision even where it is close to 0."""
    return jnp.exp(log_sigmoid(x))


def finite_stabiliser(m: jax.Array) -> jax.Array:
    """An empty memory's m of −∞ as a finite number: −∞ less this is still −∞, and its weight is 0."""
    return jnp.maximum(m, jnp.finfo(m.dtype).min)


def stabilised_decay(a: jax.Array, m_before: jax.Array, m: jax.Array) -> jax.Array:
    """``a + m_before − m``: the log of what is left of a memory, held in units of exp(m) before the step and after it.

    The sum is rounded where a or m is large, and what it lost (Knuth's two-sum gives it exactly) is added again.
    """
    total = a + m_before
    rest = total - a
    lost = (a - (total - rest)) + (m_before - rest)
    return (total - finite_stabiliser(m)) + jnp.where(jnp.isfinite(lost), lost, 0)


def forget_matrix(a: jax.Array) -> jax.Array:
    """``F[t,j] = Σ_{j<s≤t} a_s`` for t ≥ j, −∞ above the diagonal: ``(..., S)`` → ``(..., S, S)``."""
    return log_weights(a, vary_like(jnp.zeros(a.shape, a.dtype), a))


def log_weights(a: jax.Array, i: jax.Array) -> jax.Array:
    """``F[t,j] + i_j`` with the `forget_matrix` F of a: ``(..., S)`` each → ``(..., S, S)``.

    Row by row, i is read from memory; added to F it would be computed again for every row.
    """
    t, j = _steps(a.shape[-1])

    def by_rows(x: tuple[jax.Array, jax.Array]) -> jax.Array:
        a, i = x

        def row(sums: jax.Array, x: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            sums = jnp.where(j[0] < x[1], sums + x[0][..., None], i)
            return sums, sums

        _, sums = jax.lax.scan(row, i, (jnp.moveaxis(a, -1, 0), t[:, 0]))
        return jnp.moveaxis(sums, 0, -2)

    def whole(x: tuple[jax.Array, jax.Array]) -> jax.Array:
        a, i = x
        return jnp.cumsum(jnp.where(t > j, a[..., :, None], 0), axis=-2, dtype=a.dtype) + i[..., None, :]

    return jnp.where(t >= j, _by_rows_on_a_cpu(by_rows, whole, (a, i)), -jnp.inf)


def running_largest(a: jax.Array, i: jax.Array) -> jax.Array:
    """``max_{j≤t} (Σ_{j<s≤t} a_s + i_j)`` over the last axis."""

    def by_steps(x: tuple[jax.Array, jax.Array]) -> jax.Array:
        def step(largest: jax.Array, x: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            largest = jnp.maximum(largest + x[0], x[1])
            return largest, largest

        start = vary_like(jnp.full(x[1].shape[:-1], -jnp.inf, x[1].dtype), x[1])
        _, largest = jax.lax.scan(step, start, (jnp.moveaxis(x[0], -1, 0), jnp.moveaxis(x[1], -1, 0)))
        return jnp.moveaxis(largest, 0, -1)

    def in_sweeps(x: tuple[jax.Array, jax.Array]) -> jax.Array:
        (a, i), reach = x, 1
        while reach < i.shape[-1]:
            earlier = [(0, 0)] * (i.ndim - 1) + [(reach, 0)]
            i = jnp.maximum(i, a + jnp.pad(i[..., :-reach], earlier, constant_values=-jnp.inf))
            a = a + jnp.pad(a[..., :-reach], earlier)
            reach *= 2
        return i

    return i if i.shape[-1] == 1 else jax.lax.platform_dependent((a, i), cpu=by_steps, default=in_sweeps)


def forget_matrix_gradient(W: jax.Array) -> jax.Array:
    """Gradient of the log gates, given the gradient W of their `forget_matrix`, ``(..., S, S)`` → ``(..., S)``.

    It sums the contributions that cross each step, ``y_t = Σ_{s≥t, j<t} W[s,j]``, without any subtraction, and is
    therefore exactly 0 where nothing crosses.
    """
    return log_weights_gradient(W)[0]


def log_weights_gradient(W: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gradients of a and i, given the gradient W of their `log_weights`: `forget_matrix_gradient` and column sums."""
    s, t = _steps(W.shape[-1])

    def by_rows(W: jax.Array) -> tuple[jax.Array, jax.Array]:
        def row(sums: jax.Array, x: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            sums += x[0]
            return sums, jnp.sum(jnp.where(t[0] < x[1], sums, 0), axis=-1)

        start = vary_like(jnp.zeros(W.shape[:-1], W.dtype), W)
        sums, y = jax.lax.scan(row, start, (jnp.moveaxis(W, -2, 0), s[:, 0]), reverse=True)
        return jnp.moveaxis(y, 0, -1), sums

    def whole(W: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.sum(jnp.where(s >= t, sum_before(W), 0), axis=-2), jnp.sum(W, axis=-2)

    return _by_rows_on_a_cpu(by_rows, whole, W)


def _by_rows_on_a_cpu(by_rows: Callable[[Any], Any], whole: Callable[[Any], Any], x: Any) -> Any:
    """``by_rows(x)`` on a CPU, whose cache holds a row; else ``whole(x)``, which passes over the matrix log S times.

    With many steps ``whole`` is used everywhere, because its pairwise sums have smaller rounding errors; so it is with
    a symbolic number of steps, which may be many.
    """
    S = jax.tree.leaves(x)[0].shape[-1]
    return whole(x) if is_symbolic(S) or S > _MOST_ROWS else jax.lax.platform_dependent(x, cpu=by_rows, default=whole)


def sum_before(x: jax.Array) -> jax.Array:
    """``y_t = Σ_{s<t} x_s`` over the last axis."""
    shifted = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(1, 0)])[..., : x.shape[-1]]
    return jnp.cumsum(shifted, axis=-1, dtype=x.dtype)


def sum_from(x: jax.Array) -> jax.Array:
    """``y_t = Σ_{s≥t} x_s`` over the last axis."""
    return jax.lax.cumsum(x, axis=x.ndim - 1, reverse=True)


def _steps(S: int) -> tuple[jax.Array, jax.Array]:
    """Row and column indices of an ``S × S`` matrix, ready to broadcast."""
    return jnp.arange(S)[:, None], jnp.arange(S)[None, :]
