"""One call of every kernel against float64, forward and backward: whether it loads, runs and is roughly right.

``python -m benchmarks.gpu.calls NAME --device cuda --json PATH`` makes one call in each dtype and prints its errors;
each name in `CALLS` is meant for a process of its own. The suite's laws judge a kernel element by element, later. With
``--captured`` the first call of the process is inside the capture of a CUDA graph, which is then replayed.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import reference
from reference import MLSTMState, SLSTMState

LARGEST = {"float32": 4e-6, "float16": 2e-3, "bfloat16": 1.5e-2}
"""The largest ‖found − exact‖ / ‖exact‖, at least three times what an H100 gives: 7.6e-7, 5.8e-4 and 4.6e-3."""

Shapes = tuple[tuple[int, ...], ...]


class Call(NamedTuple):
    """A call of an operation.

    Attributes:
        package: ``torch_impl`` or ``jax_impl``.
        operation: the public function's name.
        shapes: shapes of its arguments, in order; the last ``states`` of them are parts of a state, in float32.
        tiny: the same, as small as ``compute-sanitizer`` needs it.
        states: number of parts of the state; such a call is a step, which has no gradient here.
        offsets: ``cu_seqlens``, for the two sizes; None if the call is dense.
    """

    package: str
    operation: str
    shapes: Shapes
    tiny: Shapes
    states: int = 0
    offsets: tuple[list[int], list[int]] | None = None


@dataclass(frozen=True)
class Error:
    """The error of one result of a call; ``passed`` is False too if it is NaN."""

    call: str
    dtype: str
    result: str
    error: float
    passed: bool


def _mlstm(lead: tuple[int, ...], N: int, K: int, V: int) -> Shapes:
    return ((*lead, N, K), (*lead, N, K), (*lead, N, V), (*lead, N), (*lead, N))


def _state(B: int, N: int, K: int, V: int) -> Shapes:
    return ((B, N, K, V), (B, N, K), (B, N))


def _recurrent(count: int, B: int, S: int, N: int, H: int) -> Shapes:
    return ((B, S, N, H), (N, H, H)) * count if count == 3 else ((B, S, N, H),) * count + ((N, H, H),) * count


def _step(B: int, N: int, H: int) -> Shapes:
    return ((B, N, H),) * 4 + ((N, H, H),) * 4 + ((B, N, H),) * 4


_PACKED = [0, 50, 50, 200], [0, 5, 5, 20]
_TORCH = {
    "mlstm": Call("torch_impl", "mlstm", _mlstm((2, 200), 2, 128, 256), _mlstm((1, 70), 1, 16, 16)),
    "mlstm-packed": Call("torch_impl", "mlstm", _mlstm((200,), 2, 128, 256), _mlstm((20,), 1, 16, 16), offsets=_PACKED),
    "mlstm_step": Call(
        "torch_impl",
        "mlstm_step",
        (*_mlstm((3,), 2, 128, 256), *_state(3, 2, 128, 256)),
        (*_mlstm((2,), 1, 16, 16), *_state(2, 1, 16, 16)),
        states=3,
    ),
    "gru-16": Call("torch_impl", "gru", _recurrent(3, 4, 40, 3, 16), _recurrent(3, 2, 3, 1, 16)),
    "gru-256": Call("torch_impl", "gru", _recurrent(3, 4, 20, 2, 256), _recurrent(3, 1, 2, 1, 130)),
    "slstm-16": Call("torch_impl", "slstm", _recurrent(4, 4, 40, 3, 16), _recurrent(4, 2, 3, 1, 16)),
    "slstm-256": Call("torch_impl", "slstm", _recurrent(4, 4, 20, 2, 256), _recurrent(4, 1, 2, 1, 130)),
    "slstm_step": Call("torch_impl", "slstm_step", _step(3, 2, 64), _step(2, 1, 16), states=4),
    "rev_cumsum": Call("torch_impl", "rev_cumsum", ((3, 1000),), ((2, 40),)),
    "rev_cumsum_off": Call("torch_impl", "rev_cumsum_off", ((3, 1000),), ((2, 40),)),
    "causal_forget_matrix": Call("torch_impl", "causal_forget_matrix", ((3, 200),), ((2, 20),)),
    "dtilde_matrix": Call("torch_impl", "dtilde_matrix", ((3, 200, 1),) * 2, ((2, 20, 1),) * 2),
}
_JAX = ("mlstm", "mlstm_step", "gru-16", "gru-256")
CALLS = _TORCH | {f"pallas-{name}": _TORCH[name]._replace(package="jax_impl") for name in _JAX}
"""By name, at least one call of every kernel."""


def arrays(call: Call, shapes: Shapes, dtype: str) -> list[np.ndarray]:
    """Random arguments, as float64 numbers that the dtypes hold exactly."""
    generator = np.random.default_rng(1)
    found = []
    for number, shape in enumerate(shapes):
        x = generator.standard_normal(shape)
        if len(shape) == 3 and shape[-1] == shape[-2] and call.operation in ("gru", "slstm", "slstm_step"):
            x = x / shape[-1] ** 0.5
        if call.operation == "slstm_step" and number == len(shapes) - call.states + SLSTMState._fields.index("n"):
            x = np.exp(x)
        found.append(_rounded(x, "float32" if number >= len(shapes) - call.states else dtype))
    return found


def _rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        bits = x.astype(np.float32).view(np.uint32)
        return ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
    return x.astype(dtype).astype(np.float64)


def exact(call: Call, x: list[np.ndarray], dy: np.ndarray | None, offsets: list[int] | None) -> dict[str, np.ndarray]:
    """The results by the reference; with ``dy`` also the gradients of all arguments, in order."""
    function, options = getattr(reference, call.operation), _options(offsets, np.array)
    if call.states:
        output, last = function(*x[: -call.states], _state_of(call, x[-call.states :]))
        return {"output": output, **{f"state {n}": part for n, part in enumerate(last)}}
    output = function(*x, **options)
    results = {"output": output[0] if isinstance(output, tuple) else output}
    if dy is None:
        return results
    backward: Callable[..., dict[str, Any]] = getattr(reference, f"{call.operation}_backward")
    cotangent = {"gru": "dy", "mlstm": "dh", "slstm": "dh", "causal_forget_matrix": "dF", "dtilde_matrix": "dD"}
    gradients = backward(*x, **options, **{cotangent.get(call.operation, "dy"): dy})
    of = [gradient for gradient in gradients.values() if isinstance(gradient, np.ndarray)][: len(x)]
    return results | {f"gradient {n}": gradient for n, gradient in enumerate(of)}


def _state_of(call: Call, parts: list[Any]) -> Any:
    return (MLSTMState if call.operation == "mlstm_step" else SLSTMState)(*parts)


def _options(offsets: list[int] | None, array: Callable[[list[int]], Any]) -> dict[str, Any]:
    return {} if offsets is None else {"cu_seqlens": array(offsets)}


def backend_of(call: Call, device: str) -> dict[str, str]:
    """Scans and matrices take no name of a backend."""
    if device == "cpu" or call.operation.startswith("rev_") or call.operation.endswith("_matrix"):
        return {}
    return {"kernel_backend": "triton" if call.package == "torch_impl" else "pallas"}


def by_torch(
    call: Call,
    x: list[np.ndarray],
    dy: np.ndarray | None,
    offsets: list[int] | None,
    dtype: str,
    device: str,
    *,
    backend: dict[str, str],
    captured: bool = False,
) -> dict[str, np.ndarray]:
    """The results of `torch_impl`."""
    import torch

    import torch_impl

    kinds = [dtype] * (len(x) - call.states) + ["float32"] * call.states
    tensors = [torch.from_numpy(a).to(device, getattr(torch, kind)) for a, kind in zip(x, kinds, strict=True)]
    function = getattr(torch_impl, call.operation)
    options = _options(offsets, lambda of: torch.tensor(of, device=device)) | backend
    cotangent = None if dy is None else torch.from_numpy(dy).to(device, getattr(torch, dtype))

    def run() -> dict[str, Any]:
        if call.states:
            output, last = function(*tensors[: -call.states], _state_of(call, tensors[-call.states :]), **options)
            return {"output": output, **{f"state {n}": part for n, part in enumerate(last)}}
        leaves = [tensor.requires_grad_(cotangent is not None) for tensor in tensors]
        output = function(*leaves, **options)
        output = output[0] if isinstance(output, tuple) else output
        gradients = () if cotangent is None else torch.autograd.grad(output, leaves, cotangent)
        return {"output": output, **{f"gradient {n}": gradient for n, gradient in enumerate(gradients)}}

    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = run()
        graph.replay()
    else:
        results = run()
    return {name: result.detach().double().cpu().numpy() for name, result in results.items()}


def by_jax(
    call: Call, x: list[np.ndarray], dy: np.ndarray | None, offsets: list[int] | None, dtype: str, device: str
) -> dict[str, np.ndarray]:
    """The results of `jax_impl`."""
    import jax
    import jax.numpy as jnp

    import jax_impl

    kinds = [dtype] * (len(x) - call.states) + ["float32"] * call.states
    values = [jnp.asarray(a, kind) for a, kind in zip(x, kinds, strict=True)]
    function, backend = getattr(jax_impl, call.operation), backend_of(call, device)
    if call.states:
        output, last = jax.jit(lambda x, state: function(*x, state, **backend))(
            values[: -call.states], _state_of(call, values[-call.states :])
        )
        results = {"output": output, **{f"state {n}": part for n, part in enumerate(last)}}
    else:

        def call_of(*x: Any) -> Any:
            output = function(*x, **_options(offsets, jnp.array), **backend)
            return output[0] if isinstance(output, tuple) else output

        results = {"output": jax.jit(call_of)(*values)}
        if dy is not None:
            cotangent = jnp.asarray(dy, results["output"].dtype)
            gradients = jax.jit(lambda x, d: jax.vjp(call_of, *x)[1](d))(values, cotangent)
            results |= {f"gradient {n}": gradient for n, gradient in enumerate(gradients)}
    return {name: np.asarray(result).astype(np.float64) for name, result in results.items()}


def errors(name: str, dtype: str, device: str, tiny: bool, captured: bool = False) -> list[Error]:
    """The error of every result of a call."""
    call = CALLS[name]
    shapes = call.tiny if tiny else call.shapes
    offsets = None if call.offsets is None else call.offsets[tiny]
    x = arrays(call, shapes, dtype)
    value = exact(call, x, None, offsets)["output"]
    dy = None if call.states else _rounded(np.random.default_rng(2).standard_normal(value.shape), dtype)
    expected = exact(call, x, dy, offsets)
    if call.package == "torch_impl":
        found = by_torch(call, x, dy, offsets, dtype, device, backend=backend_of(call, device), captured=captured)
    else:
        found = by_jax(call, x, dy, offsets, dtype, device)
    rows = []
    for result, wanted in expected.items():
        finite = np.isfinite(wanted)
        off = np.linalg.norm(found[result][finite] - wanted[finite]) / max(np.linalg.norm(wanted[finite]), 1e-30)
        rows.append(Error(name, dtype, result, float(off), bool(off <= LARGEST[dtype])))
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.calls")
    parser.add_argument("name", choices=CALLS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=LARGEST, action="append")
    parser.add_argument("--tiny", action="store_true", help="as small as compute-sanitizer needs it")
    parser.add_argument("--captured", action="store_true", help="the first call is inside a CUDA graph (PyTorch)")
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args(arguments)
    done: list[Error] = []
    for dtype in options.dtype or LARGEST:
        started = time.monotonic()
        rows = errors(options.name, dtype, options.device, options.tiny, options.captured)
        words = ", ".join(f"{row.result} {row.error:.1e}{'' if row.passed else ' WRONG'}" for row in rows)
        print(f"{options.name} {dtype} ({time.monotonic() - started:.1f} s): {words}", flush=True)
        done += rows
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(row) for row in done], indent=1))
    return int(not all(row.passed for row in done))


if __name__ == "__main__":
    sys.exit(main())
