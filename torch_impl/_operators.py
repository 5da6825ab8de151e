"""Registered operators: opaque to tracers, with a shape rule but without a gradient.

Gradients and batching are added on top, by an ``autograd.Function`` per direction with ``setup_context`` and ``vmap``,
because ``torch.func`` cannot use a gradient that is registered with the operator itself.
"""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

from reference.arguments import Call
from torch_impl._arrays import TORCH, transforming

_LIBRARY = torch.library.Library("gatespec", "DEF")


def operator(schema: str, implementation: Callable, shapes: Callable) -> Callable:
    """Register ``gatespec::NAME`` and return it as a function.

    Args:
        schema: ``"NAME(Tensor x, ...) -> Tensor"``.
        implementation: computes the operator on any device, below autograd; its first argument is a tensor.
        shapes: returns empty outputs with the right shapes and dtypes (``register_fake``).
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)

    def run(x: torch.Tensor, *args: Any) -> Any:
        if torch.is_autocast_enabled(x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                return implementation(x, *args)
        return implementation(x, *args)

    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"gatespec::{name}", shapes, lib=_LIBRARY)
    return getattr(torch.ops.gatespec, name).default


class Directions(NamedTuple):
    """The two directions of an operation without residuals on one backend, as functions of tensors."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]


_transformable: list[Callable] = []


def transformable(function: type[torch.autograd.Function]) -> Callable:
    """``function.apply`` for autograd, torch.func and torch.compile.

    A compiler that inlines it would drop the gradient under torch.func.grad (PyTorch 2.13 does not notice that the
    arguments require one), so `seen_by_compiler` tells it to keep the call whole.
    """

    # PyTorch reads the signature at every call; computing it each time would take longer than the rest of the call.
    function.forward.__signature__ = inspect.signature(function.forward)  # type: ignore[attr-defined]

    def apply(*args: Any) -> Any:
        return function.apply(*args)

    _transformable.append(apply)
    return apply


def seen_by_compiler() -> bool:
    """Called while a compiler traces, before the first `transformable` call; at import it would load the compiler."""
    for function in _transformable:
        torch.compiler.allow_in_graph(function)
    return True


# This is what torch.compiler.assume_constant_result sets; calling it would import the compiler.
seen_by_compiler._dynamo_marked_constant = True  # type: ignore[attr-defined]


def needs_transform(*tensors: torch.Tensor | None) -> bool:
    """Whether a call must be `transformable`: a gradient may be needed, or a compiler or torch.func transforms it."""
    if torch.compiler.is_compiling():
        return seen_by_compiler()
    if transforming():
        return True
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def untransformed() -> bool:
    """Whether nothing differentiates or maps the current backward pass, so that it may call an operator directly."""
    return not torch.is_grad_enabled() and not transforming() and not torch.compiler.is_compiling()


_READABLE = dataclasses.replace(TORCH, values=lambda cu_seqlens: cu_seqlens.numpy())


def packing(operation: str, argument: str, x: torch.Tensor, cu_seqlens: torch.Tensor) -> np.ndarray:
    """The values of ``cu_seqlens`` inside an operator if they can be read; raises if they do not pack ``x``."""
    bounds = cu_seqlens.detach().cpu()
    call = Call(operation, _READABLE)
    call.bind("T", x.shape[0], argument)
    call.packing(bounds, None, argument)
    return bounds.numpy().astype(np.int64)


def no_second_derivative(operation: str) -> NoReturn:
    raise RuntimeError(
        f"{operation}: second derivatives are not available; its backward pass is written out and has no derivative"
    )


def fold(size: int, in_dims: Sequence[int | None], args: Sequence[Any], axes: Sequence[int | None]) -> list[Any]:
    """Fold a vmapped axis into each argument's head axis, outermost; arguments without one are repeated along it.

    Args:
        size: length of the vmapped axis.
        in_dims: its position in each argument; None for an argument without it.
        axes: the head axis of each argument, not counting the vmapped axis; None for anything but a tensor with heads.
    """
    folded = []
    for x, dim, axis in zip(args, in_dims, axes, strict=True):
        if x is None or axis is None:
            folded.append(x)
        elif dim is None:
            x = x.unsqueeze(axis)
            folded.append(x.expand(*x.shape[:axis], size, *x.shape[axis + 1 :]).flatten(axis, axis + 1))
        else:
            folded.append(x.movedim(dim, axis).flatten(axis, axis + 1))
    return folded


def unfold(
    size: int, outputs: Sequence[Any], axes: Sequence[int | None]
) -> tuple[tuple[Any, ...], tuple[int | None, ...]]:
    """Undo `fold` on outputs: return them with the vmapped axis, and the position of that axis in each output."""
    pairs = [
        (None, None) if y is None else (y.unflatten(axis, (size, y.shape[axis] // size)), axis)
        for y, axis in zip(outputs, axes, strict=True)
    ]
    return tuple(y for y, _ in pairs), tuple(axis for _, axis in pairs)


def map_by_loop(
    apply: Callable, size: int, in_dims: Sequence[int | None], args: Sequence[Any]
) -> tuple[tuple[Any, ...], tuple[int | None, ...]]:
    """Map by a loop, for calls that cannot be folded into one because packings differ along the vmapped axis."""
    rows = [
        apply(*(x.select(dim, b) if isinstance(dim, int) else x for x, dim in zip(args, in_dims, strict=True)))
        for b in range(size)
    ]
    columns = list(zip(*rows, strict=True))
    stacked = tuple(None if column[0] is None else torch.stack(column) for column in columns)
    return stacked, tuple(None if column is None else 0 for column in stacked)
