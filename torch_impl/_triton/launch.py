"""Launching of kernels: on the tensors' own device, in its current stream, and without waiting for it."""

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from torch_impl._triton.interpreter import quiet_numerics

FUSED = {"enable_fp_fusion": True}
"""Option of every launch: a product and a sum may become one instruction that rounds once. Stated, because the default
of Triton 3.10 is to be the opposite, and because the committed figures were compiled with it."""


class Launch(NamedTuple):
    """Number of warps of a program, and number of pipeline stages of its loads."""

    num_warps: int = 4
    num_stages: int = 2


def launch(kernel: Any, grid: int | tuple[int, ...], device: torch.device, how: Launch, **arguments: Any) -> None:
    """Run ``kernel`` over ``grid``; an empty grid launches nothing.

    Args:
        kernel: a ``triton.jit`` function.
        grid: number of programs along up to three axes.
        device: the device of the tensors among ``arguments``.
        how: number of warps and stages.
        arguments: the kernel's arguments and constexprs by name.
    """
    grid = (grid,) if isinstance(grid, int) else grid
    if 0 in grid:
        return
    with quiet_numerics(), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[grid](**arguments, **how._asdict(), **FUSED)


def power_of_two(n: int, least: int = 16, most: int = 1 << 30) -> int:
    """The smallest power of two that is at least ``n``, limited to the range from ``least`` to ``most``."""
    return min(max(1 << max(n - 1, 0).bit_length(), least), most)


def dot_precision(dtype: torch.dtype) -> str:
    """The precision of ``tl.dot`` for float32 operands if the values are ``dtype``.

    For float32 values it is IEEE, unless torch's own switch turned TF32 on. For 16-bit values, float32 operands are
    intermediates that replace float16 (same mantissa, no overflow), for which TF32 is exact enough by construction.
    """
    fast = "ieee" if torch.version.hip else "tf32"
    if dtype is torch.float32:
        return fast if torch.get_float32_matmul_precision() != "highest" else "ieee"
    return fast


def capability(device: torch.device) -> int | None:
    """The first number of the compute capability of an NVIDIA GPU; None for others.

    If there is no GPU, because a kernel is interpreted or compiled ahead of time, it is 9.
    """
    if torch.version.hip is not None:
        return None
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 9
