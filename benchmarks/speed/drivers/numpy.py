"""The driver for NumPy functions, whose gradients are separate functions, called with the output's cotangent ``dh``."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.speed.timing import Run, wall_clock

Function = Callable[..., tuple[np.ndarray, ...]]


class NumpyDriver:
    """Runs a function of named arrays in float64.

    Args:
        device: ``cpu``; there is no other.
        dtype: ``float64``.
    """

    def __init__(self, device: str, dtype: str):
        if (device, dtype) != ("cpu", "float64"):
            raise RuntimeError(f"it computes in float64 on a CPU, not in {dtype} on {device}")

    def natives(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: np.ascontiguousarray(x, np.float64) for name, x in arrays.items()}

    def forward(self, function: Function, natives: Mapping[str, Any]) -> Run:
        def run() -> None:
            function(**natives)

        return run

    def both(self, function: Function, natives: Mapping[str, Any]) -> Run:
        """Compute the value, then the gradients."""
        dh = np.random.default_rng(1).standard_normal(function(**natives)[0].shape)

        def run() -> None:
            function(**natives)
            function(**natives, dh=dh)

        return run

    def values(
        self, function: Function, natives: Mapping[str, Any], cotangents: list[np.ndarray] | None
    ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        gradients = {} if cotangents is None else dict(zip(natives, function(**natives, dh=cotangents[0]), strict=True))
        return list(function(**natives)), gradients

    def warm(self, run: Run) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    def clock(self) -> Callable[[Run, int], float]:
        return wall_clock

    def rates(self, dtype: str) -> tuple[float, float]:
        """Measured ceilings: operations per second of a large product, bytes per second of a large copy."""
        a, source = np.ones((1024, 1024)), np.ones(2**24)
        target = np.empty_like(source)
        product, copy = (lambda: np.dot(a, a)), (lambda: np.copyto(target, source))
        flops = 2 * 1024**3 / min(wall_clock(product, 1) for _ in range(10))
        return flops, 2 * source.nbytes / min(wall_clock(copy, 1) for _ in range(10))

    def peak_bytes(self, run: Run) -> None:
        """Not available within a process."""
        return None

    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__}
