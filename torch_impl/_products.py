"""Matrix products of a float32 recurrence on a CPU, by whichever of PyTorch's two libraries is the faster.

``torch.bmm`` goes to MKL, which on processors other than Intel's uses vectors of half their width; oneDNN uses them
whole and takes about half the time, but some ten microseconds more to start. Both compute in float32, or in what the
user allowed by ``torch.set_float32_matmul_precision``.
"""

from collections.abc import Callable

import torch
from torch import Tensor

_STEP = 1 << 21
"""From how many multiplications on a product by a packed weight is the faster."""

_WHOLE = 1 << 23
"""From how many on a product is, its operands laid anew for it."""

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
    return torch.stack([product(a.t(), b.t(), None, "none", [], "") for a, b in zip(x, y, strict=True)])
