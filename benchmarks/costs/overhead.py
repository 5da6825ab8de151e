"""The fixed cost of a public call: the function calls that Python makes for it, and its time next to an empty operator.

Calls are counted, not timed, so that a test can check them on any machine: ``overhead.json`` holds the committed
counts, and a count that has doubled fails.
"""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.costs.calls import smallest

KEPT = Path(__file__).parent / "overhead.json"


def calls(function: Callable[[], Any]) -> int:
    """Number of functions, of Python and of C, that one call of ``function`` calls with warm caches."""
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
    """A smallest call of every operation with a kernel, in `torch_impl` also with its gradient, and in `jax_impl`."""
    return {**_in_torch(), **_in_jax()}


def _in_jax() -> dict[str, Callable[[], Any]]:
    import jax.numpy as jnp

    import jax_impl

    def call(function: Callable[..., Any], arrays: Sequence[Any]) -> Callable[[], Any]:
        given = [jnp.asarray(x) for x in arrays]
        return lambda: function(*given)

    return {f"JAX {name}": call(*each) for name, each in smallest(jax_impl).items()}


def _in_torch() -> dict[str, Callable[[], Any]]:
    import torch

    import torch_impl

    def differentiated(function: Callable[..., Any], leaves: list[torch.Tensor]) -> Any:
        out = function(*leaves)
        return torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)

    found: dict[str, Callable[[], Any]] = {}
    for name, (function, arrays) in smallest(torch_impl).items():
        tensors = [torch.from_numpy(x) for x in arrays]
        found[name] = torch.no_grad()(partial(function, *tensors))
        leaves = [x.clone().requires_grad_() for x in tensors]
        found[f"{name} with gradient"] = partial(differentiated, function, leaves)
    return found


def kept() -> dict[str, int]:
    return json.loads(KEPT.read_text(encoding="utf-8"))


def found() -> dict[str, int]:
    return {name: calls(function) for name, function in public_calls().items()}


def write() -> None:
    KEPT.write_text(json.dumps(found(), indent=1) + "\n", encoding="utf-8")
