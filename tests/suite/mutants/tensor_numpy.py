"""The part of NumPy that the specification's loops and their mutants use, on PyTorch tensors, for autograd."""

from typing import Any

import numpy
import torch

inf, nan = float("inf"), float("nan")
s_, errstate = numpy.s_, numpy.errstate
ndarray = torch.Tensor
float16, float32, float64 = torch.float16, torch.float32, torch.float64

einsum, tanh, log, log1p, abs, sqrt_of_tensor = (
    torch.einsum,
    torch.tanh,
    torch.log,
    torch.log1p,
    torch.abs,
    torch.sqrt,
)
isneginf, isfinite, isnan, sign = torch.isneginf, torch.isfinite, torch.isnan, torch.sign


def _tensor(x: Any) -> torch.Tensor:
    return x if isinstance(x, torch.Tensor) else torch.as_tensor(x, dtype=torch.get_default_dtype())


def exp(x: torch.Tensor) -> torch.Tensor:
    """An exponential that overflows is ∞ and has gradient 0.

    The normaliser's floor exp(−m) overflows where m is very low. There h is 0, and so is the gradient that reaches the
    floor, but autograd multiplies it by the exponential: 0·∞ is NaN.
    """
    infinite = torch.isposinf(torch.exp(x.detach()))
    return torch.where(infinite, inf, torch.exp(torch.where(infinite, 0.0, x)))


def sqrt(x: Any) -> Any:
    return sqrt_of_tensor(x) if isinstance(x, torch.Tensor) else float(numpy.sqrt(x))


def maximum(x: Any, y: Any) -> torch.Tensor:
    return torch.maximum(*torch.broadcast_tensors(_tensor(x), _tensor(y)))


def minimum(x: Any, y: Any) -> torch.Tensor:
    return torch.minimum(*torch.broadcast_tensors(_tensor(x), _tensor(y)))


def fmax(x: Any, y: Any) -> torch.Tensor:
    return torch.fmax(*torch.broadcast_tensors(_tensor(x), _tensor(y)))


def clip(x: torch.Tensor, low: Any, high: Any) -> torch.Tensor:
    return torch.clip(x, low, high)


def where(condition: Any, x: Any, y: Any) -> torch.Tensor:
    return torch.where(torch.as_tensor(condition), _tensor(x), _tensor(y))


def broadcast_arrays(*arrays: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.broadcast_tensors(*arrays)


def broadcast_to(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.broadcast_to(x, shape)


def subtract(x: torch.Tensor, y: torch.Tensor, *, out: torch.Tensor, where: torch.Tensor | None = None) -> torch.Tensor:
    """NumPy writes the difference into ``out`` where ``where`` holds."""
    if where is None:
        out[...] = x - y
    else:
        # Masked before it is subtracted, so that −∞ − (−∞) has no part in the gradient.
        zero = torch.zeros(())
        difference = torch.where(where, x, zero) - torch.where(where, y, zero)
        out[...] = torch.where(where, difference, out)
    return out


def full(shape: Any, value: float) -> torch.Tensor:
    return torch.full(tuple(shape), value)


def empty(shape: Any) -> torch.Tensor:
    return torch.zeros(tuple(shape))


def zeros(shape: Any) -> torch.Tensor:
    return torch.zeros(tuple(shape))


def ones(shape: Any) -> torch.Tensor:
    return torch.ones(tuple(shape))


def arange(*bounds: int) -> torch.Tensor:
    return torch.arange(*bounds)


def tri(rows: int, columns: int | None = None, dtype: Any = None) -> torch.Tensor:
    return torch.ones(rows, columns or rows).tril().to(torch.bool if dtype is bool else torch.get_default_dtype())


def tril(x: torch.Tensor, k: int = 0) -> torch.Tensor:
    return torch.tril(x, k)


def cumsum(x: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.cumsum(x, dim=axis)


def flip(x: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.flip(x, (axis,))


def roll(x: torch.Tensor, shift: int, axis: int) -> torch.Tensor:
    return torch.roll(x, shift, axis)


def moveaxis(x: torch.Tensor, source: int, target: int) -> torch.Tensor:
    return torch.moveaxis(x, source, target)


def repeat(x: torch.Tensor, times: int, axis: int) -> torch.Tensor:
    return torch.repeat_interleave(x, times, dim=axis)


def tile(x: torch.Tensor, times: Any) -> torch.Tensor:
    return torch.tile(x, tuple(times))


def concatenate(arrays: Any, axis: int = 0) -> torch.Tensor:
    return torch.cat(tuple(arrays), dim=axis)


def stack(arrays: Any, axis: int = 0) -> torch.Tensor:
    return torch.stack(tuple(arrays), dim=axis)


def sum(x: torch.Tensor, axis: Any = None) -> torch.Tensor:
    return torch.sum(x) if axis is None else torch.sum(x, dim=axis)
