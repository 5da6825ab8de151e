"""Helpers shared by all Pallas kernels (Mosaic GPU: Hopper and later), and float32 as a sum of bfloat16 terms.

Pallas is imported only when a kernel is launched, so that this module and the kernels' modules load with any JAX.

Tensor cores would round float32 operands to TF32. Here every operand of a product is written as a sum of bfloat16
arrays, its *terms*, on a leading axis: one term for bfloat16, two for float16 (exact), three for float32 (exact to 24
bits). The product of two operands of n terms each takes n(n+1)/2 products of terms, accumulated in float32; the other
products of terms are smaller than the rounding of the last term. Three terms cost as much as three TF32 products, and
their operands may have either memory order, unlike those of TF32.
"""

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from jax_impl._mesh_axes import vary_to, varying_axes
from reference.backends import Request

OLDEST_JAX = (0, 11, 2)
INTERPRET = "GATESPEC_PALLAS_INTERPRET"
TERMS = {"bfloat16": 1, "float16": 2, "float32": 3}
"""Number of bfloat16 terms of an operand, by the dtype of the values."""
FLOAT, HALF = jnp.float32, jnp.bfloat16
"""Dtypes of sums, and of the terms of operands."""
SHARED_MEMORY = 227 * 1024
"""Bytes of shared memory available to a block on compute capability 9.0."""
SLACK = 1024
"""Bytes of shared memory reserved for barriers and alignment."""
REDUCTION_SCRATCH = 4096
"""Bytes of shared memory reserved for sums across the warps of a warpgroup."""

L = 64
"""Steps per chunk, and the edge of every tile: the M of one wgmma."""


def pallas() -> SimpleNamespace:
    """The modules of Pallas, as ``pl`` and ``plgpu``."""
    import jax.experimental.pallas as pl
    import jax.experimental.pallas.mosaic_gpu as plgpu

    return SimpleNamespace(pl=pl, plgpu=plgpu)


def interpreted(device: str) -> bool:
    """Whether kernels run under Pallas' GPU interpreter: on a CPU, if the environment variable asks for it."""
    return device == "cpu" and os.environ.get(INTERPRET) == "1"


def unavailable(request: Request) -> str | None:
    """The reason why no Pallas kernel can run in this process on the request's device; None if one can."""
    version = tuple(int(part) for part in re.findall(r"\d+", jax.__version__)[:3])
    if version < OLDEST_JAX:
        return f"it needs JAX {'.'.join(map(str, OLDEST_JAX))} or later (Mosaic GPU), but this is JAX {jax.__version__}"
    if request.device == "cpu":
        return None if interpreted("cpu") else f"on a CPU it runs only under its interpreter ({INTERPRET}=1)"
    if request.device in ("gpu", "cuda"):
        return _unsuitable_gpu()
    return None


def _unsuitable_gpu() -> str | None:
    try:
        device = jax.devices("gpu")[0]
    except RuntimeError:
        return None
    capability = getattr(device, "compute_capability", "")
    try:
        suits = float(capability) >= 9.0
    except (TypeError, ValueError):
        suits = False
    if suits:
        return None
    return f"it needs a Hopper GPU (compute capability 9.0) or later, but this is {device.device_kind} ({capability})"


def launch(
    kernel: Callable[..., None],
    interpret: bool,
    *,
    operands: Mapping[str, jax.Array | None],
    results: Mapping[str, jax.ShapeDtypeStruct | None],
    scratch: Mapping[str, Any],
    grid: Mapping[str, int],
    auto_barriers: bool = True,
) -> dict[str, jax.Array]:
    """Run a kernel whose parameters have the names of its operands, results and scratch.

    Args:
        kernel: called with the indices of its block, by the names of the grid's axes, then with a reference for each
            name, or with None for each name that is None here.
        interpret: whether the GPU interpreter runs it.
        operands: arrays, which may vary over any mesh axes; None for an operand that this launch does not have.
        results: shapes and dtypes of the results; None for a result that this launch does not have.
        scratch: shared memory and barriers of a block.
        grid: the sizes of the grid's axes, by name. They are launched as one axis: of CUDA's three axes, only the first
            takes more than 65,535 blocks.
        auto_barriers: if False, the warps of a warpgroup synchronise only where the kernel asks for it
            (`commit_smem`), and not around every store as well.

    Returns:
        The results, by name.
    """
    p = pallas()
    given = {name: x for name, x in operands.items() if x is not None}
    wanted = {name: of for name, of in results.items() if of is not None}
    absent = dict.fromkeys((operands.keys() | results.keys()) - given.keys() - wanted.keys())
    names = (*given, *wanted, *scratch)

    def named(*references: Any) -> None:
        block = _indices(jax.lax.axis_index("block"), grid)
        kernel(block, **dict(zip(names, references, strict=True)), **absent)

    named.__name__ = kernel.__name__
    axes = frozenset[Any]().union(*map(varying_axes, given.values()))
    varying = jax.sharding.ManualAxisType(varying=axes) if axes else None
    run = p.plgpu.kernel(
        named,
        out_type=[jax.ShapeDtypeStruct(of.shape, of.dtype, manual_axis_type=varying) for of in wanted.values()],
        scratch_types=list(scratch.values()),
        grid=(math.prod(grid.values()),),
        grid_names=("block",),
        interpret=p.plgpu.InterpretGPUParams(detect_races=True) if interpret else None,
        compiler_params=p.plgpu.CompilerParams(
            reduction_scratch_bytes=REDUCTION_SCRATCH, unsafe_no_auto_barriers=not auto_barriers
        ),
    )
    found = run(*(vary_to(axes, x) for x in given.values()))
    return {name: vary_to(axes, x) for name, x in zip(wanted, found, strict=True)}


