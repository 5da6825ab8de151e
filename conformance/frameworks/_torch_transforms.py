"""PyTorch's transformations of a call: compiling, vmap, other ways to a gradient, checkpointing, streams and graphs.

Compilation is by ``aot_eager``. It includes all of the tracing, which could omit a gradient or fail, but not the code
generation, which takes longer than everything else that is tested on a call.

On a GPU, programs run calls on their own stream, or capture them in a graph. This requires that a kernel is launched on
the current stream, reads its arguments when it runs and not when it is launched, does not wait for the device, and
decides nothing on the host by values on the device.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from conformance.base.result_form import expect_shapes
from conformance.frameworks._framework_errors import TORCH_ERRORS
from conformance.frameworks.implementation import BrokenGraphError

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Flat:
    """A call as a function of its floating-point tensors only.

    Attributes:
        operation: the name of the function that is called.
        function: takes the tensors of ``primals`` one by one and returns the outputs that have a cotangent.
        primals: the floating-point arguments.
        cotangents: the cotangents of the outputs, with their order and dtype.
    """

    operation: str
    function: Callable[..., tuple[torch.Tensor, ...]]
    primals: Tensors
    cotangents: Tensors

    def expect_shapes(self, outputs: tuple, cotangents: tuple) -> None:
        """Check that outputs have the shapes of their cotangents; inside vmap, both lack the mapped axis."""
        names = tuple(self.cotangents)
        got, expected = dict(zip(names, outputs, strict=True)), dict(zip(names, cotangents, strict=True))
        expect_shapes(self.operation, got, expected)


def flat(operation: str, call: Callable[[Tensors], Mapping[str, Any]], arrays: Tensors, cotangents: Tensors) -> Flat:
    whole = {name: x for name, x in arrays.items() if not x.dtype.is_floating_point}
    primals = {name: x for name, x in arrays.items() if name not in whole}
    names, outputs = tuple(primals), tuple(cotangents)

    def function(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = call({**dict(zip(names, values, strict=True)), **whole})
        return tuple(results[name] for name in outputs)

    return Flat(operation, function, primals, cotangents)


COMPILED = ("compile", "compile gradient")
"""The transformations for which `load_compiler` is called first."""


def load_compiler() -> None:
    """Import PyTorch's compiler. That takes longer than importing PyTorch, and most processes compile nothing."""
    import torch._dynamo.exc  # noqa: F401


def transformed(kind: str, of: Flat) -> tuple[Tensors, Tensors]:
    """Outputs and gradients of the call under a transformation (`Implementation.transformed`)."""
    with TORCH_ERRORS.wrong_forms_named(of.operation), TORCH_ERRORS.transformations_named():
        outputs, gradients = _KINDS[kind](of, tuple(of.primals.values()), tuple(of.cotangents.values()))
    return dict(zip(of.cotangents, outputs, strict=True)), dict(zip(of.primals, gradients, strict=True))


def pulled(of: Flat, values: tuple, cotangents: tuple) -> tuple[tuple, tuple]:
    outputs, (gradients,) = _pulled(of, values, [cotangents])
    return outputs, gradients


def _pulled(of: Flat, values: tuple, passes: Sequence[tuple]) -> tuple[tuple, list[tuple]]:
    """Outputs, and the gradients of each backward pass through the one graph of a call, with cotangents of its own."""
    leaves = [x.detach().requires_grad_() for x in values]
    outputs = of.function(*leaves)
    of.expect_shapes(outputs, passes[0])
    reached = [at for at, y in enumerate(outputs) if y.requires_grad]
    if not reached:
        return outputs, [tuple(torch.zeros_like(x) for x in values)] * len(passes)
    ys = [outputs[at] for at in reached]
    gradients = []
    for number, cotangents in enumerate(passes, 1):
        ds = [cotangents[at] for at in reached]
        kept = {"allow_unused": True, "materialize_grads": True, "retain_graph": number < len(passes)}
        gradients.append(torch.autograd.grad(ys, leaves, ds, **kept))
    return outputs, gradients


def _two_backward_passes(of: Flat, values: tuple, cotangents: tuple) -> tuple[tuple, tuple]:
    outputs, gradients = _pulled(of, values, [*zip(*cotangents, strict=True)])
    return outputs, tuple(map(torch.stack, zip(*gradients, strict=True)))


def _functional(of: Flat, values: tuple, cotangents: tuple) -> tuple[tuple, tuple]:
    outputs, pull, *_ = torch.func.vjp(of.function, *values)
    of.expect_shapes(outputs, cotangents)
    return outputs, pull(cotangents)


