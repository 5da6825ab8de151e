"""Registered operators: opaque to tracers, with a shape rule but without a gradient.

Gradients and batching are added on top, by an ``autograd.Function`` per direction with ``setup_context`` and ``vmap``,
because ``torch.func`` cannot use a gradient that is registered with the operator itself.
"""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch.autograd import forward_ad

from reference.arguments import Call
from torch_impl._arrays import PLAIN, TORCH, is_batched_by_autograd, transforming

_LIBRARY = torch.library.Library("gatespec", "DEF")

below_autograd = torch._C._AutoDispatchBelowADInplaceOrView
"""A context for implementations, in which operators neither look for gradients nor record which tensors are views, as
in PyTorch's own kernels. This saves a sixth of a single step's time. No two tensors that an implementation returns may
share memory, because a change of one would not be noticed in the other."""


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
        with below_autograd():
            if torch.is_autocast_enabled(x.device.type):
                with torch.autocast(x.device.type, enabled=False):
                    return implementation(x, *args)
            return implementation(x, *args)

    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"gatespec::{name}", shapes, lib=_LIBRARY)
    return getattr(torch.ops.gatespec, name).default


def recordable(schema: str, implementation: Callable, shapes: Callable, differentiable: Callable) -> Callable:
    """Register ``gatespec::NAME`` with its gradient, for programs that are recorded now and run later.

    What torch.export and torch.jit.trace record are operators, not the ``autograd.Function`` that called them. Other
    calls do without this operator, because its gradient costs one more step in Python at every call.

    Args:
        schema, implementation, shapes: as in `operator`.
        differentiable: the same function, for calls that need a gradient or are transformed.
    """
    call = operator(schema, implementation, shapes)
    name = schema.partition("(")[0]

    def with_gradient(*args: Any) -> Any:
        if transforming():
            raise RuntimeError(
                f"gatespec::{name}: torch.func cannot differentiate a recorded program; use torch.autograd, or "
                "transform the function that was recorded"
            )
        # While it is recorded only its shapes are computed; the choices that a gradient makes would fix them.
        if not recording() and needs_transform(*(x for x in args if isinstance(x, torch.Tensor))):
            return differentiable(*args)
        with torch._C._AutoDispatchBelowAutograd():
            return call(*args)

    _LIBRARY.impl(name, with_gradient, "Autograd")
    return call


def recording() -> bool:
    """Whether torch.export or torch.jit.trace records the current call. Raises for ONNX's older exporter."""
    if torch.compiler.is_compiling():
        seen_by_compiler()
        # The flag behind is_exporting(), which PyTorch 2.11 takes for true in all that torch.compile traces.
        return torch.compiler._is_exporting_flag
    if torch._C._get_tracing_state() is None:
        return False
    if torch.onnx.is_in_onnx_export():
        raise RuntimeError(
            "torch_impl: torch.onnx.export(dynamo=False) cannot export these operations; use dynamo=True with "
            "custom_translation_table=torch_impl.interop.onnx.translation_table()"
        )
    return True


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
    """Whether a call must be `transformable`: a derivative may be needed, or a compiler or torch.func transforms it."""
    if torch.compiler.is_compiling():
        return seen_by_compiler()
    if transforming() or forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


_PLAIN_KEYS = torch._C._dispatch_keys(torch.empty(0, device="cpu"))


def unobserved(*tensors: torch.Tensor | None) -> bool:
    """Whether all that PyTorch would do for an operator with these arguments is to run its implementation: they are
    plain tensors on the CPU, and no mode, profiler or autocast takes part. Calling the implementation then saves the
    dispatch, up to a quarter of a single step's time."""
    if torch._C._len_torch_dispatch_stack() or torch._C._is_torch_function_mode_enabled():
        return False
    if torch.autograd._profiler_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    return all(x is None or (type(x) in PLAIN and torch._C._dispatch_keys(x) == _PLAIN_KEYS) for x in tensors)


def untransformed() -> bool:
    """Whether nothing differentiates or maps the current backward pass, so that it may call an operator directly."""
    if torch.is_grad_enabled() or transforming() or torch.compiler.is_compiling():
        return False
    return forward_ad._current_level < 0


_READABLE = dataclasses.replace(TORCH, values=lambda cu_seqlens: cu_seqlens.numpy())


