"""Gradient accumulation: gradients of a large batch from minibatches that fit (xlstm_jax, distributed.single_gpu)."""

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from reference.arguments import (
    check_alike,
    check_batch,
    check_flag,
    check_loss,
    check_params,
    check_seed,
    check_weights,
)
from torch_impl._arrays import TORCH, transforming
from torch_impl._seeds import MINIBATCHES, derived_seed


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
    weights: Tensor | None = None,
    total_weight: Any = None,
) -> tuple[Any, Any, Any]:
    """Mean gradient, summed metrics and stacked mutable variables over minibatches.

    With ``L_b`` the loss of minibatch b of n: the gradients are ``(1/n) Σ_b ∇L_b``, or ``(1/W) Σ_b w_b ∇L_b`` with
    `weights` w and their sum W; the metrics are summed over b, and the mutable variables are stacked on a new leading
    axis. If L_b is a mean over w_b tokens, the gradient with weights is that of the mean over all tokens, which the
    mean of the minibatches' means is not if the w_b differ.

    Gradients are computed by ``torch.func`` and are plain values: they hold no graph. Nothing is communicated: under
    data parallelism a step adds up the results of all ranks once, whatever n is.

    Args:
        state: an object with ``params`` (a pytree of tensors) and ``apply_fn``.
        batch: a pytree of tensors that share one leading axis ``B``; minibatch b is the b-th block of ``B/n`` rows.
        rng: an integer seed; minibatch b gets ``split(rng, n)[b]``.
        num_minibatches: n, which divides B.
        loss_fn: ``(params, apply_fn, minibatch, rng) → (loss, (metrics, mutable))``, where metrics and mutable are
            pytrees of tensors or numbers; mutable may be None.
        use_scan: use `accumulate_gradients_scan`, which in PyTorch is the same loop.
        weights: w, ``(n,)``, integers, float32 or float64, finite and at least 0: what each minibatch counts. One of
            weight 0 adds nothing, even if its gradient is not finite, as that of a mean over no tokens.
        total_weight: W, a positive number or scalar tensor; None means ``Σ_b w_b``. With minibatches on several devices
            it is the sum over all of them; the gradients of the devices then add up to that of all tokens.
            (Weights that are traced or on a GPU are not read: gradients are NaN where they should be refused.)

    Returns:
        ``(gradients, metrics, mutable)``; a gradient is summed in float32 at least and has the dtype of its parameter.
        Metrics have the dtype of their sum: float32 at least, and 64 bits for integers and booleans; integers beyond
        its range become the end of the range.

    Raises:
        TypeError: a leaf of `batch` is not a tensor, a parameter is not a floating-point tensor, `rng` is not an
            integer, `use_scan` is not True or False, weights are not such numbers, or `loss_fn` returns anything else,
            such as a loss that is a number or an integer tensor.
        ValueError: `num_minibatches` does not divide the batch, leading axes differ, `rng` is negative, the loss is not
            a scalar, metrics or mutable variables differ between minibatches in their names or shapes, weights have
            another shape, are negative or not finite, or their sum is 0, or `total_weight` is given without `weights`.
    """
    check_flag("accumulate_gradients", "use_scan", use_scan)
    return _accumulate("accumulate_gradients", state, batch, rng, num_minibatches, loss_fn, weights, total_weight)


def accumulate_gradients_loop(
    state: Any,
    batch: Any,
    rng: int,
    num_minibatches: int,
    loss_fn: Callable,
    *,
    weights: Tensor | None = None,
    total_weight: Any = None,
) -> tuple[Any, Any, Any]:
    """`accumulate_gradients` as a loop. Arguments, result and errors are those of `accumulate_gradients`."""
    return _accumulate("accumulate_gradients_loop", state, batch, rng, num_minibatches, loss_fn, weights, total_weight)


def accumulate_gradients_scan(
    state: Any,
    batch: Any,
    rng: int,
    num_minibatches: int,
    loss_fn: Callable,
    *,
    weights: Tensor | None = None,
    total_weight: Any = None,
) -> tuple[Any, Any, Any]:
    """`accumulate_gradients` by the name of JAX's scan; PyTorch runs the same loop.

    Arguments, result and errors are those of `accumulate_gradients`.
    """
    return _accumulate("accumulate_gradients_scan", state, batch, rng, num_minibatches, loss_fn, weights, total_weight)