def _compile(of: Flat, values: tuple, cotangents: tuple) -> tuple[tuple, tuple]:
    return pulled(replace(of, function=_compiled(of.function)), values, cotangents)


def _compile_gradient(of: Flat, values: tuple, cotangents: tuple) -> tuple[tuple, tuple]:
    def gradient(values: tuple, cotangents: tuple) -> tuple[tuple, tuple]:
        outputs, pull, *_ = torch.func.vjp(of.function, *values)
        return outputs, pull(cotangents)

    return _compiled(gradient)(values, cotangents)


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


def _vmap(of: Flat, values: tuple, cotangents: tuple) -> tuple[tuple, tuple]:
    with torch.no_grad():
        outputs = torch.func.vmap(of.function)(*values)
    _, gradients = torch.func.vmap(lambda xs, ds: _functional(of, xs, ds))(values, cotangents)
    return outputs, gradients


def _checkpoint(of: Flat, values: tuple, cotangents: tuple) -> tuple[tuple, tuple]:
    again = replace(of, function=lambda *xs: checkpoint(of.function, *xs, use_reentrant=False))
    return pulled(again, values, cotangents)


_KINDS = {
    "compile": _compile,
    "compile gradient": _compile_gradient,
    "functional": _functional,
    "vmap": _vmap,
    "checkpoint": _checkpoint,
    "two backward passes": _two_backward_passes,
}


def second_derivative(of: Flat, along: Tensors) -> Tensors:
    """See `Implementation.second_derivative`. A graph that ends early counts as the zero that it claims to be."""
    with TORCH_ERRORS.wrong_forms_named(of.operation), TORCH_ERRORS.refusals_named():
        return _second_derivative(of, along)


def _second_derivative(of: Flat, along: Tensors) -> Tensors:
    primals = {name: x.detach().requires_grad_() for name, x in of.primals.items()}
    cotangents = {name: x.detach().requires_grad_() for name, x in of.cotangents.items()}
    results = of.function(*primals.values())
    of.expect_shapes(results, tuple(cotangents.values()))
    outputs = dict(zip(cotangents, results, strict=True))
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


BUSY_CYCLES = 100_000_000
"""Work that keeps the stream busy before it writes the arguments: about 50 ms, longer than a launch takes."""
WARM_UP = 3
GPU_KINDS = ("busy stream", "graph")

Pair = tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class _Given:
    """The floating arguments of a call, and the cotangents of its outputs."""

    values: tuple[torch.Tensor, ...]
    cotangents: tuple[torch.Tensor, ...]

    def changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "_Given":
        return _Given(tuple(map(change, self.values)), tuple(map(change, self.cotangents)))

    def write(self, other: "_Given") -> None:
        for x, source in zip(self.values + self.cotangents, other.values + other.cotangents, strict=True):
            x.copy_(source)


def on_gpu(kind: str, of: Flat, cuda: Any = torch.cuda) -> tuple[Tensors, Tensors]:
    """Outputs and gradients of the call (`Implementation.transformed`).

    Args:
        kind: one of `GPU_KINDS`.
        cuda: ``torch.cuda``, or its replacement in a test.
    """
    given = _Given(tuple(of.primals.values()), tuple(of.cotangents.values()))
    if kind == "busy stream":
        outputs, gradients = _on_busy_stream(of, given, cuda)
    else:
        outputs, gradients = _replayed(of, given, cuda)
    return dict(zip(of.cotangents, outputs, strict=True)), dict(zip(of.primals, gradients, strict=True))


def _on_busy_stream(of: Flat, given: _Given, cuda: Any) -> Pair:
    """The arguments hold NaN until the stream is no longer busy and writes them."""
    late = given.changed(lambda x: torch.full_like(x, torch.nan))
    stream = cuda.Stream()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        cuda._sleep(BUSY_CYCLES)
        late.write(given)
        results = pulled(of, late.values, late.cotangents)
    stream.synchronize()
    return results


def _replayed(of: Flat, given: _Given, cuda: Any) -> Pair:
    """Capture the call with the rows of every argument in reverse order, then replay it with the arguments."""
    static = given.changed(lambda x: x.flip(0) if x.ndim else x.clone())
    stream = cuda.Stream()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        for _ in range(WARM_UP):
            pulled(of, static.values, static.cotangents)
    cuda.current_stream().wait_stream(stream)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        results = pulled(of, static.values, static.cotangents)
    static.write(given)
    graph.replay()
    cuda.synchronize()
    return results
