"""Matrix products of a float32 recurrence on a CPU, computed by the faster of PyTorch's two libraries.

``torch.bmm`` calls MKL, which uses half the vector width on processors not made by Intel. oneDNN uses the full width
and takes about half the time, but starts about ten microseconds later. Both compute in float32, or in the precision
that the user allowed by ``torch.set_float32_matmul_precision``.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_impl._arrays import autocast_dtype, transforming
from torch_impl._distributed import is_distributed

_STEP = 1 << 21
"""Minimum number of multiplications at which a product with a packed weight is faster in oneDNN."""

_WHOLE = 1 << 23
"""Minimum number of multiplications at which oneDNN is faster, including the cost of copying the operands."""

_PROJECTION = 1 << 24
"""Minimum number of multiplications at which a projection is faster as a convolution in oneDNN."""

_IMAGES = 16
"""Number of images into which the rows of a projection are divided."""

_STEPS = 16
"""Minimum number of products with the same weight for which packing the weight pays off."""


def _suits(x: Tensor) -> bool:
    """Whether oneDNN may compute a product of ``x``: it is built in and `torch.backends.mkldnn` is not turned off."""
    onednn = torch.backends.mkldnn
    return x.dtype is torch.float32 and x.device.type == "cpu" and onednn.is_available() and bool(onednn.enabled)


def packed(weight: Tensor, rows: int, steps: int) -> Callable[[Tensor, Tensor], Tensor] | None:
    """``(h, x)`` → ``x + h @ weight``, a new tensor, for ``(1, rows, ·)``; None if ``baddbmm`` is faster.

    Args:
        weight: ``(N, ·, ·)``; oneDNN is used for a single head only.
        rows, steps: number of rows of a product, and number of products.
    """
    N, inner, outer = weight.shape
    if N != 1 or steps < _STEPS or rows * inner * outer < _STEP or not _suits(weight):
        return None
    product = torch.ops.mkldnn._linear_pointwise.binary
    weights = torch.ops.mkldnn._reorder_linear_weight(weight[0].t(), rows)

    def add(h: Tensor, x: Tensor) -> Tensor:
        return product(h[0], x[0], weights, None, "add")[None]

    return add


def summed(x: Tensor, y: Tensor) -> Tensor:
    """``Σ_r x_rᵀ y_r`` head by head: ``(N, R, ·)`` and ``(N, R, ·)`` → ``(N, ·, ·)``."""
    N, R, inner = x.shape
    if N == 0 or R * inner * y.shape[-1] < _WHOLE or not _suits(x):
        return torch.bmm(x.mT, y)
    product = torch.ops.mkldnn._linear_pointwise.default
    # oneDNN is a thousand times slower on a transposed slice of columns.
    pairs = zip(x, y.contiguous(), strict=True)
    return torch.stack([product(a.t(), b.t(), None, "none", [], "") for a, b in pairs])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x Wᵀ + b``: ``(..., I)`` and ``(O, I)`` → ``(..., O)``; differentiable.

    A large projection is computed as a convolution.
    """
    ours = not (torch.compiler.is_compiling() or transforming() or is_distributed(x)) and autocast_dtype(x) is None
    if not ours or x.numel() * weight.shape[0] < _PROJECTION or not _suits(x):
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    if rows.shape[0] % _IMAGES:
        return F.linear(x, weight, bias)
    images = F.conv2d(_images(rows), weight[:, :, None, None], bias)
    return images.permute(0, 2, 3, 1).reshape(*x.shape[:-1], -1)


def _images(rows: Tensor) -> Tensor:
    """``(R, ·)`` as images of one column, in channels-last order, for a convolution with a kernel of one point.

    PyTorch computes convolutions by oneDNN, with one thread per image if there are at least 16 images.
    """
    return rows.contiguous().view(_IMAGES, -1, 1, rows.shape[-1]).permute(0, 3, 1, 2)