def _accumulate(
    function: str,
    state: Any,
    batch: Any,
    rng: int,
    num_minibatches: int,
    loss_fn: Callable,
    weights: Any,
    total_weight: Any,
) -> tuple[Any, Any, Any]:
    """Process one minibatch after the other, holding the sums and the gradients of one minibatch at a time."""
    size = check_batch(TORCH, _leaves(batch), num_minibatches, function)
    seed = check_seed(function, rng)
    check_params(TORCH, function, _leaves(state.params))
    weights, total_weight = (x.detach() if isinstance(x, Tensor) else x for x in (weights, total_weight))
    check_weights(TORCH, function, weights, total_weight, num_minibatches)
    params, tree = pytree.tree_flatten(state.params)
    given = [p for p in params if p is not None]

    def whole(tensors: Sequence[Any]) -> Any:
        """The tree of parameters with its leaves of None, which are kept here because torch.func takes only tensors."""
        left = iter(tensors)
        return pytree.tree_unflatten([None if p is None else next(left) for p in params], tree)

    def loss(tensors: list[Tensor], minibatch: Any, of_minibatch: int) -> tuple[Tensor, Any]:
        returned = loss_fn(whole(tensors), state.apply_fn, minibatch, of_minibatch)
        value, *aux = check_loss(TORCH, function, returned, _leaves, numbers=False)
        return value, pytree.tree_map(lambda x: _Slot(() if x is None else (torch.as_tensor(x),)), tuple(aux))

    differentiated = torch.func.grad_and_value(loss, has_aux=True)
    # With parameters that require a gradient, the sums would keep the graph of every minibatch alive.
    outermost = not transforming()
    shares = None if weights is None else _shares(weights, total_weight, given)
    total, metrics_total, mutables, first = None, None, [], None
    for b, of_minibatch in enumerate(split(seed, num_minibatches)):
        minibatch = pytree.tree_map(lambda x, b=b: None if x is None else x[b * size : (b + 1) * size], batch)
        with torch.no_grad() if outermost else nullcontext():
            gradients, (_, aux) = differentiated(given, minibatch, of_minibatch)
            wide = [_wide(g) for g in gradients]
            if shares is not None:
                wide = [_weighted(shares[b], g) for g in wide]
            del gradients
            total = wide if total is None else _added(total, wide)
        metrics, mutable = pytree.tree_map(_taken, aux, is_leaf=lambda x: isinstance(x, _Slot))
        parts = _leaves((metrics, mutable))
        first = parts if first is None else first
        check_alike(TORCH, function, first, parts, b)
        metrics = pytree.tree_map(_summable, metrics)
        metrics_total = metrics if metrics_total is None else pytree.tree_map(_sum, metrics_total, metrics)
        mutables.append(mutable)
    assert total is not None
    divided = [g / num_minibatches for g in total] if shares is None else total
    mean = whole([g.to(p.dtype) for p, g in zip(given, divided, strict=True)])
    return mean, metrics_total, pytree.tree_map(_stack, *mutables)


def _weighted(share: Tensor, gradient: Tensor) -> Tensor:
    """A term of the sum. It is no product where the share is 0: a mean over no tokens is NaN."""
    share = share.to(gradient.device, gradient.dtype)
    return torch.where(share == 0, 0, share * gradient)


def _shares(weights: Tensor, total_weight: Any, params: Sequence[Tensor]) -> Tensor:
    """The weight of each minibatch as a share of the total, in float32 at least. The sum need not be representable.

    Shares are NaN for weights that are not legal and were not read.
    """
    dtype = functools.reduce(torch.promote_types, (p.dtype for p in params), torch.float32)
    # Scaled, no sum overflows.
    scale = 1 / weights.numel()
    weights = weights.to(dtype) * scale
    total = weights.sum() if total_weight is None else torch.as_tensor(total_weight).to(weights) * scale
    legal = (weights >= 0).all() & weights.isfinite().all() & (total > 0) & total.isfinite()
    return torch.where(legal, weights / total, torch.nan)


class _Slot(NamedTuple):
    """A leaf in a form that torch.func accepts, which takes only tensors: one tensor, or none if the leaf is None."""

    held: tuple[Tensor, ...]


def _taken(slot: _Slot) -> Tensor | None:
    return slot.held[0] if slot.held else None


def _added(total: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
    """Add gradients to the sums, and release each one as soon as it is added."""
    for at in range(len(total)):
        total[at] = total[at] + gradients[at]
        gradients[at] = total[at]
    return total


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    return [(pytree.keystr(path), x) for path, x in pytree.tree_leaves_with_path(tree) if x is not None]


def _wide(x: Tensor) -> Tensor:
    """A gradient or metric in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _summable(metric: Tensor | None) -> Tensor | None:
    """A metric in the dtype of its sum: float32 at least, and 64 bits for integers and booleans."""
    if metric is None or metric.dtype is torch.uint64:
        return metric
    return _wide(metric) if metric.is_floating_point() or metric.is_complex() else metric.to(torch.int64)


def _sum(total: Tensor | None, metric: Tensor | None) -> Tensor | None:
    """The sum; integers beyond the range become the end of the range."""
    if total is None or metric is None:
        return None
    if total.dtype is metric.dtype is torch.uint64:
        # PyTorch cannot add them, but the bits of int64 are the same, in another order.
        total, metric = total.view(torch.int64), metric.view(torch.int64)
        added, lowest = total + metric, torch.iinfo(torch.int64).min
        return torch.where((added ^ lowest) < (total ^ lowest), -1, added).view(torch.uint64)
    added = total + metric
    if added.dtype is not torch.int64:
        return added
    ends = torch.iinfo(torch.int64)
    beyond = ((added ^ total) & (added ^ metric)) < 0
    return torch.where(beyond, torch.where(metric < 0, ends.min, ends.max), added)


def _stack(*variables: Any) -> Any:
    return None if variables[0] is None else torch.stack(variables)
