"""Gradient accumulation: the gradient of a large batch, from minibatches that fit (xlstm_jax, distributed.single_gpu).

NumPy cannot differentiate. The gradient of the loss, which is not part of this operation's law, therefore comes from
``value_and_grad``, by default central differences.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from reference._arrays import NUMPY
from reference._seeds import MINIBATCHES, derived_seed
from reference._tree import flatten_with_paths, tree_map
from reference.arguments import (
    check_alike,
    check_batch,
    check_flag,
    check_loss,
    check_params,
    check_seed,
    check_weights,
)


def split(rng: int, num: int) -> list[int]:
    """Derive ``num`` independent seeds from one; they differ from those of `fold_rng_over_axis`."""
    return [derived_seed(rng, MINIBATCHES, index) for index in range(num)]


def accumulate_gradients(
    state: Any,
    batch: Any,
    rng: int,
    num_minibatches: int,
    loss_fn: Callable,
    use_scan: bool = False,
    *,
    weights: np.ndarray | None = None,
    total_weight: Any = None,
    value_and_grad: Callable | None = None,
) -> tuple[Any, Any, Any]:
    """Mean gradient, summed metrics and stacked mutable variables over minibatches.

    With ``L_b`` the loss of minibatch b of n: the gradients are ``(1/n) Σ_b ∇L_b``, or ``(1/W) Σ_b w_b ∇L_b`` with
    `weights` w and their sum W; the metrics are summed over b, and the mutable variables are stacked on a new leading
    axis. If L_b is a mean over w_b tokens, the gradient with weights is that of the mean over all tokens, which the
    mean of the minibatches' means is not if the w_b differ.

    Args:
        state: an object with ``params`` (a pytree of arrays) and ``apply_fn``.
        batch: a pytree of arrays that share one leading axis ``B``; minibatch b is the b-th block of ``B/n`` rows.
        rng: an integer seed; minibatch b gets ``split(rng, n)[b]``.
        num_minibatches: n, which divides B.
        loss_fn: ``(params, apply_fn, minibatch, rng) → (loss, (metrics, mutable))``; mutable may be None.
        use_scan: use `accumulate_gradients_scan`; this does not change the values.
        weights: w, ``(n,)``, integers, float32 or float64, finite and at least 0: what each minibatch counts. One of
            weight 0 adds nothing, even if its gradient is not finite, as that of a mean over no tokens.
        total_weight: W, a positive number or scalar array; None means ``Σ_b w_b``. With minibatches on several devices
            it is the sum over all of them; the gradients of the devices then add up to that of all tokens.
        value_and_grad: turns `loss_fn` into a function that returns ``((loss, (metrics, mutable)), gradients)``; None
            means central differences.

    Returns:
        ``(gradients, metrics, mutable)``; a gradient has its parameter's dtype. Metrics have the dtype of their sum:
        float32 at least, and 64 bits for integers and booleans; integers beyond its range become the end of the range.

    Raises:
        TypeError: a leaf of `batch` is not an array, a parameter is not a floating-point array, `rng` is not an
            integer, `use_scan` is not True or False, weights are not such numbers, or `loss_fn` returns anything else,
            such as an integer loss.
        ValueError: `num_minibatches` does not divide the batch, leading axes differ, `rng` is negative, the loss is not
            a scalar, metrics or mutable variables differ between minibatches in their names or shapes, weights have
            another shape, are negative or not finite, or their sum is 0, or `total_weight` is given without `weights`.
    """
    accumulate = _scan if check_flag("accumulate_gradients", "use_scan", use_scan) else _loop
    weighting = _Weighting(weights, total_weight)
    return accumulate("accumulate_gradients", state, batch, rng, num_minibatches, loss_fn, weighting, value_and_grad)


def accumulate_gradients_loop(
    state: Any,
    batch: Any,
    rng: int,
    num_minibatches: int,
    loss_fn: Callable,
    *,
    weights: np.ndarray | None = None,
    total_weight: Any = None,
    value_and_grad: Callable | None = None,
) -> tuple[Any, Any, Any]:
    """`accumulate_gradients` as a loop that collects the results of all minibatches and reduces them at the end.

    Arguments, result and errors are those of `accumulate_gradients`.
    """
    function, weighting = "accumulate_gradients_loop", _Weighting(weights, total_weight)
    return _loop(function, state, batch, rng, num_minibatches, loss_fn, weighting, value_and_grad)


def accumulate_gradients_scan(
    state: Any,
    batch: Any,
    rng: int,
    num_minibatches: int,
    loss_fn: Callable,
    *,
    weights: np.ndarray | None = None,
    total_weight: Any = None,
    value_and_grad: Callable | None = None,
) -> tuple[Any, Any, Any]:
    """`accumulate_gradients` as a scan that carries running sums, so that it holds one minibatch's gradients at a time.

    Arguments, result and errors are those of `accumulate_gradients`.
    """
    function, weighting = "accumulate_gradients_scan", _Weighting(weights, total_weight)
    return _scan(function, state, batch, rng, num_minibatches, loss_fn, weighting, value_and_grad)


class _Weighting(NamedTuple):
    """The arguments that say what each minibatch counts."""

    weights: np.ndarray | None
    total: Any

    def weighted(self, b: int, gradients: Any) -> Any:
        """The term of minibatch b. It is no product where the weight is 0: a mean over no tokens is NaN."""
        if self.weights is None:
            return gradients
        weight = float(self.weights[b])
        return tree_map(lambda g: weight * g if weight else np.zeros_like(g), gradients)

    def divisor(self, num_minibatches: int) -> float:
        """The number by which the sum is divided."""
        if self.weights is None:
            return num_minibatches
        return float(np.sum(self.weights, dtype=np.float64) if self.total is None else self.total)


def _loop(function, state, batch, rng, num_minibatches, loss_fn, weighting, value_and_grad):
    results = list(_minibatches(state, batch, rng, num_minibatches, loss_fn, weighting, value_and_grad, function))
    gradients, given, mutables = zip(*results, strict=True)
    divisor = weighting.divisor(num_minibatches)
    metrics = [tree_map(_summable, each) for each in given]
    mean = tree_map(lambda p, *gs: (np.sum(gs, axis=0) / divisor).astype(p.dtype), state.params, *gradients)
    total = tree_map(lambda *ms: np.sum(ms, axis=0), *metrics)
    return mean, tree_map(_summed, total, given[-1]), tree_map(lambda *ms: np.stack(ms), *mutables)


def _scan(function, state, batch, rng, num_minibatches, loss_fn, weighting, value_and_grad):
    total, metrics_total, mutables = None, None, []
    given = None
    for gradients, given, mutable in _minibatches(
        state, batch, rng, num_minibatches, loss_fn, weighting, value_and_grad, function
    ):
        metrics = tree_map(_summable, given)
        total = gradients if total is None else tree_map(np.add, total, gradients)
        metrics_total = metrics if metrics_total is None else tree_map(np.add, metrics_total, metrics)
        mutables.append(mutable)
    divisor = weighting.divisor(num_minibatches)
    mean = tree_map(lambda p, g: (g / divisor).astype(p.dtype), state.params, total)
    return mean, tree_map(_summed, metrics_total, given), tree_map(lambda *ms: np.stack(ms), *mutables)


def _minibatches(state, batch, rng, num_minibatches, loss_fn, weighting, value_and_grad, function):
    """Yield terms of the sum of gradients in float64, metrics and mutable variables, one minibatch after the other."""
    size = check_batch(NUMPY, flatten_with_paths(batch), num_minibatches, function)
    seed = check_seed(function, rng)
    check_params(NUMPY, function, flatten_with_paths(state.params))
    check_weights(NUMPY, function, weighting.weights, weighting.total, num_minibatches)

    def loss(*args: Any) -> tuple[Any, Any]:
        value, *parts = check_loss(NUMPY, function, loss_fn(*args), flatten_with_paths)
        return value, tree_map(np.asarray, tuple(parts))

    differentiated = (value_and_grad or central_differences)(loss)
    first = None
    for b, of_minibatch in enumerate(split(seed, num_minibatches)):
        rows = slice(b * size, (b + 1) * size)
        minibatch = tree_map(lambda x, rows=rows: x[rows], batch)
        (_, (metrics, mutable)), gradients = differentiated(state.params, state.apply_fn, minibatch, of_minibatch)
        parts = flatten_with_paths((metrics, mutable))
        first = first or parts
        check_alike(NUMPY, function, first, parts, b)
        yield weighting.weighted(b, tree_map(np.float64, gradients)), metrics, mutable


def _summable(metric: np.ndarray) -> np.ndarray:
    """A metric as it is summed: in float32 at least, and integers as Python's, which have any size."""
    if metric.dtype.kind in "biu":
        return (metric.astype(np.int64) if metric.dtype == bool else metric).astype(object)
    return metric.astype(np.promote_types(metric.dtype, np.float32))


