"""Gradient accumulation: the gradient of a large batch, computed from minibatches that fit in memory.

Source: xlstm_jax, distributed.single_gpu.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._arrays import JAX, accumulation, check_key
from jax_impl._mesh_axes import vary_to, varying_axes
from reference.arguments import check_alike, check_batch, check_flag, check_loss, check_params, check_weights


def accumulate_gradients(
    state: Any,
    batch: Any,
    rng: jax.Array,
    num_minibatches: int,
    loss_fn: Callable,
    use_scan: bool = False,
    *,
    weights: Any = None,
    total_weight: Any = None,
) -> tuple[Any, Any, Any]:
    """Mean gradient, summed metrics and stacked mutable variables over minibatches.

    With ``L_b`` the loss of minibatch b of n: the gradients are ``(1/n) Σ_b ∇L_b``, or ``(1/W) Σ_b w_b ∇L_b`` with
    `weights` w and their sum W; the metrics are summed over b, and the mutable variables are stacked on a new leading
    axis. If L_b is a mean over w_b tokens, the gradient with weights is that of the mean over all tokens, which the
    mean of the minibatches' means is not if the w_b differ.

    Works under ``jit`` and ``shard_map``. Inside ``shard_map``, where the gradient of a replicated parameter is the sum
    over the devices, they are added up once, in float32 at least, after the last minibatch.

    Args:
        state: an object with ``params`` (a pytree of arrays) and ``apply_fn``.
        batch: a pytree of arrays that share one leading axis ``B``; minibatch b is the b-th block of ``B/n`` rows.
        rng: a key of either style; minibatch b gets ``jax.random.split(rng, n)[b]``.
        num_minibatches: n, which divides B.
        loss_fn: ``(params, apply_fn, minibatch, rng) → (loss, (metrics, mutable))``; mutable may be None.
        use_scan: use `accumulate_gradients_scan`, which compiles `loss_fn` only once; this does not change the values.
        weights: w, ``(n,)``, integers, float32 or float64, finite and at least 0: what each minibatch counts. One of
            weight 0 adds nothing, even if its gradient is not finite, as that of a mean over no tokens.
        total_weight: W, a positive number or scalar array; None means ``Σ_b w_b``. With minibatches on several devices
            it is the sum over all of them; the gradients of the devices then add up to that of all tokens.
            (Weights that are traced or on a GPU are not read: gradients are NaN where they should be refused.)

    Returns:
        ``(gradients, metrics, mutable)``. Gradients are summed in float32 at least; each has the dtype of its
        parameter. Metrics have the dtype of their sum: float32 at least, and for integers and booleans the widest
        integers of JAX; integers beyond its range become the end of the range.

    Raises:
        TypeError: a leaf of `batch` is not an array, a parameter is not a floating-point array, weights are not such
            numbers, or `loss_fn` returns anything else, such as an integer loss.
        ValueError: `num_minibatches` does not divide the batch, leading axes differ, the loss is not a scalar, metrics
            or mutable variables differ between minibatches in their names or shapes, weights have another shape, are
            negative or not finite, or their sum is 0, or `total_weight` is given without `weights`.
    """
    accumulate = _scan if check_flag("accumulate_gradients", "use_scan", use_scan) else _loop
    return accumulate("accumulate_gradients", state, batch, rng, num_minibatches, loss_fn, weights, total_weight)


def accumulate_gradients_loop(
    state: Any,
    batch: Any,
    rng: jax.Array,
    num_minibatches: int,
    loss_fn: Callable,
    *,
    weights: Any = None,
    total_weight: Any = None,
) -> tuple[Any, Any, Any]:
    """`accumulate_gradients` as a Python loop, which ``jit`` unrolls.

    Arguments, result and errors are those of `accumulate_gradients`.
    """
    return _loop("accumulate_gradients_loop", state, batch, rng, num_minibatches, loss_fn, weights, total_weight)


def accumulate_gradients_scan(
    state: Any,
    batch: Any,
    rng: jax.Array,
    num_minibatches: int,
    loss_fn: Callable,
    *,
    weights: Any = None,
    total_weight: Any = None,
) -> tuple[Any, Any, Any]:
    """`accumulate_gradients` as a ``lax.scan``, compiled once for any number of minibatches.

    Arguments, result and errors are those of `accumulate_gradients`.
    """
    return _scan("accumulate_gradients_scan", state, batch, rng, num_minibatches, loss_fn, weights, total_weight)


class _Minibatch(NamedTuple):
    """The arrays of a minibatch, or of all minibatches on a new leading axis."""

    rows: Any
    rng: jax.Array
    share: jax.Array | None


def _loop(function: str, state: Any, *arguments: Any) -> tuple[Any, Any, Any]:
    step = _Step(function, state, *arguments)
    gradients, metrics, mutables, first = None, None, [], None
    for b in range(step.num_minibatches):
        gradient, metric, mutable = step.of_minibatch(step.minibatch(b))
        parts = _leaves((metric, mutable))
        first = parts if first is None else first
        check_alike(JAX, function, first, parts, b)
        gradients = gradient if gradients is None else jax.tree.map(jnp.add, gradients, gradient)
        metrics = metric if metrics is None else jax.tree.map(_sum, metrics, metric)
        mutables.append(mutable)
    return step.result(gradients, metrics, jax.tree.map(lambda *x: jnp.stack(x), *mutables))


def _scan(function: str, state: Any, *arguments: Any) -> tuple[Any, Any, Any]:
    step = _Step(function, state, *arguments)

    def add(sums: Any, minibatch: _Minibatch) -> tuple[Any, Any]:
        gradient, metric, mutable = step.of_minibatch(minibatch)
        gradients, metrics = sums
        return (jax.tree.map(jnp.add, gradients, gradient), jax.tree.map(_sum, metrics, metric)), mutable

    *shapes, _ = jax.eval_shape(step.of_minibatch, step.minibatch(0))
    zeros = jax.tree.map(lambda x: vary_to(varying_axes(x), jnp.zeros(x.shape, x.dtype)), tuple(shapes))
    (gradients, metrics), mutable = jax.lax.scan(add, zeros, step.minibatches)
    return step.result(gradients, metrics, mutable)


class _Step:
    """A checked call: its minibatches, the terms of one of them, and the results that are made of the sums.

    Inside ``shard_map``, parameters become varying over the axes that the loss varies over, so that no minibatch adds
    up gradients over the devices. That is done with the sums.
    """

    def __init__(
        self,
        function: str,
        state: Any,
        batch: Any,
        rng: jax.Array,
        num_minibatches: int,
        loss_fn: Callable,
        weights: Any,
        total_weight: Any,
    ) -> None:
        rows = _split(batch, num_minibatches, function)
        check_key(function, rng)
        check_params(JAX, function, _leaves(state.params))
        check_weights(JAX, function, weights, total_weight, num_minibatches)
        self.function, self.state, self.loss_fn, self.num_minibatches = function, state, loss_fn, num_minibatches
        shares = None if weights is None else _shares(jnp.asarray(weights), total_weight, state.params)
        self.minibatches = _Minibatch(rows, jax.random.split(rng, num_minibatches), shares)
        self.axes, self.types = frozenset[Any](), None
        if any(map(varying_axes, jax.tree.leaves((state.params, self.minibatches)))):
            first = self.minibatch(0)
            loss, self.types = jax.eval_shape(self._loss, state.params, first.rows, first.rng)
            self.axes = varying_axes(loss)
        self.params = jax.tree.map(partial(vary_to, self.axes), state.params)

    def minibatch(self, b: int) -> _Minibatch:
        return jax.tree.map(lambda x: x[b], self.minibatches)

    def of_minibatch(self, minibatch: _Minibatch) -> tuple[Any, Any, Any]:
        """The term of the gradient (in float32 at least), the metrics and the mutable variables of one minibatch."""
        differentiated = jax.grad(self._loss, has_aux=True)
        gradient, (metrics, mutable) = differentiated(self.params, minibatch.rows, minibatch.rng)
        gradient = jax.tree.map(_wide, gradient)
        if minibatch.share is not None:
            gradient = jax.tree.map(partial(_weighted, minibatch.share), gradient)
        return gradient, jax.tree.map(_summable, metrics), mutable

    def result(self, gradients: Any, metrics: Any, mutable: Any) -> tuple[Any, Any, Any]:
        """The mean gradient, and the sums and variables with the types that they have by the user's parameters."""
        gradients = jax.tree.map(self._mean, self.state.params, gradients)
        if self.types is not None:
            metrics, mutable = jax.tree.map(_varying_like, (metrics, mutable), self.types)
        return gradients, metrics, mutable

    def _loss(self, params: Any, *arguments: Any) -> tuple[Any, Any]:
        returned = self.loss_fn(params, self.state.apply_fn, *arguments)
        value, *parts = check_loss(JAX, self.function, returned, _leaves)
        return value, jax.tree.map(jnp.asarray, tuple(parts))

    def _mean(self, param: jax.Array, total: jax.Array) -> jax.Array:
        over = tuple(sorted(self.axes - varying_axes(param), key=str))
        mean = total / self.num_minibatches if self.minibatches.share is None else total
        return (jax.lax.psum(mean, over) if over else mean).astype(param.dtype)


