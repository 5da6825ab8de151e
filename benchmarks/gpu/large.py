"""Arrays of more than 2³¹ elements: the last sequence of a batch must give the same alone, gradients included.

``python -m benchmarks.gpu.large [--device cuda] [--elements N] [--json PATH]``
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from torch_impl import gru, mlstm, rev_cumsum, slstm

BEYOND = 2**31 + 2**20
S, N, K = 2048, 16, 128
"""Steps, heads and head dim of a sequence at full size."""


@dataclass(frozen=True)
class Check:
    """``elements`` of the largest input, and the result in ``found``: ``equal``, or where it differs."""

    operation: str
    elements: int
    found: str
    passed: bool


def checks(elements: int, device: torch.device) -> Iterator[Check]:
    """Each operation on at least this many elements; if they are few, with few heads, for machines without a GPU."""
    small = elements < S * N * K
    steps, heads, width = (20, 2, 8) if small else (S, N, K)
    generator = torch.Generator(device).manual_seed(0)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    # A CPU has no kernels; scans take no name, and their kernels by on_gpu.sh's own setting.
    backend = "triton" if device.type == "cuda" else "torch"

    def one_mlstm(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
        h = mlstm(q, k, v, i, f, kernel_backend=backend)
        assert isinstance(h, Tensor)
        return h

    B = -(-elements // (steps * heads * width))
    tokens = [draw(B, steps, heads, *shape) for shape in ((width,), (width,), (width,), (), ())]
    yield _compare("mlstm", one_mlstm, tokens, draw(B, steps, heads, width))
    del tokens
    # The inputs of a GRU or an sLSTM share one array, so that their gradients are one sum.
    H, weights = min(width, 16), [draw(heads, min(width, 16), min(width, 16)) / 4 for _ in range(4)]
    B = -(-elements // (steps * heads * H))
    x = [draw(B, steps, heads, H)]

    def one_gru(x: Tensor) -> Tensor:
        return gru(x, weights[0], x, weights[1], x, weights[2], kernel_backend=backend)[0]

    yield _compare("gru", one_gru, x, draw(B, steps, heads, H))

    def one_slstm(x: Tensor) -> Tensor:
        h = slstm(x, x, x, x, *weights, kernel_backend=backend)
        assert isinstance(h, Tensor)
        return h

    # The gradients of four inputs take 70 GiB.
    roomy = device.type == "cpu" or torch.cuda.get_device_properties(device).total_memory > 100 * 2**30
    yield _compare("slstm" if roomy else "slstm forward", one_slstm, x, draw(B, steps, heads, H) if roomy else None)
    del x
    rows = -(-elements // steps)
    yield _compare("rev_cumsum", rev_cumsum, [draw(rows, steps)], draw(rows, steps))


def _compare(operation: str, function: Callable[..., Tensor], arrays: list[Tensor], cotangent: Tensor | None) -> Check:
    found = [x[-1:].clone() for x in _both(function, arrays, cotangent)]
    alone = _both(function, [x[-1:].clone() for x in arrays], None if cotangent is None else cotangent[-1:])
    # A batch does not change an element of a kernel's results; composed products may be grouped differently.
    exact = arrays[0].is_cuda
    worst = max(
        float((x.double() - y.double()).abs().max() / y.double().abs().max()) for x, y in zip(found, alone, strict=True)
    )
    passed = worst == 0.0 if exact else worst < 1e-5
    words = "equal" if worst == 0.0 else f"differ by {worst:.1e} of the largest element"
    return Check(operation, max(x.numel() for x in arrays), words, passed)


def _both(function: Callable[..., Tensor], arrays: list[Tensor], cotangent: Tensor | None) -> list[Tensor]:
    if cotangent is None:
        return [function(*arrays)]
    leaves = [x.detach().requires_grad_() for x in arrays]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y, leaves, cotangent)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.large")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--elements", type=int, default=BEYOND)
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args(arguments)
    done = []
    for check in checks(options.elements, torch.device(options.device)):
        print(f"{check.operation}: {check.elements} elements, {check.found}", flush=True)
        done.append(check)
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(one) for one in done], indent=1))
    return int(not all(check.passed for check in done))


if __name__ == "__main__":
    sys.exit(main())
