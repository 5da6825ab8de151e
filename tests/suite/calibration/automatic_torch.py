"""Definitions in PyTorch, differentiated by autograd, as variants; eagerly or compiled by inductor."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from conformance.base.dtypes import HALF, accumulation
from conformance.operations.gru import GRU
from conformance.operations.slstm import SLSTM
from tests.suite.calibration.arithmetic import SIGNIFICANT_BITS
from tests.suite.definitions import gru_torch, mlstm_torch, slstm_torch, sums_torch

Values = dict[str, np.ndarray]
Tensors = dict[str, torch.Tensor]
QUADRATIC = 1 << 23
"""Elements of a matrix of weights (S, S) that the parallel form takes at a time."""


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
class TorchForm:
    """A definition and how it is run.

    Attributes:
        function: of `tests.suite.definitions`.
        options: that change no value, but may leave a gradient out.
        operands: the format to which operands of products are rounded: ``dtype`` for that of 16-bit values, ``tf32``,
            or None.
        compiled: by inductor.
        quadratic: whether it holds a matrix (S, S) for each head.
    """

    function: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    operands: str | None = None
    compiled: bool = False
    quadratic: bool = False

    def _bits(self, dtype: str) -> int | None:
        format = dtype if self.operands == "dtype" and dtype in HALF else self.operands
        return SIGNIFICANT_BITS.get(format or "")

    def _options(self, dtype: str) -> dict[str, Any]:
        bits = self._bits(dtype)
        if bits is None:
            return self.options
        return {**self.options, "operand": lambda x: RoundedOperand.apply(x, bits)}

    def _called(self) -> Callable[..., Any]:
        return _compiled(self.function) if self.compiled else self.function

    def mlstm(
        self, arrays: Values, cotangents: Values, dtype: str, eps: float, floor_is_one: bool
    ) -> tuple[Values, Values]:
        """Outputs and gradients of a dense call with its state."""
        B, S, N = arrays["i"].shape
        options = {**self._options(dtype), "eps": eps, "floor_is_one": floor_is_one}

        def call(x: Tensors) -> Tensors:
            state = (x["C0"], x["n0"], x["m0"])
            h, last = self._called()(*(x[name] for name in "qkvif"), initial_state=state, return_state=True, **options)
            return {"h": h, **dict(zip("Cnm", last, strict=True))}

        few = max(1, QUADRATIC // max(1, S * S * N)) if self.quadratic else max(B, 1)
        few = next(count for count in range(min(few, max(B, 1)), 0, -1) if max(B, 1) % count == 0)
        parts = []
        for b in range(0, max(B, 1), few):
            given, dgiven = ({name: x[b : b + few] for name, x in of.items()} for of in (arrays, cotangents))
            parts.append(differentiated(call, given, dgiven, dtype))
        outputs, gradients = (
            {name: np.concatenate([part[at][name] for part in parts]) for name in parts[0][at]} for at in (0, 1)
        )
        return outputs, gradients

    def gru(
        self, arrays: Values, cu_seqlens: np.ndarray | None, clip: float | None, cotangents: Values, dtype: str
    ) -> tuple[Values, Values]:
        """Outputs and gradients of a call, dense or packed."""
        options = {**self._options(dtype), "gradient_clipping": clip}

        def call(x: Tensors) -> Tensors:
            if cu_seqlens is None:
                y, state = self._called()(**x, **options)
                return {"y": y, "state": state}
            found = []
            for b, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
                of_b = {name: part if name in GRU.weights else part[None, start:end] for name, part in x.items()}
                of_b["input_state"] = x["input_state"][b : b + 1]
                found.append(self._called()(**of_b, **options))
            return {"y": torch.cat([y[0] for y, _ in found]), "state": torch.cat([state for _, state in found])}

        return differentiated(call, arrays, cotangents, dtype)

    def slstm(
        self,
        arrays: Values,
        cu_seqlens: np.ndarray | None,
        forget_gate: str,
        clip: float | None,
        cotangents: Values,
        dtype: str,
    ) -> tuple[Values, Values]:
        """Outputs and gradients of a call, dense or packed."""
        options, bits = {"forget_gate": forget_gate, "gradient_clipping": clip}, self._bits(dtype)
        if bits is not None:
            options["product"] = lambda h, W: RoundedProduct.apply(h, W, bits)

        def call(x: Tensors) -> Tensors:
            tokens, state = ([x[name] for name in names] for names in (_SLSTM_TOKENS, SLSTM.state_arguments))
            weights = [x[name] for name in SLSTM.weights]
            if cu_seqlens is None:
                return _of_slstm(*self._called()(*tokens, *weights, initial_state=state, **options))
            found = []
            for b, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
                of_b, state_b = [part[None, start:end] for part in tokens], [part[b : b + 1] for part in state]
                found.append(_of_slstm(*self._called()(*of_b, *weights, initial_state=state_b, **options)))
            joined = {name: torch.cat([part[name] for part in found]) for name in SLSTM.states}
            return {"h": torch.cat([part["h"][0] for part in found]), **joined}

        return differentiated(call, arrays, cotangents, dtype)

    def sums(self, arrays: Values, cotangents: Values, dtype: str) -> tuple[Values, Values]:
        """Output and gradients of a scan or a decay matrix."""
        return differentiated(lambda x: {"y": self._called()(*x.values())}, arrays, cotangents, dtype)


def _of_slstm(h: torch.Tensor, last: tuple) -> Tensors:
    return {"h": h, **dict(zip(SLSTM.states, last, strict=True))}


_SLSTM_TOKENS = tuple("zifo")


def differentiated(
    call: Callable[[Tensors], Tensors], arrays: Values, cotangents: Values, dtype: str
) -> tuple[Values, Values]:
    """Outputs and the gradients of all arrays, computed in the accumulation dtype."""
    kind = getattr(torch, accumulation(dtype))
    leaves = {name: torch.tensor(x, dtype=kind, requires_grad=True) for name, x in arrays.items()}
    outputs = call(leaves)
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
