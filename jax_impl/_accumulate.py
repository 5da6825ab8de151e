"""Gradient accumulation: the gradient of a large batch, computed from minibatches that fit in memory.

Source: xlstm_jax, distributed.single_gpu.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jax_impl._arrays import JAX, accumulation, check_key
from jax_impl._mesh_axes import vary_to, varying_axes
from reference.arguments import check_alike, check_batch, check_flag, check_loss, check_params


def accumulate_gradients(
    state: Any, batch: Any, rng: jax.Array, num_minibatches: int, loss_fn: Callable, use_scan: bool = False
) -> tuple[Any, Any, Any]:
    """Mean gradient, summed metrics and stacked mutable variables over minibatches.

    With ``L_b`` the loss of minibatch b of n: the gradients are ``(1/n) Σ_b ∇L_b``, the metrics are summed over b, and
    the mutable variables are stacked on a new leading axis. Works under ``jit`` and ``shard_map``.

    Args:
        state: an object with ``params`` (a pytree of arrays) and ``apply_fn``.
        batch: a pytree of arrays that share one leading axis ``B``; minibatch b is the b-th block of ``B/n`` rows.
        rng: a key of either style; minibatch b gets ``jax.random.split(rng, n)[b]``.
        num_minibatches: n, which divides B.
        loss_fn: ``(params, apply_fn, minibatch, rng) → (loss, (metrics, mutable))``; mutable may be None.
        use_scan: use `accumulate_gradients_scan`, which compiles `loss_fn` only once; this does not change the values.

    Returns:
        ``(gradients, metrics, mutable)``. Gradients are summed in float32 at least; each has the dtype of its
        parameter. Metrics have the dtype of their sum: float32 at least, and for integers and booleans the widest
        integers of JAX; integers beyond its range become the end of the range.

    Raises:
        TypeError: a leaf of `batch` is not an array, a parameter is not a floating-point array, or `loss_fn` returns
            anything else, such as an integer loss.
        ValueError: `num_minibatches` does not divide the batch, leading axes differ, the loss is not a scalar, or
            metrics or mutable variables differ between minibatches in their names or shapes.
    """
    accumulate = _scan if check_flag("accumulate_gradients", "use_scan", use_scan) else _loop
    return accumulate("accumulate_gradients", state, batch, rng, num_minibatches, loss_fn)


def accumulate_gradients_loop(
    state: Any, batch: Any, rng: jax.Array, num_minibatches: int, loss_fn: Callable
) -> tuple[Any, Any, Any]:
    """`accumulate_gradients` as a Python loop, which ``jit`` unrolls.

    Arguments, result and errors are those of `accumulate_gradients`.
    """
    return _loop("accumulate_gradients_loop", state, batch, rng, num_minibatches, loss_fn)


def _loop(
    function: str, state: Any, batch: Any, rng: jax.Array, num_minibatches: int, loss_fn: Callable
) -> tuple[Any, Any, Any]:
    minibatches = _split(batch, num_minibatches, function)
    check_key(function, rng)
    check_params(JAX, function, _leaves(state.params))
    rngs = jax.random.split(rng, num_minibatches)
    gradients, metrics, mutables, first = None, None, [], None
    for b in range(num_minibatches):
        minibatch = jax.tree.map(lambda x, b=b: x[b], minibatches)
        gradient, metric, mutable = _gradient(function, state, loss_fn, minibatch, rngs[b])
        parts = _leaves((metric, mutable))
        first = parts if first is None else first
        check_alike(JAX, function, first, parts, b)
        gradients = gradient if gradients is None else jax.tree.map(jnp.add, gradients, gradient)
        metrics = metric if metrics is None else jax.tree.map(_sum, metrics, metric)
        mutables.append(mutable)
    return _mean(state, gradients, num_minibatches), metrics, jax.tree.map(lambda *x: jnp.stack(x), *mutables)


def accumulate_gradients_scan(
    state: Any, batch: Any, rng: jax.Array, num_minibatches: int, loss_fn: Callable
) -> tuple[Any, Any, Any]:
    """`accumulate_gradients` as a ``lax.scan``, compiled once for any number of minibatches.

    Arguments, result and errors are those of `accumulate_gradients`.
    """
    return _scan("accumulate_gradients_scan", state, batch, rng, num_minibatches, loss_fn)


def _scan(
    function: str, state: Any, batch: Any, rng: jax.Array, num_minibatches: int, loss_fn: Callable
) -> tuple[Any, Any, Any]:
    minibatches = _split(batch, num_minibatches, function)
    check_key(function, rng)
    check_params(JAX, function, _leaves(state.params))
    rngs = jax.random.split(rng, num_minibatches)

    def of_minibatch(x: tuple) -> tuple[Any, Any, Any]:
        return _gradient(function, state, loss_fn, *x)

    def step(sums: Any, x: tuple) -> tuple[Any, Any]:
        gradient, metric, mutable = of_minibatch(x)
        gradients, metrics = sums
        return (jax.tree.map(jnp.add, gradients, gradient), jax.tree.map(_sum, metrics, metric)), mutable

    first = jax.tree.map(lambda x: x[0], (minibatches, rngs))
    *shapes, _ = jax.eval_shape(of_minibatch, first)
    zeros = jax.tree.map(lambda x: vary_to(varying_axes(x), jnp.zeros(x.shape, x.dtype)), tuple(shapes))
    (gradients, metrics), mutable = jax.lax.scan(step, zeros, (minibatches, rngs))
    return _mean(state, gradients, num_minibatches), metrics, mutable


def _split(batch: Any, num_minibatches: int, function: str) -> Any:
    """The batch with a new leading axis of minibatches, before the axis of rows."""
    size = check_batch(JAX, _leaves(batch), num_minibatches, function)
    return jax.tree.map(lambda x: jnp.reshape(x, (num_minibatches, size, *x.shape[1:])), batch)


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _gradient(function: str, state: Any, loss_fn: Callable, minibatch: Any, rng: jax.Array) -> tuple[Any, Any, Any]:
    """Gradient (in float32 at least), metrics and mutable variables of one minibatch."""

    def loss(*args: Any) -> tuple[Any, Any]:
        value, *parts = check_loss(JAX, function, loss_fn(*args), _leaves)
        return value, jax.tree.map(jnp.asarray, tuple(parts))

    differentiated = jax.grad(loss, has_aux=True)
    gradient, (metrics, mutable) = differentiated(state.params, state.apply_fn, minibatch, rng)
    return jax.tree.map(_wide, gradient), jax.tree.map(_summable, metrics), mutable


def _wide(x: jax.Array) -> jax.Array:
    """A gradient or metric in float32 at least."""
    return x.astype(accumulation(x))


def _summable(metric: jax.Array) -> jax.Array:
    """A metric in the dtype of its sum: float32 at least, and JAX's widest one for integers and booleans."""
    if not (metric.dtype == bool or jnp.issubdtype(metric.dtype, jnp.integer)):
        return _wide(metric)
    signed, unsigned = (jax.dtypes.canonicalize_dtype(widest) for widest in (jnp.int64, jnp.uint64))
    return metric if metric.dtype == unsigned else metric.astype(signed)


def _sum(total: jax.Array, metric: jax.Array) -> jax.Array:
    """The sum; integers beyond the range become the end of the range."""
    dtype = jnp.promote_types(total.dtype, metric.dtype)
    total, metric = total.astype(dtype), metric.astype(dtype)
    added = total + metric
    if not jnp.issubdtype(dtype, jnp.integer):
        return added
    ends = jnp.iinfo(dtype)
    if jnp.issubdtype(dtype, jnp.unsignedinteger):
        return jnp.where(added < total, jnp.array(ends.max, dtype), added)
    beyond = ((added ^ total) & (added ^ metric)) < 0
    return jnp.where(beyond, jnp.where(metric < 0, ends.min, ends.max), added)


def _mean(state: Any, gradients: Any, num_minibatches: int) -> Any:
    return jax.tree.map(lambda p, g: (g / num_minibatches).astype(p.dtype), state.params, gradients)
