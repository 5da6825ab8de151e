"""PyTorch's transformations of a call: compiling, vmap, gradients by torch.func, second derivatives, checkpointing.

Compilation is by ``aot_eager``. It includes all of the tracing, which could omit a gradient or fail, but not the code
generation, which takes longer than everything else that is tested on a call.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from conformance.implementation import BrokenGraphError

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Flat:
    """A call as a function of its floating-point tensors only.

    Attributes:
        function: takes the tensors of ``primals`` one by one and returns the outputs that have a cotangent.
        primals: the floating-point arguments.
        cotangents: the cotangents of the outputs, with their order and dtype.
    """

    function: Callable[..., tuple[torch.Tensor, ...]]
    primals: Tensors
    cotangents: Tensors


def flat(call: Callable[[Tensors], Mapping[str, Any]], arrays: Tensors, cotangents: Tensors) -> Flat:
    whole = {name: x for name, x in arrays.items() if not x.dtype.is_floating_point}
    primals = {name: x for name, x in arrays.items() if name not in whole}
    names, outputs = tuple(primals), tuple(cotangents)

    def function(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = call({**dict(zip(names, values, strict=True)), **whole})
        return tuple(results[name] for name in outputs)

    return Flat(function, primals, cotangents)


COMPILED = ("compile", "compile gradient")
"""The transformations for which `load_compiler` is called first."""


def load_compiler() -> None:
    """Import PyTorch's compiler. That takes longer than importing PyTorch, and most processes compile nothing."""
    import torch._dynamo.exc  # noqa: F401


def transformed(kind: str, of: Flat) -> tuple[Tensors, Tensors]:
    """Outputs and gradients of the call under a transformation (`Implementation.transformed`)."""
    outputs, gradients = _KINDS[kind](of.function, tuple(of.primals.values()), tuple(of.cotangents.values()))
    return dict(zip(of.cotangents, outputs, strict=True)), dict(zip(of.primals, gradients, strict=True))


def pulled(function: Callable, values: tuple, cotangents: tuple) -> tuple[tuple, tuple]:
    leaves = [x.detach().requires_grad_() for x in values]
    outputs = function(*leaves)
    reached = [(y, d) for y, d in zip(outputs, cotangents, strict=True) if y.requires_grad]
    if not reached:
        return outputs, tuple(torch.zeros_like(x) for x in values)
    ys, ds = zip(*reached, strict=True)
    return outputs, torch.autograd.grad(ys, leaves, ds, allow_unused=True, materialize_grads=True)


def _functional(function: Callable, values: tuple, cotangents: tuple) -> tuple[tuple, tuple]:
    outputs, pull, *_ = torch.func.vjp(function, *values)
    return outputs, pull(cotangents)


def _compile(function: Callable, values: tuple, cotangents: tuple) -> tuple[tuple, tuple]:
    return pulled(_compiled(function), values, cotangents)


def _compile_gradient(function: Callable, values: tuple, cotangents: tuple) -> tuple[tuple, tuple]:
    return _compiled(lambda values, cotangents: _functional(function, values, cotangents))(values, cotangents)


def _compiled(function: Callable) -> Callable:
    from torch._dynamo.exc import Unsupported, UserError

    # Every call here is the same code to the compiler, which gives up on code that it has compiled too often.
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=False, backend="aot_eager")

    def whole(*arguments: Any) -> Any:
        try:
            return compiled(*arguments)
        except (Unsupported, UserError) as error:
            raise BrokenGraphError(_reason(error)) from error

    return whole


def _reason(error: BaseException) -> str:
    """The message of the function's own error during tracing, else the first line of the compiler's message."""
    from torch._dynamo.exc import ObservedException

    raised: BaseException | None = error
    while raised is not None:
        if isinstance(raised, NotImplementedError | ObservedException):
            return str(raised)
        raised = raised.__cause__ or raised.__context__
    return str(error).strip().partition("\n")[0]


def _vmap(function: Callable, values: tuple, cotangents: tuple) -> tuple[tuple, tuple]:
    with torch.no_grad():
        outputs = torch.func.vmap(function)(*values)
    _, gradients = torch.func.vmap(lambda xs, ds: _functional(function, xs, ds))(values, cotangents)
    return outputs, gradients


def _checkpoint(function: Callable, values: tuple, cotangents: tuple) -> tuple[tuple, tuple]:
    return pulled(lambda *xs: checkpoint(function, *xs, use_reentrant=False), values, cotangents)


_KINDS = {
    "compile": _compile,
    "compile gradient": _compile_gradient,
    "functional": _functional,
    "vmap": _vmap,
    "checkpoint": _checkpoint,
}


def second_derivative(of: Flat, along: Tensors) -> Tensors:
    """See `Implementation.second_derivative`. A graph that ends early counts as the zero that it claims to be."""
    primals = {name: x.detach().requires_grad_() for name, x in of.primals.items()}
    cotangents = {name: x.detach().requires_grad_() for name, x in of.cotangents.items()}
    outputs = dict(zip(cotangents, of.function(*primals.values()), strict=True))
    reached = [name for name, y in outputs.items() if y.requires_grad]
    leaves = {**primals, **{f"cotangent of {name}": x for name, x in cotangents.items()}}
    zeros = {name: torch.zeros_like(x) for name, x in leaves.items()}
    if not reached:
        return zeros
    gradients = torch.autograd.grad(
        [outputs[name] for name in reached],
        list(primals.values()),
        [cotangents[name] for name in reached],
        create_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    total = sum((g * along[name]).sum() for g, name in zip(gradients, primals, strict=True))
    assert isinstance(total, torch.Tensor)
    if not total.requires_grad:
        return zeros
    # torch.autograd.grad would omit nodes that lead to no leaf, and with them the node that makes a backward pass
    # raise.
    total.backward()
    return {name: zeros[name] if x.grad is None else x.grad for name, x in leaves.items()}
