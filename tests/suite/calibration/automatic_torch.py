"""Definitions in PyTorch, differentiated by autograd, as variants; eagerly or compiled by inductor."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from conformance.base.dtypes import HALF, accumulation
from conformance.operations import Operation
from tests.suite.calibration.arithmetic import SIGNIFICANT_BITS
from tests.suite.calibration.automatic import Automatic, Values, called
from tests.suite.definitions import gru_torch, mlstm_torch, slstm_torch, sums_torch


class RoundedOperand(torch.autograd.Function):
    """An operand with so many significant bits; the gradient that comes back is one too.

    Only the significand is rounded: a kernel in which an operand leaves the range of float16 scales it first.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bits: int) -> torch.Tensor:
        ctx.bits = bits
        return _rounded(x, bits)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple:
        return _rounded(gradients[0], ctx.bits), None


class RoundedProduct(torch.autograd.Function):
    """``h W``, head by head, with operands of so many significant bits, the gradient of the product among them."""

    @staticmethod
    def forward(ctx: Any, h: torch.Tensor, W: torch.Tensor, bits: int) -> torch.Tensor:
        ctx.bits = bits
        operands = _rounded(h, bits), _rounded(W, bits)
        ctx.save_for_backward(*operands)
        return slstm_torch.head_by_head(*operands)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple:
        h, W = ctx.saved_tensors
        d = _rounded(gradients[0], ctx.bits)
        return slstm_torch.head_by_head(d, W.mT), torch.einsum("bni,bnj->nij", h, d), None


def _rounded(x: torch.Tensor, bits: int) -> torch.Tensor:
    fraction, exponent = torch.frexp(x)
    return torch.ldexp(torch.round(fraction * 2.0**bits), exponent - bits)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.config.recompile_limit = 256
    return torch.compile(function, dynamic=False, fullgraph=True)


@dataclass(frozen=True)
class TorchForm(Automatic):
    """A definition in PyTorch.

    Attributes:
        operands: the format to which operands of products are rounded: ``dtype`` for that of 16-bit values, ``tf32``,
            or None.
        compiled: by inductor.
    """

    operands: str | None = None
    compiled: bool = False

    def _rounding(self, dtype: str) -> dict[str, Callable[..., torch.Tensor]]:
        """The option of the definition that rounds operands."""
        format = dtype if self.operands == "dtype" and dtype in HALF else self.operands
        bits = SIGNIFICANT_BITS.get(format or "")
        if bits is None:
            return {}
        if self.function is slstm_torch.slstm:
            return {"product": lambda h, W: RoundedProduct.apply(h, W, bits)}
        return {"operand": lambda x: RoundedOperand.apply(x, bits)}

    def differentiated(
        self, record: Operation, arrays: Values, options: Mapping[str, Any], cotangents: Values, dtype: str
    ) -> tuple[Values, Values]:
        kind = getattr(torch, accumulation(dtype))
        leaves = {name: torch.tensor(x, dtype=kind, requires_grad=True) for name, x in arrays.items()}
        function = _compiled(self.function) if self.compiled else self.function
        outputs = called(record, function, leaves, {**self.options, **self._rounding(dtype), **options})
        reached = [name for name, y in outputs.items() if y.requires_grad]  # Without steps, not those that have steps.
        gradients = torch.autograd.grad(
            [outputs[name] for name in reached],
            list(leaves.values()),
            [torch.tensor(cotangents[name], dtype=kind) for name in reached],
            allow_unused=True,
            materialize_grads=True,
        )
        found = zip(leaves, gradients, strict=True)
        return {name: x.detach().numpy() for name, x in outputs.items()}, {name: x.numpy() for name, x in found}


MLSTM = {
    "PyTorch loop, autograd": TorchForm(mlstm_torch.mlstm),
    "PyTorch, all steps at once, autograd": TorchForm(mlstm_torch.mlstm_parallel, quadratic=True),
    "PyTorch loop, autograd, 16-bit operands": TorchForm(mlstm_torch.mlstm, operands="dtype"),
}
MLSTM_COMPILED = {
    "PyTorch, all steps at once, inductor": TorchForm(mlstm_torch.mlstm_parallel, compiled=True, quadratic=True)
}
MLSTM_UNROLLED = {"PyTorch loop, inductor": TorchForm(mlstm_torch.mlstm, compiled=True)}
MLSTM_DETACHED = {
    "PyTorch loop, m detached": TorchForm(mlstm_torch.mlstm, {"detach_m": True}),
    "PyTorch, all steps at once, m detached": TorchForm(mlstm_torch.mlstm_parallel, {"detach_m": True}, quadratic=True),
}
MLSTM_TF32 = {
    "PyTorch loop, autograd": TorchForm(mlstm_torch.mlstm, operands="tf32"),
    "PyTorch, all steps at once, autograd": TorchForm(mlstm_torch.mlstm_parallel, operands="tf32", quadratic=True),
}
MLSTM_RUNNING_SUMS = {
    "PyTorch, differences of cumulative sums, autograd": TorchForm(
        mlstm_torch.mlstm_parallel, {"running_sums": True}, quadratic=True
    ),
}
GRU_FORMS = {
    "PyTorch loop, autograd": TorchForm(gru_torch.gru),
    "PyTorch loop, autograd, 16-bit operands": TorchForm(gru_torch.gru, operands="dtype"),
}
GRU_UNROLLED = {"PyTorch loop, inductor": TorchForm(gru_torch.gru, compiled=True)}
GRU_TF32 = {"PyTorch loop, autograd": TorchForm(gru_torch.gru, operands="tf32")}
SLSTM_FORMS = {
    "PyTorch loop, autograd": TorchForm(slstm_torch.slstm),
    "PyTorch loop, autograd, 16-bit operands": TorchForm(slstm_torch.slstm, operands="dtype"),
}
SLSTM_UNROLLED = {"PyTorch loop, inductor": TorchForm(slstm_torch.slstm, compiled=True)}
SLSTM_TF32 = {"PyTorch loop, autograd": TorchForm(slstm_torch.slstm, operands="tf32")}


def sums(operation: str) -> dict[str, TorchForm]:
    return {"PyTorch, autograd": TorchForm(getattr(sums_torch, operation))}


def sums_compiled(operation: str) -> dict[str, TorchForm]:
    return {"PyTorch, inductor": TorchForm(getattr(sums_torch, operation), compiled=True)}
