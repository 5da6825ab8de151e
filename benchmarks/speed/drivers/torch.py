"""The driver for PyTorch functions: tensors from arrays, gradients by ``torch.autograd.grad``, the device's clock."""

import time
from collections.abc import Callable, Mapping

import numpy as np
import torch

from benchmarks.speed.operations import STATES
from benchmarks.speed.timing import Run, cuda_clock, wall_clock

Function = Callable[..., tuple[torch.Tensor, ...]]


class TorchDriver:
    """Runs a function of named tensors.

    Args:
        device: ``cpu`` or ``cuda``.
        dtype: the dtype of every array that is not a state.
    """

    def __init__(self, device: str, dtype: str):
        self.device = device
        self.dtype = getattr(torch, dtype)

    def natives(self, arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        """The arrays on the device; states stay in float32 if the values have a 16-bit dtype."""
        wide = self.dtype if self.dtype == torch.float64 else torch.float32
        return {
            name: torch.from_numpy(np.array(x, order="C")).to(self.device, wide if name in STATES else self.dtype)
            for name, x in arrays.items()
        }

    def forward(self, function: Function, natives: Mapping[str, torch.Tensor]) -> Run:
        def run() -> None:
            with torch.no_grad():
                function(**natives)

        return run

    def both(self, function: Function, natives: Mapping[str, torch.Tensor]) -> Run:
        leaves = {name: x.detach().requires_grad_() for name, x in natives.items()}
        with torch.no_grad():
            shapes = function(**natives)
        cotangents = [torch.randn_like(y) for y in shapes]

        def run() -> None:
            torch.autograd.grad(function(**leaves), list(leaves.values()), cotangents, allow_unused=True)

        return run

    def values(
        self, function: Function, natives: Mapping[str, torch.Tensor], cotangents: list[np.ndarray] | None
    ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Outputs and, with cotangents, gradients, in float64."""
        leaves = {name: x.detach().requires_grad_() for name, x in natives.items()}
        outputs = function(**leaves)
        gradients: dict[str, np.ndarray] = {}
        if cotangents is not None:
            given = [
                torch.from_numpy(np.array(d, order="C")).to(y.device, y.dtype)
                for d, y in zip(cotangents, outputs, strict=True)
            ]
            found = torch.autograd.grad(
                outputs, list(leaves.values()), given, allow_unused=True, materialize_grads=True
            )
            gradients = {name: _float64(x) for name, x in zip(leaves, found, strict=True)}
        return [_float64(y) for y in outputs], gradients

    def warm(self, run: Run) -> float:
        """Seconds of the first call, which compiles the kernels."""
        start = time.perf_counter()
        run()
        self.wait()
        return time.perf_counter() - start

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def clock(self) -> Callable[[Run, int], float]:
        return cuda_clock() if self.device == "cuda" else wall_clock

    def rates(self, dtype: str) -> tuple[float, float]:
        """Measured ceilings: operations per second of a large product, bytes per second of a large copy."""
        size = 8192 if self.device == "cuda" else 1024
        a, b = (torch.randn(size, size, device=self.device).to(self.dtype) for _ in "ab")
        source = torch.empty(2**28 if self.device == "cuda" else 2**25, device=self.device)
        target = torch.empty_like(source)
        clock = self.clock()

        def product() -> None:
            torch.mm(a, b)

        def copy() -> None:
            target.copy_(source)

        self.warm(product)
        self.warm(copy)
        return (
            2 * size**3 / min(clock(product, 1) for _ in range(10)),
            2 * 4 * source.numel() / min(clock(copy, 1) for _ in range(10)),
        )

    def peak_bytes(self, run: Run) -> int | None:
        """The maximum that the device held during a call beyond what it held before; None on a CPU."""
        if self.device != "cuda":
            return None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def versions(self) -> dict[str, str]:
        found = {"torch": str(torch.__version__), "torch threads": str(torch.get_num_threads())}
        if self.device == "cuda":
            found["gpu"] = torch.cuda.get_device_name()
        return found


def _float64(x: torch.Tensor) -> np.ndarray:
    return x.detach().cpu().double().numpy()
