"""The fixed cost of a public call: function calls that Python makes for it, and time beside an empty operator's.

Calls are counted, not timed, so that a test can hold them on any machine: ``overhead.json`` keeps the counts that were
found, and a count that has doubled fails.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parent / "overhead.json"


def calls(function: Callable[[], Any]) -> int:
    """How many functions, Python's and C's, one call of ``function`` calls; caches are warm."""
    function()
    function()
    counted = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return counted


def public_calls() -> dict[str, Callable[[], Any]]:
    """A smallest call of every recurrent operation of `torch_impl`, forward and with its gradient."""
    import torch

    import torch_impl

    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    q, k, v = normal(3, 1, 2, 1, 4)
    i, f = normal(2, 1, 2, 1)
    state = torch_impl.MLSTMState(normal(1, 1, 4, 4), normal(1, 1, 4), normal(1, 1))
    x, weight = normal(1, 2, 1, 4), normal(1, 4, 4)
    step = (q[:, 0], k[:, 0], v[:, 0], i[:, 0], f[:, 0])
    sums = normal(2, 4)

    def differentiated(function: Callable[..., Any], *arrays: torch.Tensor) -> Callable[[], Any]:
        leaves = [array.detach().requires_grad_() for array in arrays]

        def run() -> Any:
            out = function(*leaves)
            out = out[0] if isinstance(out, tuple) else out
            return torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)

        return run

    def gru(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return torch_impl.gru(x, weight, x, weight, x, weight)

    def one_step(q: Any, k: Any, v: Any, i: Any, f: Any) -> Any:
        return torch_impl.mlstm_step(q, k, v, i, f, state)

    def inference(function: Callable[[], Any]) -> Callable[[], Any]:
        return torch.no_grad()(function)

    return {
        "mlstm": inference(lambda: torch_impl.mlstm(q, k, v, i, f)),
        "mlstm with gradient": differentiated(torch_impl.mlstm, q, k, v, i, f),
        "mlstm_step": inference(lambda: one_step(*step)),
        "mlstm_step with gradient": differentiated(one_step, *step),
        "gru": inference(lambda: gru(x, weight)),
        "gru with gradient": differentiated(gru, x, weight),
        "rev_cumsum": inference(lambda: torch_impl.rev_cumsum(sums)),
        "rev_cumsum with gradient": differentiated(torch_impl.rev_cumsum, sums),
    }


def empty_call(arity: int) -> Callable[[], Any]:
    """An ``autograd.Function`` around a registered operator of ``arity`` tensors that does nothing but make one."""
    import torch

    name = f"empty_{arity}"
    library = torch.library.Library("gatespec_overhead", "FRAGMENT")
    names = ", ".join(f"Tensor x{number}" for number in range(arity))
    if not hasattr(torch.ops.gatespec_overhead, name):
        library.define(f"{name}({names}) -> Tensor")
        library.impl(name, lambda *tensors: torch.empty_like(tensors[0]), "CompositeExplicitAutograd")
        _LIBRARIES.append(library)
    operator = getattr(torch.ops.gatespec_overhead, name).default

    class Empty(torch.autograd.Function):
        @staticmethod
        def forward(*tensors: torch.Tensor) -> torch.Tensor:
            return operator(*tensors)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
            return tuple(torch.zeros_like(x) for x in ctx.saved_tensors)

    tensors = [torch.zeros(1, 2, 1, 4) for _ in range(arity)]
    return lambda: Empty.apply(*tensors)


_LIBRARIES: list[Any] = []
"""A library takes its operators with it when it is collected."""


def kept() -> dict[str, int]:
    return json.loads(KEPT.read_text(encoding="utf-8"))


def found() -> dict[str, int]:
    return {name: calls(function) for name, function in public_calls().items()}


def write() -> None:
    KEPT.write_text(json.dumps(found(), indent=1) + "\n", encoding="utf-8")
