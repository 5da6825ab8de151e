"""What the tests of Pallas kernels share: when they can run, and lowering for a GPU that is not there."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import export

from jax_impl.kernels import _pallas

JAX = tuple(int(part) for part in re.findall(r"\d+", jax.__version__)[:3])
needs_mosaic = pytest.mark.skipif(
    JAX < _pallas.OLDEST_JAX, reason=f"Pallas kernels need JAX {_pallas.OLDEST_JAX}, this is {jax.__version__}"
)


def shape(*sizes: int, dtype=jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def lowered(function, *shapes) -> str:
    """The module of ``function`` for an H100; raises where a kernel does not lower or takes too much shared memory."""
    device = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", 132, "gpu")
    unchecked = [export.DisabledSafetyCheck.custom_call("mosaic_gpu_v2")]
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device)):
        exported = export.export(jax.jit(function), platforms=["cuda"], disabled_checks=unchecked)(*shapes)
    return exported.mlir_module()


def products(module: str) -> set[str]:
    """The dtypes of all tensor core products of a lowered module: sum, and both operands."""
    return set(re.findall(r"wgmma\.mma_async\.sync\.aligned\.m\d+n\d+k\d+\.(\w+\.\w+\.\w+)", module))
