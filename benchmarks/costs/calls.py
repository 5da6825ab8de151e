"""The fixed cost of a public call: checks, dispatch and the work of autograd, without the computation itself.

In PyTorch, the registered operators are replaced by operators that only allocate their outputs. A call of ours is timed
next to an ``autograd.Function`` around an empty registered operator with the same number of arguments. In JAX, the
computation is removed by subtraction: a public call less the same call compiled, next to a jitted identity.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.speed.timing import Run, interleaved, measured, resampled, wall_clock


@dataclass(frozen=True)
class SmallestCall:
    """A public function with the smallest arrays that it takes.

    Attributes:
        function: its name.
        framework: ``torch`` or ``jax``.
        direction: ``forward``, which in PyTorch records a gradient, or ``both``.
        runs: the functions to time, by name: ``public`` and ``empty``, in JAX also ``compiled``.
    """

    function: str
    framework: str
    direction: str
    runs: dict[str, Run]


def rows(rounds: int) -> list[dict[str, Any]]:
    """One row per call: seconds of each run, and the fixed cost over that of the empty call, with its interval."""
    found = []
    for framework, calls, context in (("torch", in_torch, emptied), ("jax", in_jax, nullcontext)):
        try:
            for call in calls():
                with context():
                    found.append(_measured(call, rounds))
        except ImportError as error:
            found.append({"framework": framework, "reason": f"{framework} does not import here: {error}"})
    return found


def _measured(call: SmallestCall, rounds: int) -> dict[str, Any]:
    for run in call.runs.values():
        run()
        run()
    timings = measured(list(interleaved(call.runs, rounds, wall_clock)))
    low, high = resampled(list(timings.values()), lambda medians: _fixed(dict(zip(timings, medians, strict=True))))
    medians = {name: timing.median for name, timing in timings.items()}
    return {
        "function": call.function,
        "framework": call.framework,
        "direction": call.direction,
        "reason": None,
        "seconds": medians,
        "times_empty": {"ratio": float(_fixed(medians)), "low": low, "high": high},
    }


def _fixed(seconds: dict[str, Any]) -> Any:
    """The fixed cost in units of an empty call."""
    return (seconds["public"] - seconds.get("compiled", seconds["empty"]) + seconds["empty"]) / seconds["empty"]


@contextmanager
def emptied() -> Iterator[None]:
    """Inside this context, every operator of `torch_impl` only allocates the outputs of its first call here."""
    import torch
    from torch._library.simple_registry import singleton

    import torch_impl  # noqa: F401

    def without_work(shapes: Callable[..., Any]) -> Callable[..., Any]:
        outputs: list[Any] = []

        def run(*arguments: Any) -> Any:
            if not outputs:
                outputs.append(shapes(*arguments))
            found = outputs[0]
            return torch.empty_like(found) if isinstance(found, torch.Tensor) else [torch.empty_like(x) for x in found]

        return run

    library = torch.library.Library("gatespec", "IMPL")
    for name, entry in list(singleton._data.items()):
        if name.startswith("gatespec::") and entry.fake_impl.kernel is not None:
            library.impl(name.partition("::")[2], without_work(entry.fake_impl.kernel.func), "CPU")
    try:
        yield
    finally:
        library._destroy()


def in_torch() -> Iterator[SmallestCall]:
    import torch

    import torch_impl

    def pulled(call: Callable[[], Any], leaves: list[Any]) -> Run:
        cotangent = torch.ones_like(call())
        return lambda: torch.autograd.grad(call(), leaves, cotangent, allow_unused=True)

    public_calls = smallest(torch_impl)
    for name in ONE_OPERATOR:
        function, arrays = public_calls[name]
        leaves = [torch.from_numpy(x).requires_grad_() for x in arrays]
        public, empty = (lambda f=function, x=leaves: f(*x)), empty_call(leaves)
        yield SmallestCall(name, "torch", "forward", {"public": public, "empty": empty})
        yield SmallestCall(name, "torch", "both", {"public": pulled(public, leaves), "empty": pulled(empty, leaves)})


def in_jax() -> Iterator[SmallestCall]:
    import jax

    import jax_impl

    public_calls = smallest(jax_impl)
    for name in ONE_OPERATOR:
        function, arrays = public_calls[name]
        x = tuple(map(jax.numpy.asarray, arrays))
        compiled, identity = jax.jit(function), jax.jit(lambda *x: x)
        runs = {
            "public": lambda f=function, x=x: jax.block_until_ready(f(*x)),
            "compiled": lambda f=compiled, x=x: jax.block_until_ready(f(*x)),
            "empty": lambda f=identity, x=x: jax.block_until_ready(f(*x)),
        }
        yield SmallestCall(name, "jax", "forward", runs)


ONE_OPERATOR = ("mlstm", "mlstm_step", "gru", "rev_cumsum")
"""The functions that are one operator in PyTorch."""


def smallest(package: Any) -> dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]]:
    """Every operation with a kernel, with its smallest arrays; each returns one array."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    steps = (normal(1, 2, 1, 4), normal(1, 2, 1, 4), normal(1, 2, 1, 4), normal(1, 2, 1), normal(1, 2, 1))
    state = (normal(1, 1, 4, 4), normal(1, 1, 4), normal(1, 1))
    x, weight, sums, gates = normal(1, 2, 1, 4), normal(1, 4, 4), normal(2, 4), normal(2, 4, 1)

    def mlstm_step(q: Any, k: Any, v: Any, i: Any, f: Any, C: Any, n: Any, m: Any) -> Any:
        return package.mlstm_step(q, k, v, i, f, package.MLSTMState(C, n, m))[0]

    return {
        "mlstm": (package.mlstm, steps),
        "mlstm_step": (mlstm_step, (*(part[:, 0] for part in steps), *state)),
        "gru": (lambda *arrays: package.gru(*arrays)[0], (x, weight) * 3),
        "rev_cumsum": (package.rev_cumsum, (sums,)),
        "rev_cumsum_off": (package.rev_cumsum_off, (sums,)),
        "causal_forget_matrix": (package.causal_forget_matrix, (sums,)),
        "dtilde_matrix": (package.dtilde_matrix, (gates, gates)),
        "fwbw": (package.mlstm_fwbw_custom_grad({"chunk_size": 2}), (*(x[:, :, 0] for x in steps[:3]), *steps[3:])),
    }


