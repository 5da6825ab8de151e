"""The arguments and results of the gated delta rule's operators by name. The letters are those of ``docs/spec.md``."""

from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from torch_impl._arrays import ACCUMULATION
from torch_impl._records import ACCUMULATED, VALUES, Axes


class Arguments(NamedTuple):
    """A call over whole sequences; fields as in `torch_impl.gated_delta_rule`.

    Attributes:
        beta: None means 1.
        S: the initial state; None means zeros.
        scale: by which q is multiplied.
        qk_norm_eps: None means that q and k are not normalised.
        chunk_size: steps per chunk; 0 chooses a length to suit the sizes.
        backend: the name of the backend that computes the call.
    """

    q: Annotated[Tensor, Axes("B S Nq K")]
    k: Annotated[Tensor, Axes("B S Nk K")]
    v: Annotated[Tensor, Axes("B S Nv V")]
    g: Annotated[Tensor, Axes("B S Ng")]
    beta: Annotated[Tensor | None, Axes("B S Nb")] = None
    S: Annotated[Tensor | None, Axes("B N K V", ACCUMULATED)] = None
    cu_seqlens: Tensor | None = None
    scale: float = 1.0
    qk_norm_eps: float | None = None
    chunk_size: int = 0
    backend: str = "torch"

    @property
    def head_counts(self) -> list[int]:
        """The number of heads of q, k, v, g and beta; a beta of 1 has one."""
        axis = 2 if self.cu_seqlens is None else 1
        return [1 if x is None else x.shape[axis] for x in self[:5]]

    @property
    def heads(self) -> int:
        """N, the largest of the head counts."""
        return max(self.head_counts)


class Result(NamedTuple):
    """o and the final state."""

    o: Annotated[Tensor, Axes("B S N V")]
    S: Annotated[Tensor, Axes("B N K V", ACCUMULATED)]


class Cotangents(NamedTuple):
    """Cotangents of `Result`; None means zeros."""

    do: Annotated[Tensor | None, Axes("B S N V")] = None
    dS: Annotated[Tensor | None, Axes("B N K V", ACCUMULATED)] = None


def sizes(x: Arguments) -> dict[str, Any]:
    """The sizes of the letters, with B and S for dense sequences, or with B and T for packed ones."""
    *lead, _, K = x.q.shape
    found = {"N": x.heads, "Nb": x.heads, "K": K, "V": x.v.shape[-1]}
    if x.cu_seqlens is None:
        return {"B": lead[0], "S": lead[1], **found}
    return {"B": x.cu_seqlens.shape[0] - 1, "T": lead[0], **found}


def dtypes(x: Any) -> dict[str, torch.dtype]:
    """The dtypes of the roles."""
    return {VALUES: x.v.dtype, ACCUMULATED: ACCUMULATION[x.v.dtype]}


class StepArguments(NamedTuple):
    """A call of a single step; fields as in `Arguments`, and the state is given."""

    q: Annotated[Tensor, Axes("B Nq K")]
    k: Annotated[Tensor, Axes("B Nk K")]
    v: Annotated[Tensor, Axes("B Nv V")]
    g: Annotated[Tensor, Axes("B Ng")]
    beta: Annotated[Tensor | None, Axes("B Nb")]
    S: Annotated[Tensor, Axes("B N K V", ACCUMULATED)]
    scale: float
    qk_norm_eps: float | None
    backend: str


class StepResult(NamedTuple):
    """o and the state after the step."""

    o: Annotated[Tensor, Axes("B N V")]
    S: Annotated[Tensor, Axes("B N K V", ACCUMULATED)]


class StepCotangents(NamedTuple):
    """Cotangents of `StepResult`; None means zeros."""

    do: Annotated[Tensor | None, Axes("B N V")] = None
    dS: Annotated[Tensor | None, Axes("B N K V", ACCUMULATED)] = None


def step_sizes(x: StepArguments) -> dict[str, Any]:
    """The sizes of the letters of a step."""
    B, N, K, V = x.S.shape
    return {"B": B, "N": N, "Nb": N, "K": K, "V": V}
