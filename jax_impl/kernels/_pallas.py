"""What every kernel shares: Pallas, imported when a kernel is launched; and float32 as a sum of bfloat16 terms.

Tensor cores would round float32 operands to TF32. Here every operand of a product is written as a sum of bfloat16
arrays, its *terms*, on a leading axis: one for bfloat16, two for float16 (exact), three for float32 (exact to 24
bits). A product of operands of n terms each is n(n+1)/2 products of terms, accumulated in float32; those left out
are below the rounding of the last term kept. Three terms cost what three TF32 products would and read memory in
either order, as TF32 cannot.
"""

import os
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from jax_impl._framework import vary_to, varying_axes
from reference.backends import Request

OLDEST_JAX = (0, 11, 2)
INTERPRET = "GATESPEC_PALLAS_INTERPRET"
TERMS = {"bfloat16": 1, "float16": 2, "float32": 3}
"""bfloat16 terms of an operand, by the dtype of the values."""
SHARED_MEMORY = 227 * 1024
"""Bytes of shared memory that a block may take on compute capability 9.0."""

L = 64
"""Steps a chunk, and the edge of every tile: the M of one wgmma."""


def pallas() -> SimpleNamespace:
    """``pl`` and ``plgpu``."""
    import jax.experimental.pallas as pl
    import jax.experimental.pallas.mosaic_gpu as plgpu

    return SimpleNamespace(pl=pl, plgpu=plgpu)


def interpreted(request_device: str) -> bool:
    """Whether kernels run under Pallas' GPU interpreter: on a CPU, if the environment asks for it."""
    return request_device == "cpu" and os.environ.get(INTERPRET) == "1"


def unavailable(request: Request) -> str | None:
    """Why no Pallas kernel can run in this process on the request's device; None where they can."""
    version = tuple(int(part) for part in re.findall(r"\d+", jax.__version__)[:3])
    if version < OLDEST_JAX:
        return f"it needs JAX {'.'.join(map(str, OLDEST_JAX))} or later (Mosaic GPU), this is JAX {jax.__version__}"
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
    return f"it needs a Hopper GPU (compute capability 9.0) or later, this is {device.device_kind} ({capability})"


def launch(
    kernel: Any,
    interpret: bool,
    *,
    out_type: Sequence[jax.ShapeDtypeStruct],
    auto_barriers: bool = True,
    **options: Any,
) -> Any:
    """``plgpu.kernel`` with the settings that all kernels share; takes operands that vary over any mesh axes.

    Without ``auto_barriers`` the warps of a warpgroup meet only where the kernel says so (`commit_smem`), and not
    around every store as well.
    """
    p = pallas()

    def run(*operands: jax.Array) -> list[jax.Array]:
        axes = frozenset[Any]().union(*map(varying_axes, operands))
        varying = jax.sharding.ManualAxisType(varying=axes) if axes else None
        results = p.plgpu.kernel(
            kernel,
            out_type=[jax.ShapeDtypeStruct(of.shape, of.dtype, manual_axis_type=varying) for of in out_type],
            interpret=p.plgpu.InterpretGPUParams(detect_races=True) if interpret else None,
            compiler_params=p.plgpu.CompilerParams(
                reduction_scratch_bytes=REDUCTION_SCRATCH, unsafe_no_auto_barriers=not auto_barriers
            ),
            **options,
        )(*(vary_to(axes, x) for x in operands))
        return [vary_to(axes, x) for x in results]

    return run


def tile(shape: tuple[int, ...], dtype: Any) -> Any:
    """A tile in shared memory in the order that wgmma and TMA read: 8 rows of 128 bytes, swizzled."""
    plgpu = pallas().plgpu
    swizzled = 128 // jnp.dtype(dtype).itemsize
    return plgpu.SMEM(shape, dtype, transforms=(plgpu.TilingTransform((8, swizzled)), plgpu.SwizzleTransform(128)))


REDUCTION_SCRATCH = 4096
"""Bytes of shared memory for sums across the warps of a warpgroup."""


def split(x: jax.Array, terms: int) -> jax.Array:
    """An array as bfloat16 terms on a new leading axis, outside of kernels."""
    if x.dtype == jnp.bfloat16:
        return x[None]
    return jnp.stack([term.astype(jnp.bfloat16) for term in _terms(x.astype(jnp.float32), terms, _rounded)])


def split_in_kernel(x: jax.Array, terms: int, interpret: bool) -> list[jax.Array]:
    """A float32 tile in registers as bfloat16 terms.

    The interpreter compiles with XLA, which may take a cast to bfloat16 and back for nothing; it gets the rounding
    by name.
    """
    rounded = _rounded if interpret else _cast_and_back
    return [term.astype(jnp.bfloat16) for term in _terms(x, terms, rounded)]


def store(to: Any, x: jax.Array) -> None:
    """A vector or tile from registers to device memory."""
    plgpu = pallas().plgpu
    if hasattr(plgpu, "store"):
        plgpu.store(to, x, optimized=False)
    else:
        to[...] = x


def parts(ref: Any, terms: int) -> list[Any]:
    """A reference to each term of an operand: TMA takes five dimensions, so terms travel one by one."""
    return [ref.at[term] for term in range(terms)]


def joined(refs: Sequence[Any]) -> jax.Array:
    """A tile's terms in shared memory, summed in float32 in registers."""
    *terms, x = (ref[...].astype(jnp.float32) for ref in refs)
    for term in reversed(terms):
        x = term + x
    return x


def multiply(
    acc: Any, a: Sequence[Any], b: Sequence[Any], *, transpose_a: bool = False, transpose_b: bool = False
) -> None:
    """``acc += a @ b`` by wgmma for operands in shared memory, given by their terms; small terms first.

    Products of terms count as far as the longer operand goes.
    """
    plgpu = pallas().plgpu
    for total in reversed(range(max(len(a), len(b)))):
        for first in range(max(0, total + 1 - len(b)), min(total + 1, len(a))):
            x, y = a[first], b[total - first]
            plgpu.wgmma(acc, x.transpose((1, 0)) if transpose_a else x, y.transpose((1, 0)) if transpose_b else y)


def _terms(x: jax.Array, terms: int, rounded: Any) -> list[jax.Array]:
    result = []
    for _ in range(terms - 1):
        result.append(rounded(x))
        x = x - result[-1]
    return [*result, x]


def _rounded(x: jax.Array) -> jax.Array:
    return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def _cast_and_back(x: jax.Array) -> jax.Array:
    return x.astype(jnp.bfloat16).astype(jnp.float32)
