"""Helpers for the tests of Pallas kernels: when they can run, and lowering for a GPU that is not present."""

import re

import jax
import jax.numpy as jnp
import pytest

from benchmarks.gpu import lowering
from benchmarks.gpu.lowering import products as products
from jax_impl import _pallas
from jax_impl._mlstm.arguments import Options
from jax_impl._mlstm.chunkwise import ChunkwiseOptions

JAX = tuple(int(part) for part in re.findall(r"\d+", jax.__version__)[:3])
needs_mosaic = pytest.mark.skipif(
    JAX < _pallas.OLDEST_JAX, reason=f"Pallas kernels need JAX {_pallas.OLDEST_JAX}, this is {jax.__version__}"
)

# A condition in words is looked at when a test runs, and importing this starts no device.
only_interpreted = pytest.mark.skipif(
    "__import__('jax').default_backend() != 'cpu'", reason="it is about the interpreter, and here is a GPU"
)


def interpreted() -> bool:
    """Whether kernels are to be interpreted: on a CPU. On a GPU the same tests run what is compiled."""
    return jax.default_backend() == "cpu"


def mlstm_options(eps: float = 0.0, *, interpret: bool | None = None) -> Options:
    """The options of a call of the mLSTM's kernels; `interpreted` by default."""
    arithmetic = ChunkwiseOptions(L=_pallas.L, eps=eps, stabilize_correctly=True, precision="highest")
    interpret = interpreted() if interpret is None else interpret
    return Options(chunkwise=arithmetic, return_state=True, backend="pallas", interpret=interpret, block=1)


def shape(*sizes: int, dtype=jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def lowered(function, *shapes) -> str:
    """The module of ``function`` for an H100; raises where a kernel does not lower or takes too much shared memory."""
    return lowering.lowered(function, *shapes)[0]


def lowered_kernels(function, *shapes) -> dict[str, set[lowering.Kernel]]:
    """The kernels of ``function`` as they are lowered for an H100, by name."""
    kernels = lowering.lowered(function, *shapes)[1]
    return {name: {kernel for kernel in kernels if kernel.name == name} for name, *_ in kernels}
