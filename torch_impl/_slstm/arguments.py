"""The arguments and results of the sLSTM's operators by name. The letters are those of ``docs/spec.md``."""

from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from torch_impl._arrays import ACCUMULATION
from torch_impl._records import ACCUMULATED, VALUES, Axes


class Arguments(NamedTuple):
    """A call; fields as in `torch_impl.slstm`, the initial state array by array.

    Attributes:
        gradient_clipping: the bound, at least 0, or None.
        backend: the name of the backend that computes the call.
    """

    z: Annotated[Tensor, Axes("B S N H")]
    i: Annotated[Tensor, Axes("B S N H")]
    f: Annotated[Tensor, Axes("B S N H")]
    o: Annotated[Tensor, Axes("B S N H")]
    weight_z: Annotated[Tensor, Axes("N H H")]
    weight_i: Annotated[Tensor, Axes("N H H")]
    weight_f: Annotated[Tensor, Axes("N H H")]
    weight_o: Annotated[Tensor, Axes("N H H")]
    c0: Annotated[Tensor | None, Axes("B N H", ACCUMULATED)] = None
    n0: Annotated[Tensor | None, Axes("B N H", ACCUMULATED)] = None
    m0: Annotated[Tensor | None, Axes("B N H", ACCUMULATED)] = None
    h0: Annotated[Tensor | None, Axes("B N H", ACCUMULATED)] = None
    cu_seqlens: Tensor | None = None
    forget_gate: str = "sigmoid"
    gradient_clipping: float | None = None
    backend: str = "torch"

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.z, self.i, self.f, self.o

    @property
    def weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.weight_z, self.weight_i, self.weight_f, self.weight_o


class Result(NamedTuple):
    """h of every step, and the final state of each sequence."""

    h: Annotated[Tensor, Axes("B S N H")]
    c_last: Annotated[Tensor, Axes("B N H", ACCUMULATED)]
    n_last: Annotated[Tensor, Axes("B N H", ACCUMULATED)]
    m_last: Annotated[Tensor, Axes("B N H", ACCUMULATED)]
    h_last: Annotated[Tensor, Axes("B N H", ACCUMULATED)]


class Cotangents(NamedTuple):
    """Cotangents of `Result`; None means zeros."""

    dh: Annotated[Tensor | None, Axes("B S N H")] = None
    dc_last: Annotated[Tensor | None, Axes("B N H", ACCUMULATED)] = None
    dn_last: Annotated[Tensor | None, Axes("B N H", ACCUMULATED)] = None
    dm_last: Annotated[Tensor | None, Axes("B N H", ACCUMULATED)] = None
    dh_last: Annotated[Tensor | None, Axes("B N H", ACCUMULATED)] = None


def sizes(x: Arguments) -> dict[str, Any]:
    """The sizes of the letters; ``rows`` is the number of steps of all sequences together."""
    N, H = x.z.shape[-2:]
    if x.cu_seqlens is None:
        B, S = x.z.shape[:2]
        return {"B": B, "S": S, "N": N, "H": H, "rows": B * S}
    T = x.z.shape[0]
    return {"B": x.cu_seqlens.shape[0] - 1, "T": T, "N": N, "H": H, "rows": T}


def dtypes(x: Arguments) -> dict[str, torch.dtype]:
    """The dtypes of the roles."""
    return {VALUES: x.z.dtype, ACCUMULATED: ACCUMULATION[x.z.dtype]}
