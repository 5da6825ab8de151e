"""The time of each kernel of a forward and backward pass: ``python -m benchmarks.gpu.profiles [--json PATH]``.

Times are those of PyTorch's profiler, means of `REPEATS` passes. Inputs are random, and gates remember.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torch_impl

REPEATS = 3
CALLS = {
    "mlstm 8x8192x16x128x256": ("mlstm", (8, 8192, 16, 128, 256)),
    "mlstm 1x65536x16x128x256": ("mlstm", (1, 65536, 16, 128, 256)),
    "gru 8x4096x85x16": ("gru", (8, 4096, 85, 16)),
    "gru 16x1024x12x64": ("gru", (16, 1024, 12, 64)),
    "gru 128x128x1x256": ("gru", (128, 128, 1, 256)),
    "slstm 16x1024x12x64": ("slstm", (16, 1024, 12, 64)),
}
"""The operation and the sizes B, S, N and K, V or H, by name."""


def arguments(operation: str, sizes: tuple[int, ...], device: torch.device) -> list[Tensor]:
    """Random arguments in bfloat16, in order."""
    B, S, N, *widths = sizes

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(shape, device=device)).bfloat16()

    if operation == "mlstm":
        K, V = widths
        return [draw(B, S, N, K), draw(B, S, N, K), draw(B, S, N, V), draw(B, S, N), 3 + draw(B, S, N)]
    (H,) = widths
    inputs, weights = ([draw(*shape, scale=scale) for _ in range(4)] for shape, scale in (
        ((B, S, N, H), 1.0), ((N, H, H), H**-0.5)
    ))  # fmt: skip
    if operation == "slstm":
        return inputs + weights
    return [x for pair in zip(inputs[:3], weights[:3], strict=True) for x in pair]


def profile(operation: str, sizes: tuple[int, ...], device: torch.device) -> list[dict[str, Any]]:
    """The kernels of a call and its gradient, the longest first, with how often each runs in one pass."""
    leaves = [x.requires_grad_() for x in arguments(operation, sizes, device)]
    cotangent = None

    def run() -> None:
        nonlocal cotangent
        found = getattr(torch_impl, operation)(*leaves, kernel_backend="triton" if device.type == "cuda" else "torch")
        output = found[0] if isinstance(found, tuple) else found
        cotangent = torch.randn_like(output) if cotangent is None else cotangent
        torch.autograd.grad(output, leaves, cotangent)

    run()
    on_gpu = device.type == "cuda"
    activity = torch.profiler.ProfilerActivity.CUDA if on_gpu else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity]) as seen:
        for _ in range(REPEATS):
            run()
        if on_gpu:
            torch.cuda.synchronize()
    found = [
        {
            "kernel": event.key,
            "count": event.count / REPEATS,
            "microseconds": (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / REPEATS,
        }
        for event in seen.key_averages()
    ]
    return sorted(found, key=lambda row: -row["microseconds"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.profiles")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args(arguments)
    done: dict[str, list[dict[str, Any]]] = {}
    for name, (operation, sizes) in CALLS.items():
        small = sizes if options.device == "cuda" else (1, 5, 1, *(8 for _ in sizes[3:]))
        done[name] = profile(operation, small, torch.device(options.device))
        print(name)
        for row in done[name][:16]:
            print(f"  {row['microseconds']:10.1f} µs  {row['count']:6.1f} ×  {row['kernel'][:90]}", flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(done, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
