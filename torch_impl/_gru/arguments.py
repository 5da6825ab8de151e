"""The arguments and results of the GRU's operators by name. The letters are those of ``docs/spec.md``."""

from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from torch_impl._arrays import ACCUMULATION
from torch_impl._records import ACCUMULATED, VALUES, Axes


class Arguments(NamedTuple):
    """A call; fields as in `torch_impl.gru`.

    Attributes:
        recurrent_bias: None means zeros.
        gradient_clipping: the bound, at least 0, or None.
        backend: the name of the backend that computes the call.
    """

    input: Annotated[Tensor, Axes("B S Nx H")]
    weight: Annotated[Tensor, Axes("Nw H H")]
    forget_input: Annotated[Tensor, Axes("B S Nxf H")]
    forget_weight: Annotated[Tensor, Axes("Nwf H H")]
    reset_input: Annotated[Tensor, Axes("B S Nxr H")]
    reset_weight: Annotated[Tensor, Axes("Nwr H H")]
    input_state: Annotated[Tensor | None, Axes("B N H", ACCUMULATED)] = None
    recurrent_bias: Annotated[Tensor | None, Axes("Nw H")] = None
    cu_seqlens: Tensor | None = None
    gradient_clipping: float | None = None
    reset_after: bool = False
    backend: str = "torch"

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """x, x_f, x_r."""
        return self.input, self.forget_input, self.reset_input

    @property
    def weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """W, W_f, W_r."""
        return self.weight, self.forget_weight, self.reset_weight

    @property
    def heads(self) -> int:
        """N, the largest of the six head counts."""
        x, W, xf, Wf, xr, Wr, *_ = self
        return max(x.shape[-2], xf.shape[-2], xr.shape[-2], W.shape[0], Wf.shape[0], Wr.shape[0])


class Result(NamedTuple):
    """Every state, and the final state of each sequence."""

    output: Annotated[Tensor, Axes("B S N H")]
    output_state: Annotated[Tensor, Axes("B N H", ACCUMULATED)]


class Cotangents(NamedTuple):
    """Cotangents of `Result`; None means zeros."""

    doutput: Annotated[Tensor | None, Axes("B S N H")] = None
    doutput_state: Annotated[Tensor | None, Axes("B N H", ACCUMULATED)] = None


def sizes(x: Arguments) -> dict[str, Any]:
    """The sizes of the letters; ``rows`` is the number of steps of all sequences together."""
    cu_seqlens, heads = x.cu_seqlens, {"N": x.heads, "Nw": x.weight.shape[0], "H": x.input.shape[-1]}
    if cu_seqlens is None:
        B, S = x.input.shape[:2]
        return {"B": B, "S": S, **heads, "rows": B * S}
    T = x.input.shape[0]
    return {"B": cu_seqlens.shape[0] - 1, "T": T, **heads, "rows": T}


def dtypes(x: Arguments) -> dict[str, torch.dtype]:
    """The dtypes of the roles."""
    return {VALUES: x.input.dtype, ACCUMULATED: ACCUMULATION[x.input.dtype]}
