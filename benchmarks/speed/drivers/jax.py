"""The driver for JAX functions: compiled once, gradients by ``jax.vjp``, waiting for the results."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.speed.operations import STATES
from benchmarks.speed.timing import Run, wall_clock

Function = Callable[..., tuple[jax.Array, ...]]


class JaxDriver:
    """Runs a compiled function of named arrays.

    Args:
        device: ``cpu`` or ``cuda``.
        dtype: the dtype of every array that is not a state.
    """

    def __init__(self, device: str, dtype: str):
        if dtype == "float64":
            jax.config.update("jax_enable_x64", True)
        self.device = device
        self.place = jax.devices("gpu" if device == "cuda" else device)[0]
        self.dtype = jnp.dtype(dtype)

    def natives(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The arrays on the device; states stay in float32 if the values have a 16-bit dtype."""
        wide = self.dtype if self.dtype == jnp.float64 else jnp.dtype("float32")
        return {
            name: jax.device_put(np.asarray(x).astype(wide if name in STATES else self.dtype), self.place)
            for name, x in arrays.items()
        }

    def forward(self, function: Function, natives: Mapping[str, Any]) -> Run:
        return _Compiled(lambda arrays: function(**arrays), dict(natives))

    def both(self, function: Function, natives: Mapping[str, Any]) -> Run:
        shapes = jax.eval_shape(lambda arrays: function(**arrays), dict(natives))
        keys = jax.random.split(jax.random.key(0), len(shapes))
        cotangents = tuple(
            jax.device_put(jax.random.normal(key, y.shape, y.dtype), self.place)
            for key, y in zip(keys, shapes, strict=True)
        )
        return _Compiled(lambda arrays, d: _gradients(function, arrays, d)[1], dict(natives), cotangents)

    def values(
        self, function: Function, natives: Mapping[str, Any], cotangents: list[np.ndarray] | None
    ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Outputs and, with cotangents, gradients, in float64."""
        if cotangents is None:
            return [_float64(y) for y in jax.jit(lambda arrays: function(**arrays))(dict(natives))], {}
        shapes = jax.eval_shape(lambda arrays: function(**arrays), dict(natives))
        given = tuple(jnp.asarray(d).astype(y.dtype) for d, y in zip(cotangents, shapes, strict=True))
        outputs, gradients = jax.jit(lambda arrays, d: _gradients(function, arrays, d))(dict(natives), given)
        return [_float64(y) for y in outputs], {name: _float64(x) for name, x in gradients.items()}

    def warm(self, run: Run) -> float:
        """Seconds of the first call, which traces and compiles everything."""
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    def clock(self) -> Callable[[Run, int], float]:
        return wall_clock

    def rates(self, dtype: str) -> tuple[float, float]:
        """Measured ceilings: operations per second of a large product, bytes per second of a large copy."""
        size = 8192 if self.device == "cuda" else 1024
        a = jax.device_put(jnp.ones((size, size), self.dtype), self.place)
        source = jax.device_put(jnp.ones(2**28 if self.device == "cuda" else 2**25, jnp.float32), self.place)
        product, copy = jax.jit(lambda x: x @ x), jax.jit(lambda x: -x)

        def run_product() -> None:
            jax.block_until_ready(product(a))

        def run_copy() -> None:
            jax.block_until_ready(copy(source))

        self.warm(run_product)
        self.warm(run_copy)
        return (
            2 * size**3 / min(wall_clock(run_product, 1) for _ in range(10)),
            2 * source.nbytes / min(wall_clock(run_copy, 1) for _ in range(10)),
        )

    def peak_bytes(self, run: Run) -> int | None:
        """Memory of the compiled program apart from its inputs, including its results, as planned by the compiler."""
        return run.planned_bytes() if isinstance(run, _Compiled) else None

    def versions(self) -> dict[str, str]:
        return {"jax": jax.__version__, "device": str(self.place.device_kind)}


class _Compiled:
    """A compiled call of a function with fixed arrays; it returns when the results are there."""

    def __init__(self, function: Callable, *arrays: Any):
        self._jitted = jax.jit(function)
        self._arrays = arrays

    def __call__(self) -> None:
        jax.block_until_ready(self._jitted(*self._arrays))

    def planned_bytes(self) -> int:
        planned = self._jitted.lower(*self._arrays).compile().memory_analysis()
        assert planned is not None
        return planned.temp_size_in_bytes + planned.output_size_in_bytes


def _gradients(function: Function, arrays: Any, cotangents: Any) -> tuple[Any, Any]:
    outputs, pull = jax.vjp(lambda x: function(**x), arrays)
    return outputs, pull(cotangents)[0]


def _float64(x: Any) -> np.ndarray:
    return np.asarray(x.astype(jnp.float32) if x.dtype.itemsize < 4 else x).astype(np.float64)
