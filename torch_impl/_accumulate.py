"""Gradient accumulation: gradients of a large batch from minibatches that fit (xlstm_jax, distributed.single_gpu)."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from reference.arguments import check_batch
from torch_impl._arrays import ACCUMULATION, TORCH, transforming


def split(rng: int, num: int) -> list[int]:
    """Derive ``num`` independent seeds from one (NumPy's SeedSequence)."""
    return [int(seed) for seed in np.random.SeedSequence(rng).generate_state(num, np.uint64)]


def accumulate_gradients(
    state: Any, batch: Any, rng: int, num_minibatches: int, loss_fn: Callable, use_scan: bool = False
) -> tuple[Any, Any, Any]:
    """Mean gradient, summed metrics and stacked mutable variables over minibatches.

    With ``L_b`` the loss of minibatch b of n: the gradients are ``(1/n) Σ_b ∇L_b``, the metrics are summed over b, and
    the mutable variables are stacked on a new leading axis. Gradients are computed by ``torch.func`` and are plain
    values: they hold no graph.

    Args:
        state: an object with ``params`` (a pytree of tensors) and ``apply_fn``.
        batch: a pytree of tensors that share one leading axis ``B``; minibatch b is the b-th block of ``B/n`` rows.
        rng: an integer seed; minibatch b gets ``split(rng, n)[b]``.
        num_minibatches: n, which divides B.
        loss_fn: ``(params, apply_fn, minibatch, rng) → (loss, (metrics, mutable))``, where metrics and mutable are
            pytrees of tensors or numbers; mutable may be None.
        use_scan: use `accumulate_gradients_scan`; this does not change the values.

    Returns:
        ``(gradients, metrics, mutable)``; a gradient is summed in float32 at least and has the dtype of its parameter.

    Raises:
        ValueError: `num_minibatches` does not divide the batch, or leading axes differ.
    """
    accumulate = accumulate_gradients_scan if use_scan else accumulate_gradients_loop
    return accumulate(state, batch, rng, num_minibatches, loss_fn)


def accumulate_gradients_loop(
    state: Any, batch: Any, rng: int, num_minibatches: int, loss_fn: Callable
) -> tuple[Any, Any, Any]:
    """`accumulate_gradients` as a loop that collects the results of all minibatches and reduces them at the end.

    Arguments, result and errors are those of `accumulate_gradients`.
    """
    results = list(_minibatches(state, batch, rng, num_minibatches, loss_fn, "accumulate_gradients_loop"))
    gradients, metrics, mutables = zip(*results, strict=True)
    total = pytree.tree_map(lambda *gs: torch.stack(gs).sum(0), *gradients)
    return _mean(state, total, num_minibatches), pytree.tree_map(_total, *metrics), pytree.tree_map(_stack, *mutables)


def accumulate_gradients_scan(
    state: Any, batch: Any, rng: int, num_minibatches: int, loss_fn: Callable
) -> tuple[Any, Any, Any]:
    """`accumulate_gradients` as a scan that carries running sums, so that it holds one minibatch's gradients at a time.

    Arguments, result and errors are those of `accumulate_gradients`.
    """
    total, metrics_total, mutables = None, None, []
    for gradients, metrics, mutable in _minibatches(
        state, batch, rng, num_minibatches, loss_fn, "accumulate_gradients_scan"
    ):
        total = gradients if total is None else pytree.tree_map(torch.add, total, gradients)
        metrics_total = metrics if metrics_total is None else pytree.tree_map(_total, metrics_total, metrics)
        mutables.append(mutable)
    return _mean(state, total, num_minibatches), metrics_total, pytree.tree_map(_stack, *mutables)


class _Slot(NamedTuple):
    """A leaf in the form that torch.func accepts, which takes tensors only: one tensor, or none for a leaf of None."""

    held: tuple[Tensor, ...]


def _minibatches(
    state: Any, batch: Any, rng: int, num_minibatches: int, loss_fn: Callable, function: str
) -> Iterator[tuple[Any, Any, Any]]:
    """Yield gradients in the accumulation dtype, metrics and mutable variables, one minibatch after the other."""
    leaves = [(pytree.keystr(path), x) for path, x in pytree.tree_leaves_with_path(batch) if x is not None]
    size = check_batch(TORCH, leaves, num_minibatches, function)

    def loss(params: Any, minibatch: Any, seed: int) -> tuple[Tensor, Any]:
        value, aux = loss_fn(params, state.apply_fn, minibatch, seed)
        return value, pytree.tree_map(lambda x: _Slot(() if x is None else (torch.as_tensor(x),)), aux)

    differentiated = torch.func.grad_and_value(loss, has_aux=True)
    # With parameters that require a gradient, the sums would keep the graph of every minibatch alive.
    outermost = not transforming()
    for b, seed in enumerate(split(rng, num_minibatches)):
        minibatch = pytree.tree_map(lambda x, b=b: None if x is None else x[b * size : (b + 1) * size], batch)
        with torch.no_grad() if outermost else nullcontext():
            gradients, (_, aux) = differentiated(state.params, minibatch, seed)
        metrics, mutable = pytree.tree_map(_taken, aux, is_leaf=lambda x: isinstance(x, _Slot))
        yield pytree.tree_map(lambda g: g.to(ACCUMULATION[g.dtype]), gradients), metrics, mutable


def _taken(slot: _Slot) -> Tensor | None:
    return slot.held[0] if slot.held else None


def _mean(state: Any, total: Any, num_minibatches: int) -> Any:
    return pytree.tree_map(lambda p, g: (g / num_minibatches).to(p.dtype), state.params, total)


def _total(*metrics: Any) -> Any:
    return None if metrics[0] is None else sum(metrics[1:], start=metrics[0])


def _stack(*variables: Any) -> Any:
    return None if variables[0] is None else torch.stack(variables)
