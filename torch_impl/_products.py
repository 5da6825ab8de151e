"""Matrix products of a float32 recurrence on a CPU, by whichever of PyTorch's two libraries is the faster.

``torch.bmm`` goes to MKL, which on processors other than Intel's uses vectors of half their width; oneDNN uses them
whole and takes about half the time, but some ten microseconds more to start. Both compute in float32, or in what the
user allowed by ``torch.set_float32_matmul_precision``.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_impl._arrays import autocast_dtype, transforming

_STEP = 1 << 21
"""From how many multiplications on a product by a packed weight is the faster."""

_WHOLE = 1 << 23
"""From how many on a product is, its operands laid anew for it."""

_PROJECTION = 1 << 24
"""From how many on a projection is, as a convolution."""

_IMAGES = 16
"""Into how many images the rows of a projection are cut."""

_STEPS = 16
"""How many products by one weight are worth packing it."""


def _suits(x: Tensor) -> bool:
    """Whether oneDNN may take it: where it is built in, and `torch.backends.mkldnn` has not been turned off."""
    onednn = torch.backends.mkldnn
    return x.dtype is torch.float32 and x.device.type == "cpu" and onednn.is_available() and bool(onednn.enabled)


def packed(weight: Tensor, rows: int, steps: int) -> Callable[[Tensor, Tensor], Tensor] | None:
    """``(h, x)`` → ``x + h @ weight``, a fresh tensor, for the ``(1, rows, ·)`` of so many steps; None for ``baddbmm``.

    Args:
        weight: ``(N, ·, ·)``; one head is enough work only where there is no other.
    """
    N, inner, outer = weight.shape
    if N != 1 or steps < _STEPS or rows * inner * outer < _STEP or not _suits(weight):
        return None
    product = torch.ops.mkldnn._linear_pointwise.binary
    laid = torch.ops.mkldnn._reorder_linear_weight(weight[0].t(), rows)

    def add(h: Tensor, x: Tensor) -> Tensor:
        return product(h[0], x[0], laid, None, "add")[None]

    return add


def summed(x: Tensor, y: Tensor) -> Tensor:
    """``Σ_r x_rᵀ y_r`` head by head: ``(N, R, ·)`` and ``(N, R, ·)`` → ``(N, ·, ·)``."""
    N, R, inner = x.shape
    if N == 0 or R * inner * y.shape[-1] < _WHOLE or not _suits(x):
        return torch.bmm(x.mT, y)
    product = torch.ops.mkldnn._linear_pointwise.default
    # Of a slice of columns, transposed, oneDNN makes a thousand times the work.
    pairs = zip(x, y.contiguous(), strict=True)
    return torch.stack([product(a.t(), b.t(), None, "none", [], "") for a, b in pairs])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x Wᵀ + b``: ``(..., I)`` and ``(O, I)`` → ``(..., O)``; differentiable.

    A large one is a convolution.
    """
    ours = not (torch.compiler.is_compiling() or transforming()) and autocast_dtype(x) is None
    if not ours or x.numel() * weight.shape[0] < _PROJECTION or not _suits(x):
        return F.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    if rows.shape[0] % _IMAGES:
        return F.linear(x, weight, bias)
    images = F.conv2d(_images(rows), weight[:, :, None, None], bias)
    return images.permute(0, 2, 3, 1).reshape(*x.shape[:-1], -1)


def _images(rows: Tensor) -> Tensor:
    """``(R, ·)`` as images of one column, their channels last, for a convolution of one point.

    PyTorch gives convolutions to oneDNN, on one thread where there are 16 images or more.
    """
    return rows.contiguous().view(_IMAGES, -1, 1, rows.shape[-1]).permute(0, 3, 1, 2)
