"""Programs with Pallas kernels, lowered for an H100 that need not be present, and the resources of each kernel."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import export

MOST_BLOCKS = (2**31 - 1, 65_535, 65_535)
"""CUDA's limits of a grid."""
H100 = {"device_kind": "NVIDIA H100 80GB HBM3", "num_cores": 132, "platform": "gpu"}


class Kernel(NamedTuple):
    """A kernel of a lowered program.

    Attributes:
        name: the name of the kernel's function.
        grid: number of blocks on each of CUDA's three axes.
        shared: bytes of shared memory per block.
        products: dtypes of its tensor core products, each as ``sum.left.right``.
    """

    name: str
    grid: tuple[int, ...]
    shared: int
    products: tuple[str, ...]


def lowered(function: Callable, *shapes: Any) -> tuple[str, list[Kernel]]:
    """The module of ``function`` for an H100, and its kernels in the order in which they were lowered.

    Raises if a kernel does not lower or needs more shared memory than there is.
    """
    from jax.experimental.mosaic.gpu import core

    kernels: list[Kernel] = []
    serialise = core._run_serde_pass

    def recorded(module: Any, **options: Any) -> Any:
        kernels.append(_kernel(module.operation.get_asm(print_generic_op_form=True)))
        return serialise(module, **options)

    device = jax.sharding.AbstractDevice(**H100)
    unchecked = [export.DisabledSafetyCheck.custom_call("mosaic_gpu_v2")]
    core._run_serde_pass = recorded
    try:
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device)):
            exported = export.export(jax.jit(function), platforms=["cuda"], disabled_checks=unchecked)(*shapes)
    finally:
        core._run_serde_pass = serialise
    return exported.mlir_module(), kernels


def products(module: str) -> set[str]:
    """The dtypes of all tensor core products of a module: the sum and both operands."""
    return set(re.findall(r"wgmma\.mma_async\.sync\.aligned\.m\d+n\d+k\d+\.(\w+\.\w+\.\w+)", module))


def _kernel(module: str) -> Kernel:
    (name,) = re.findall(r'sym_name = "(\w+)_mosaic_gpu"', module)
    operands = re.findall(r'"gpu\.launch"\((.*?)\)', module)[0].split(", ")

    def constant(operand: str) -> int:
        (value,) = re.findall(rf'{operand} = "arith\.constant".*?value = (\d+)', module)
        return int(value)

    grid = tuple(constant(operand) for operand in operands[-7:-4])
    return Kernel(name, grid, constant(operands[-1]), tuple(sorted(products(module))))
