"""Gradient accumulation: the gradient of a large batch, from minibatches that fit (xlstm_jax, distributed.single_gpu).

NumPy cannot differentiate. The gradient of the loss, which is not part of this operation's law, therefore comes from
``value_and_grad``, by default central differences.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference._arrays import NUMPY
from reference._seeds import MINIBATCHES, derived_seed
from reference._tree import flatten_with_paths, tree_map
from reference.arguments import check_alike, check_batch, check_flag, check_loss, check_params, check_seed


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
    value_and_grad: Callable | None = None,
) -> tuple[Any, Any, Any]:
    """Mean gradient, summed metrics and stacked mutable variables over minibatches.

    With ``L_b`` the loss of minibatch b of n: the gradients are ``(1/n) Σ_b ∇L_b``, the metrics are summed over b, and
    the mutable variables are stacked on a new leading axis.

    Args:
        state: an object with ``params`` (a pytree of arrays) and ``apply_fn``.
        batch: a pytree of arrays that share one leading axis ``B``; minibatch b is the b-th block of ``B/n`` rows.
        rng: an integer seed; minibatch b gets ``split(rng, n)[b]``.
        num_minibatches: n, which divides B.
        loss_fn: ``(params, apply_fn, minibatch, rng) → (loss, (metrics, mutable))``; mutable may be None.
        use_scan: use `accumulate_gradients_scan`; this does not change the values.
        value_and_grad: turns `loss_fn` into a function that returns ``((loss, (metrics, mutable)), gradients)``; None
            means central differences.

    Returns:
        ``(gradients, metrics, mutable)``; a gradient has its parameter's dtype. Metrics have the dtype of their sum:
        float32 at least, and 64 bits for integers and booleans; integers beyond its range become the end of the range.

    Raises:
        TypeError: a leaf of `batch` is not an array, a parameter is not a floating-point array, `rng` is not an
            integer, `use_scan` is not True or False, or `loss_fn` returns anything else, such as an integer loss.
        ValueError: `num_minibatches` does not divide the batch, leading axes differ, `rng` is negative, the loss is not
            a scalar, or metrics or mutable variables differ between minibatches in their names or shapes.
    """
    accumulate = _scan if check_flag("accumulate_gradients", "use_scan", use_scan) else _loop
    return accumulate("accumulate_gradients", state, batch, rng, num_minibatches, loss_fn, value_and_grad)


def accumulate_gradients_loop(
    state: Any, batch: Any, rng: int, num_minibatches: int, loss_fn: Callable, *, value_and_grad: Callable | None = None
) -> tuple[Any, Any, Any]:
    """`accumulate_gradients` as a loop that collects the results of all minibatches and reduces them at the end.

    Arguments, result and errors are those of `accumulate_gradients`.
    """
    return _loop("accumulate_gradients_loop", state, batch, rng, num_minibatches, loss_fn, value_and_grad)


def accumulate_gradients_scan(
    state: Any, batch: Any, rng: int, num_minibatches: int, loss_fn: Callable, *, value_and_grad: Callable | None = None
) -> tuple[Any, Any, Any]:
    """`accumulate_gradients` as a scan that carries running sums, so that it holds one minibatch's gradients at a time.

    Arguments, result and errors are those of `accumulate_gradients`.
    """
    return _scan("accumulate_gradients_scan", state, batch, rng, num_minibatches, loss_fn, value_and_grad)


def _loop(function, state, batch, rng, num_minibatches, loss_fn, value_and_grad):
    results = list(_minibatches(state, batch, rng, num_minibatches, loss_fn, value_and_grad, function))
    gradients, given, mutables = zip(*results, strict=True)
    metrics = [tree_map(_summable, each) for each in given]
    mean = tree_map(lambda p, *gs: (np.sum(gs, axis=0) / num_minibatches).astype(p.dtype), state.params, *gradients)
    total = tree_map(lambda *ms: np.sum(ms, axis=0), *metrics)
    return mean, tree_map(_summed, total, given[-1]), tree_map(lambda *ms: np.stack(ms), *mutables)


def _scan(function, state, batch, rng, num_minibatches, loss_fn, value_and_grad):
    total, metrics_total, mutables = None, None, []
    given = None
    for gradients, given, mutable in _minibatches(
        state, batch, rng, num_minibatches, loss_fn, value_and_grad, function
    ):
        metrics = tree_map(_summable, given)
        total = gradients if total is None else tree_map(np.add, total, gradients)
        metrics_total = metrics if metrics_total is None else tree_map(np.add, metrics_total, metrics)
        mutables.append(mutable)
    mean = tree_map(lambda p, g: (g / num_minibatches).astype(p.dtype), state.params, total)
    return mean, tree_map(_summed, metrics_total, given), tree_map(lambda *ms: np.stack(ms), *mutables)


def _minibatches(state, batch, rng, num_minibatches, loss_fn, value_and_grad, function):
    """Yield gradients in float64, metrics and mutable variables, one minibatch after the other."""
    size = check_batch(NUMPY, flatten_with_paths(batch), num_minibatches, function)
    seed = check_seed(function, rng)
    check_params(NUMPY, function, flatten_with_paths(state.params))

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
        yield tree_map(np.float64, gradients), metrics, mutable


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
