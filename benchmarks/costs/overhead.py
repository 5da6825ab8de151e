"""The fixed cost of a public call: the function calls that Python makes for it, and its time next to an empty operator.

Calls are counted, not timed, so that a test can check them on any machine: ``overhead.json`` holds the committed
counts, and a count that has doubled fails.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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

    q, v, i = jnp.ones((1, 2, 1, 4)), jnp.ones((1, 2, 1, 4)), jnp.ones((1, 2, 1))
    state = jax_impl.MLSTMState(jnp.ones((1, 1, 4, 4)), jnp.ones((1, 1, 4)), jnp.ones((1, 1)))
    weight, sums, gates = jnp.ones((1, 4, 4)), jnp.ones((2, 4)), jnp.ones((2, 4, 1))
    step, fwbw = (q[:, 0], q[:, 0], v[:, 0], i[:, 0], i[:, 0]), jax_impl.mlstm_fwbw_custom_grad({"chunk_size": 2})
    lane = (q[:, :, 0], q[:, :, 0], v[:, :, 0], i, i)
    return {
        "JAX mlstm": lambda: jax_impl.mlstm(q, q, v, i, i),
        "JAX mlstm_step": lambda: jax_impl.mlstm_step(*step, state),
        "JAX gru": lambda: jax_impl.gru(q, weight, q, weight, q, weight),
        "JAX rev_cumsum": lambda: jax_impl.rev_cumsum(sums),
        "JAX rev_cumsum_off": lambda: jax_impl.rev_cumsum_off(sums),
        "JAX causal_forget_matrix": lambda: jax_impl.causal_forget_matrix(sums),
        "JAX dtilde_matrix": lambda: jax_impl.dtilde_matrix(gates, gates),
        "JAX fwbw": lambda: fwbw(*lane),
    }


def _in_torch() -> dict[str, Callable[[], Any]]:
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
    sums, gates = normal(2, 4), normal(2, 4, 1)
    fwbw, lane = torch_impl.mlstm_fwbw_custom_grad({"chunk_size": 2}), (q[:, :, 0], k[:, :, 0], v[:, :, 0], i, f)

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
        "rev_cumsum_off": inference(lambda: torch_impl.rev_cumsum_off(sums)),
        "rev_cumsum_off with gradient": differentiated(torch_impl.rev_cumsum_off, sums),
        "causal_forget_matrix": inference(lambda: torch_impl.causal_forget_matrix(sums)),
        "causal_forget_matrix with gradient": differentiated(torch_impl.causal_forget_matrix, sums),
        "dtilde_matrix": inference(lambda: torch_impl.dtilde_matrix(gates, gates)),
        "dtilde_matrix with gradient": differentiated(torch_impl.dtilde_matrix, gates, gates),
        "fwbw": inference(lambda: fwbw(*lane)),
        "fwbw with gradient": differentiated(fwbw, *lane),
    }


def kept() -> dict[str, int]:
    return json.loads(KEPT.read_text(encoding="utf-8"))


def found() -> dict[str, int]:
    return {name: calls(function) for name, function in public_calls().items()}


def write() -> None:
    KEPT.write_text(json.dumps(found(), indent=1) + "\n", encoding="utf-8")