def _summed(total: Any, last: np.ndarray) -> np.ndarray:
    """A sum as it is returned: integers in 64 bits, those beyond the range as the end of the range."""
    total = np.asarray(total, object if isinstance(total, int) else None)
    if total.dtype != object:
        return total
    if last.dtype.kind not in "biu":
        # Metrics of other minibatches are integers.
        return total.astype(np.float64)
    range_ = np.iinfo(np.uint64 if last.dtype == np.uint64 else np.int64)
    return np.array(np.clip(total, range_.min, range_.max), range_.dtype)


def central_differences(loss_fn: Callable, step: float = 1e-3) -> Callable:
    """``value_and_grad`` of any NumPy loss, by a fourth-order central difference for each parameter element.

    ``(8(L(+s) − L(−s)) − (L(+2s) − L(−2s))) / 12s``, in float64, with an error of order ``s⁴`` and rounding of order
    ``1e-16/s``.
    """

    def value_and_grad(params: Any, *args: Any) -> tuple[Any, Any]:
        exact = tree_map(lambda p: np.array(p, dtype=np.float64), params)

        def gradient(leaf: np.ndarray) -> np.ndarray:
            slopes = np.zeros(leaf.shape)
            for index in np.ndindex(leaf.shape):
                value, losses = leaf[index], []
                for shift in (1, -1, 2, -2):
                    leaf[index] = value + shift * step
                    losses.append(float(loss_fn(exact, *args)[0]))
                leaf[index] = value
                slopes[index] = (8 * (losses[0] - losses[1]) - (losses[2] - losses[3])) / (12 * step)
            return slopes

        return loss_fn(params, *args), tree_map(gradient, exact)

    return value_and_grad
