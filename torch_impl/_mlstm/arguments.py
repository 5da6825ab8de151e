"""The arguments and results of the mLSTM's operators by name. The letters are those of ``docs/spec.md``."""

from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from torch_impl._arrays import ACCUMULATION
from torch_impl._records import ACCUMULATED, VALUES, Axes


class Arguments(NamedTuple):
    """A call over whole sequences.

    Attributes:
        q, k, v, i, f: as in `torch_impl.mlstm`.
        C, n, m: the initial state; None means zeros.
        cu_seqlens: the packing; None for dense sequences.
        chunk_size: steps per chunk; 0 chooses a length to suit the sizes.
        eps: added to the normaliser.
        stabilize_correctly: whether the normaliser's floor is ``exp(−min(m, 64))`` or 1.
        return_state: whether the final state is requested; if not, a packed call returns that of no sequence.
        backend: the name of the backend that computes the call.
    """

    q: Annotated[Tensor, Axes("B S N K")]
    k: Annotated[Tensor, Axes("B S N K")]
    v: Annotated[Tensor, Axes("B S N V")]
    i: Annotated[Tensor, Axes("B S N")]
    f: Annotated[Tensor, Axes("B S N")]
    C: Annotated[Tensor | None, Axes("B N K V", ACCUMULATED)] = None
    n: Annotated[Tensor | None, Axes("B N K", ACCUMULATED)] = None
    m: Annotated[Tensor | None, Axes("B N", ACCUMULATED)] = None
    cu_seqlens: Tensor | None = None
    chunk_size: int = 0
    eps: float = 0.0
    stabilize_correctly: bool = True
    return_state: bool = True
    backend: str = "torch"


class Result(NamedTuple):
    """h and the final state."""

    h: Annotated[Tensor, Axes("B S N V")]
    C: Annotated[Tensor, Axes("B N K V", ACCUMULATED)]
    n: Annotated[Tensor, Axes("B N K", ACCUMULATED)]
    m: Annotated[Tensor, Axes("B N", ACCUMULATED)]


class Cotangents(NamedTuple):
    """Cotangents of `Result`; None means zeros."""

    dh: Annotated[Tensor | None, Axes("B S N V")] = None
    dC: Annotated[Tensor | None, Axes("B N K V", ACCUMULATED)] = None
    dn: Annotated[Tensor | None, Axes("B N K", ACCUMULATED)] = None
    dm: Annotated[Tensor | None, Axes("B N", ACCUMULATED)] = None


def sizes(arguments: Arguments) -> dict[str, Any]:
    """The sizes of the letters, with B and S for dense sequences, or with B and T for packed ones."""
    *lead, N, K = arguments.q.shape
    V, cu_seqlens = arguments.v.shape[-1], arguments.cu_seqlens
    if cu_seqlens is None:
        return {"B": lead[0], "S": lead[1], "N": N, "K": K, "V": V}
    return {"B": cu_seqlens.shape[0] - 1, "T": lead[0], "N": N, "K": K, "V": V}


def result_sizes(arguments: Arguments) -> dict[str, Any]:
    """`sizes`, with B the number of final states among the results.

    Packed sequences may be many and short, and their states much larger than their tokens.
    """
    found = sizes(arguments)
    return found if arguments.return_state or arguments.cu_seqlens is None else {**found, "B": 0}


def dtypes(arguments: Any) -> dict[str, torch.dtype]:
    """The dtypes of the roles."""
    return {VALUES: arguments.v.dtype, ACCUMULATED: ACCUMULATION[arguments.v.dtype]}


class StepArguments(NamedTuple):
    """A call of a single step; fields as in `Arguments`."""

    q: Annotated[Tensor, Axes("B N K")]
    k: Annotated[Tensor, Axes("B N K")]
    v: Annotated[Tensor, Axes("B N V")]
    i: Annotated[Tensor, Axes("B N")]
    f: Annotated[Tensor, Axes("B N")]
    C: Annotated[Tensor, Axes("B N K V", ACCUMULATED)]
    n: Annotated[Tensor, Axes("B N K", ACCUMULATED)]
    m: Annotated[Tensor, Axes("B N", ACCUMULATED)]
    eps: float
    backend: str


class StepResult(NamedTuple):
    """h and the state after the step."""

    h: Annotated[Tensor, Axes("B N V")]
    C: Annotated[Tensor, Axes("B N K V", ACCUMULATED)]
    n: Annotated[Tensor, Axes("B N K", ACCUMULATED)]
    m: Annotated[Tensor, Axes("B N", ACCUMULATED)]


class StepCotangents(NamedTuple):
    """Cotangents of `StepResult`; None means zeros."""

    dh: Annotated[Tensor | None, Axes("B N V")] = None
    dC: Annotated[Tensor | None, Axes("B N K V", ACCUMULATED)] = None
    dn: Annotated[Tensor | None, Axes("B N K", ACCUMULATED)] = None
    dm: Annotated[Tensor | None, Axes("B N", ACCUMULATED)] = None


def step_sizes(arguments: StepArguments) -> dict[str, Any]:
    """The sizes of the letters of a step."""
    (B, N, K), V = arguments.q.shape, arguments.v.shape[-1]
    return {"B": B, "N": N, "K": K, "V": V}