def _varying_like(x: jax.Array, like: jax.ShapeDtypeStruct) -> jax.Array:
    """An array without the mesh axes over which it varies by its type alone: all devices have the same values."""
    surplus = tuple(sorted(varying_axes(x) - varying_axes(like), key=str))
    if not surplus:
        return x
    of_one = jnp.where(jax.lax.axis_index(surplus) == 0, x, jnp.zeros_like(x))
    return jax.lax.psum(of_one.astype(jnp.int32) if x.dtype == bool else of_one, surplus).astype(x.dtype)


def _weighted(share: jax.Array, gradient: jax.Array) -> jax.Array:
    """A term of the sum. It is no product where the share is 0: a mean over no tokens is NaN."""
    return jnp.where(share == 0, jnp.zeros_like(gradient), share.astype(gradient.dtype) * gradient)


def _shares(weights: jax.Array, total_weight: Any, params: Any) -> jax.Array:
    """The weight of each minibatch as a share of the total, in float32 at least. The sum need not be representable.

    Shares are NaN for weights that are not legal and were not read.
    """
    dtype = max(map(accumulation, jax.tree.leaves(params)), key=lambda dtype: dtype.itemsize, default=jnp.float32)
    # Scaled, no sum overflows, and the inverse by which XLA may multiply is a normal number.
    scale = 1 / (256 * weights.size)
    weights = weights.astype(dtype) * scale
    total = weights.sum() if total_weight is None else jnp.asarray(total_weight, dtype) * scale
    legal = jnp.all((weights >= 0) & jnp.isfinite(weights)) & (total > 0) & jnp.isfinite(total)
    return jnp.where(legal, weights / total, jnp.full_like(weights, jnp.nan))


def _split(batch: Any, num_minibatches: int, function: str) -> Any:
    """The batch with a new leading axis of minibatches, before the axis of rows."""
    size = check_batch(JAX, _leaves(batch), num_minibatches, function)
    return jax.tree.map(lambda x: jnp.reshape(x, (num_minibatches, size, *x.shape[1:])), batch)


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _wide(x: jax.Array) -> jax.Array:
    """A gradient or metric in float32 at least."""
    return x.astype(accumulation(x))


def _summable(metric: jax.Array) -> jax.Array:
    """A metric in the dtype of its sum: float32 at least, and JAX's widest one for integers and booleans."""
    if jnp.issubdtype(metric.dtype, jnp.complexfloating):
        return metric
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