def empty_call(tensors: list[Any]) -> Callable[[], Any]:
    """A call of an ``autograd.Function`` around a registered operator that does nothing but allocate its output.

    Its backward pass is another such operator, with an output for each of ``tensors``.
    """
    import torch

    arity = len(tensors)
    there, back = f"empty_{arity}", f"empty_{arity}_backward"
    if not hasattr(torch.ops.gatespec_overhead, there):
        library = torch.library.Library("gatespec_overhead", "FRAGMENT")
        names = ", ".join(f"Tensor x{number}" for number in range(arity))
        library.define(f"{there}({names}) -> Tensor")
        library.define(f"{back}(Tensor dy, {names}) -> Tensor[]")
        library.impl(there, lambda *x: torch.empty_like(x[0]), "CompositeExplicitAutograd")
        library.impl(back, lambda dy, *x: [torch.empty_like(each) for each in x], "CompositeExplicitAutograd")
        _LIBRARIES.append(library)
    operator = getattr(torch.ops.gatespec_overhead, there).default
    backward_operator = getattr(torch.ops.gatespec_overhead, back).default

    class Empty(torch.autograd.Function):
        @staticmethod
        def forward(*tensors: torch.Tensor) -> torch.Tensor:
            return operator(*tensors)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
            return tuple(backward_operator(*cotangents, *ctx.saved_tensors))

    return lambda: Empty.apply(*tensors)


_LIBRARIES: list[Any] = []
"""Libraries that must stay alive: a library that is collected takes its operators with it."""
