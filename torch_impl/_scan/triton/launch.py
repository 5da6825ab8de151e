"""The launcher of the cumulative sums."""

from typing import NamedTuple

import torch
from torch import Tensor

from torch_impl._triton.launch import Launch, launch, power_of_two


class Rows(NamedTuple):
    """An array as rows of its last axes: the number of rows, and sizes and strides of three axes that index them."""

    x: Tensor
    count: int
    sizes: tuple[int, int, int]
    strides: tuple[int, int, int]

    @classmethod
    def of(cls, x: Tensor, last: int) -> "Rows":
        """Rows of the ``last`` axes of x. Leading axes that are contiguous with each other are merged; the array is
        copied only if more than three remain."""
        merged: list[tuple[int, int]] = []
        for size, stride in zip(x.shape[: x.ndim - last], x.stride(), strict=False):
            if size == 1:
                continue
            if merged and merged[-1][1] == size * stride:
                merged[-1] = (merged[-1][0] * size, stride)
            else:
                merged.append((size, stride))
        if len(merged) > 3:
            return cls.of(x.contiguous(), last)
        merged = [(1, 0)] * (3 - len(merged)) + merged
        sizes, strides = zip(*merged, strict=True)
        return cls(x, sizes[0] * sizes[1] * sizes[2], sizes, strides)


def cumulative(x: Tensor, *, reverse: bool, exclusive: bool) -> Tensor:
    """Sums of the last axis of x up to each element, or with ``reverse`` from each element on.

    Args:
        x: ``(..., S)`` with any strides.
        reverse: sum from the other end.
        exclusive: exclude the element itself.

    Returns:
        ``(..., S)`` in the dtype of x, new and contiguous; summed in float32.
    """
    from torch_impl._scan.triton import kernels

    y, S = torch.empty_like(x, memory_format=torch.contiguous_format), x.shape[-1]
    rows = Rows.of(x, 1)
    if y.numel():
        width = power_of_two(S, most=1024)
        # The height does not depend on the number of rows, because the tile's shape determines the order of the sums.
        height = 2048 // width
        launch(kernels.cumulative, -(-rows.count // height), x.device, Launch(4),
               x=rows.x, sizes=rows.sizes, strides=rows.strides, step=rows.x.stride(-1), y=y, rows=rows.count, S=S,
               REVERSE=reverse, EXCLUSIVE=exclusive, BLOCK_R=height, BLOCK_S=width)  # fmt: skip
    return y


def rev_cumsum(x: Tensor) -> Tensor:
    return cumulative(x, reverse=True, exclusive=False)


def rev_cumsum_backward(dy: Tensor) -> Tensor:
    return cumulative(dy, reverse=False, exclusive=False)


def rev_cumsum_off(x: Tensor) -> Tensor:
    return cumulative(x, reverse=True, exclusive=True)


def rev_cumsum_off_backward(dy: Tensor) -> Tensor:
    return cumulative(dy, reverse=False, exclusive=True)