def packing(operation: str, argument: str, x: torch.Tensor, cu_seqlens: torch.Tensor) -> np.ndarray:
    """The values of ``cu_seqlens`` inside an operator if they can be read; raises if they do not pack ``x``."""
    bounds = cu_seqlens.detach().cpu()
    call = Call(operation, _READABLE)
    call.bind("T", x.shape[0], argument)
    call.packing(bounds, None, argument)
    return bounds.numpy().astype(np.int64)


def no_second_derivative(operation: str) -> NoReturn:
    raise NotImplementedError(
        f"{operation}: second derivatives are not available; its backward pass is written out and has no derivative"
    )


def no_forward_mode(operation: str) -> NoReturn:
    raise RuntimeError(
        f"{operation}: forward-mode derivatives are not available; use reverse mode, torch.autograd.grad or "
        "torch.func.vjp"
    )


def mapped_by_autograd(name: str, vmap: Callable, flat: Callable[..., Sequence[Any]] = lambda *args: args) -> None:
    """Let the vmap inside PyTorch's autograd map ``gatespec::NAME``, a backward operator.

    That vmap, of ``autograd.grad(is_grads_batched=True)``, ``jacobian(vectorize=True)`` and gradcheck, is older than
    that of torch.func. It does not see an ``autograd.Function``, only the operators that its backward pass calls.

    Args:
        vmap: the rule of an ``autograd.Function`` that calls the operator.
        flat: ``(*arguments of the operator) →`` the arguments of that function.
    """

    (returned, *_) = returns = getattr(torch.ops.gatespec, name).default._schema.returns
    single = len(returns) == 1 and str(returned.type) == "Tensor"

    def rule(level: int, args: Sequence[Any]) -> list[torch.Tensor]:
        # A tensor that is not mapped at this level gets an axis of size 1.
        args = [torch._remove_batch_dim(x, level, 1, 0) if isinstance(x, torch.Tensor) else x for x in args]
        size = next((x.shape[0] for x in args if isinstance(x, torch.Tensor) and x.shape[0] != 1), 1)
        in_dims = [0 if isinstance(x, torch.Tensor) and x.shape[0] == size else None for x in args]
        args = [
            x[0] if isinstance(x, torch.Tensor) and dim is None else x for x, dim in zip(args, in_dims, strict=True)
        ]
        if any(isinstance(x, torch.Tensor) and is_batched_by_autograd(x) for x in args):
            outputs, axes = map_by_loop(lambda *row: rule(level - 1, row), size, in_dims, args)
        else:
            outputs, axes = vmap(SimpleNamespace(batch_size=size), in_dims, *args)
        pairs: Any = [(outputs, axes)] if isinstance(outputs, torch.Tensor) else zip(outputs, axes, strict=True)
        return [torch._add_batch_dim(y, axis, level) for y, axis in pairs]

    def mapped(*args: Any) -> Any:
        level = torch._C._vmapmode_increment_nesting() - 1
        torch._C._vmapmode_decrement_nesting()
        found = rule(level, flat(*args))
        return found[0] if single else found

    _LIBRARY.impl(name, mapped, "Batched")


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


def map_over_none(
    rule: Callable, in_dims: Sequence[int | None], args: Sequence[Any], packing: int | None
) -> tuple[tuple[Any, ...], tuple[int | None, ...]]:
    """Map over an axis of size 0: over one row of zeros instead, which is then cut off the outputs.

    Args:
        rule: the rule of vmap for the axis with that row.
        packing: the position of `cu_seqlens` if it is mapped. Its row says that all steps are of the last sequence.
    """
    longer = [*args]
    for number, (x, dim) in enumerate(zip(args, in_dims, strict=True)):
        if isinstance(dim, int):
            row = x.new_zeros((*x.shape[:dim], 1, *x.shape[dim + 1 :]))
            longer[number] = torch.cat([x, row], dim)
    if packing is not None:
        tokens = longer[0] if in_dims[0] is None else longer[0].select(in_dims[0], 0)
        dim = in_dims[packing]
        assert dim is not None
        longer[packing].select(dim, 0)[-1:] = tokens.shape[0]
    outputs, axes = rule(SimpleNamespace(batch_size=1), in_dims, *longer)
    pairs = zip(outputs, axes, strict=True)
    return tuple(y if axis is None else y.narrow(axis, 0, 0) for y, axis in pairs), axes
