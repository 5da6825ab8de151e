"""Launching of kernels: on the tensors' own device, in its current stream, and without waiting for it."""

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
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
    with ExitStack() as stack:
        stack.enter_context(quiet_numerics())
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
            if torch.cuda.is_current_stream_capturing() and torch.version.hip is None:
                stack.enter_context(_modules_may_be_loaded())
        kernel[grid](**arguments, **how._asdict(), **FUSED)


RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED."""


@contextmanager
def _modules_may_be_loaded() -> Iterator[None]:
    """Context in which this thread may load a kernel while it captures a CUDA graph, as a first call has to.

    CUDA's modes of capture forbid that by default, although loading is no part of the graph.
    """
    mode = ctypes.c_int(RELAXED)
    _exchange_capture_mode(mode)
    try:
        yield
    finally:
        _exchange_capture_mode(mode)


def _exchange_capture_mode(mode: ctypes.c_int) -> None:
    """Set this thread's mode of capture, and write the one before into ``mode``."""
    status = _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    if status:
        raise RuntimeError(f"cuThreadExchangeStreamCaptureMode failed with status {status}")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def offsets_on(device: torch.device, cu_seqlens: torch.Tensor) -> torch.Tensor:
    """``cu_seqlens`` on the device of the kernels; raises if it would have to be copied while a graph is captured."""
    if device.type == "cuda" and cu_seqlens.device.type == "cpu" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "cu_seqlens: received a tensor on the CPU while a CUDA graph is captured, which cannot contain its copy to "
            f"{device}; move it there before the capture"
        )
    return cu_seqlens.to(device)


def power_of_two(n: int, least: int = 16, most: int = 1 << 30) -> int:
    """The smallest power of two that is at least ``n``, limited to the range from ``least`` to ``most``."""
    return min(max(1 << max(n - 1, 0).bit_length(), least), most)


def dot_precision(dtype: torch.dtype) -> str:
    """The precision of ``tl.dot`` for float32 operands if the values are ``dtype``.

    For float32 values it is IEEE, unless torch's own switch turned TF32 on. For 16-bit values, float32 operands are
    intermediates that replace float16 (no overflow), which kernels round to TF32 (float16's mantissa) before a product.
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