def _indices(block: jax.Array, grid: Mapping[str, int]) -> dict[str, jax.Array]:
    """The index of a block on every axis; neighbours differ on the last axis."""
    indices = {}
    for axis, size in reversed([*grid.items()]):
        indices[axis], block = jax.lax.rem(block, jnp.int32(size)), jax.lax.div(block, jnp.int32(size))
    return indices


def tile(shape: tuple[int, ...], dtype: Any) -> Any:
    """A tile in shared memory in the layout that wgmma and TMA read: 8 rows of 128 bytes, swizzled."""
    plgpu = pallas().plgpu
    swizzled = 128 // jnp.dtype(dtype).itemsize
    return plgpu.SMEM(shape, dtype, transforms=(plgpu.TilingTransform((8, swizzled)), plgpu.SwizzleTransform(128)))


def split(x: jax.Array, terms: int) -> jax.Array:
    """Split an array into bfloat16 terms on a new leading axis, outside kernels."""
    if x.dtype == HALF:
        return x[None]
    return jnp.stack([term.astype(HALF) for term in _terms(x.astype(FLOAT), terms, _rounded)])


def split_in_kernel(x: jax.Array, terms: int, interpret: bool) -> list[jax.Array]:
    """Split a float32 tile in registers into bfloat16 terms.

    The interpreter compiles with XLA, which may remove a cast to bfloat16 and back; there the rounding is therefore a
    separate operation.
    """
    rounded = _rounded if interpret else _cast_and_back
    return [term.astype(HALF) for term in _terms(x, terms, rounded)]


def store(to: Any, x: jax.Array) -> None:
    """Store a vector or tile from registers in device memory."""
    plgpu = pallas().plgpu
    if hasattr(plgpu, "store"):
        plgpu.store(to, x, optimized=False)
    else:
        to[...] = x


def parts(ref: Any, terms: int) -> list[Any]:
    """A reference to each term of an operand. TMA takes at most five dimensions, so terms are copied one by one."""
    return [ref.at[term] for term in range(terms)]


def joined(refs: Sequence[Any]) -> jax.Array:
    """The sum of a tile's terms in shared memory, in float32 in registers."""
    *terms, x = (ref[...].astype(FLOAT) for ref in refs)
    for term in reversed(terms):
        x = term + x
    return x


def multiply(
    acc: Any, a: Sequence[Any], b: Sequence[Any], *, transpose_a: bool = False, transpose_b: bool = False
) -> None:
    """``acc += a @ b`` by wgmma for operands in shared memory, given as their terms; small terms are added first.

    The products of terms that are omitted are smaller than the last term of the longer operand.
    """
    plgpu = pallas().plgpu
    for total in reversed(range(max(len(a), len(b)))):
        for first in range(max(0, total + 1 - len(b)), min(total + 1, len(a))):
            x, y = a[first], b[total - first]
            plgpu.wgmma(acc, x.transpose((1, 0)) if transpose_a else x, y.transpose((1, 0)) if transpose_b else y)


def over_rows(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """A value for each row of a tile, repeated over its columns."""
    return jax.lax.broadcast_in_dim(x, shape, (0,))


def over_columns(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """A value for each column of a tile, repeated over its rows."""
    return jax.lax.broadcast_in_dim(x, shape, (1,))


def _terms(x: jax.Array, terms: int, rounded: Any) -> list[jax.Array]:
    result = []
    for _ in range(terms - 1):
        result.append(rounded(x))
        x = x - result[-1]
    return [*result, x]


def _rounded(x: jax.Array) -> jax.Array:
    return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def _cast_and_back(x: jax.Array) -> jax.Array:
    return x.astype(HALF).astype(FLOAT)
