"""How a kernel is launched: on the tensors' own device, in its current stream, and without waiting for it."""

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from torch_impl._triton.interpreter import surroundings


class Launch(NamedTuple):
    """How many warps a program has, and how many stages deep its loads are pipelined."""

    num_warps: int = 4
    num_stages: int = 2


def launch(kernel: Any, grid: int | tuple[int, ...], device: torch.device, how: Launch, **arguments: Any) -> None:
    """Run ``kernel`` over ``grid``; an empty grid is no launch.

    Args:
        kernel: a ``triton.jit`` function.
        grid: how many programs, along up to three axes.
        device: that of the tensors among ``arguments``.
        how: warps and stages.
        arguments: the kernel's arguments and constexprs by name.
    """
    grid = (grid,) if isinstance(grid, int) else grid
    if 0 in grid:
        return
    with surroundings(), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[grid](**arguments, **how._asdict())


def power_of_two(n: int, least: int = 16, most: int = 1 << 30) -> int:
    """The smallest power of two that holds ``n``, kept within ``least`` and ``most``."""
    return min(max(1 << max(n - 1, 0).bit_length(), least), most)


def dot_precision(dtype: torch.dtype) -> str:
    """What ``tl.dot`` does to float32 operands beside values of ``dtype``.

    Beside float32 values: IEEE, unless torch's own switch turned TF32 on. Beside 16-bit values float32 operands are
    intermediates in float16's stead (same mantissa, no overflow), for which TF32 is exact enough by construction.
    """
    fast = "ieee" if torch.version.hip else "tf32"
    if dtype is torch.float32:
        return fast if torch.get_float32_matmul_precision() != "highest" else "ieee"
    return fast


def hopper(device: torch.device) -> bool:
    """Whether tiles are those of compute capability 9.0, whose products read shared memory and leave registers free.

    So they are where the question does not arise: under the interpreter and when a kernel is compiled for no device.
    """
    return device.type != "cuda" or (torch.version.hip is None and torch.cuda.get_device_capability(device)[0] == 9)
