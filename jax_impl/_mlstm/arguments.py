"""The data of a call of `mlstm` or `mlstm_step`: its arrays, its static options, its results and their gradients."""

from typing import NamedTuple

import jax

from jax_impl._mlstm.chunkwise import ChunkwiseOptions
from reference.arguments import MLSTMState


class Tokens(NamedTuple):
    """Inputs by token: dense ``(B, S, N, ·)``, packed ``(T, N, ·)``, a single step ``(B, N, ·)``; or their gradients.

    Attributes:
        q, k: ``(…, N, K)``.
        v: ``(…, N, V)``.
        i, f: ``(…, N)``.
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    i: jax.Array
    f: jax.Array


class Arguments(NamedTuple):
    """The arrays of a call.

    Attributes:
        tokens: the inputs.
        initial_state: the initial state of every sequence, ``(B, N, ·)``; None means zeros.
        cu_seqlens: the start and end of each packed sequence, ``(B+1,)`` int32; None if the sequences are dense.
    """

    tokens: Tokens
    initial_state: MLSTMState | None
    cu_seqlens: jax.Array | None = None

    @property
    def B(self) -> int:
        """The number of sequences."""
        return self.tokens.q.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1


class Result(NamedTuple):
    """h, with the shape of v, and the final state (None if it is not requested); or their cotangents."""

    h: jax.Array
    state: MLSTMState | None


class Gradients(NamedTuple):
    """The gradients of `Arguments`, field by field; None for an initial state of None."""

    tokens: Tokens
    initial_state: MLSTMState | None


class Options(NamedTuple):
    """The static part of a call: everything except its arrays.

    Attributes:
        chunkwise: the options of the arithmetic.
        return_state: whether the final state is requested.
        backend: the name of the backend that computes the call.
        interpret: whether Pallas kernels run under their interpreter.
        block: number of steps, counted over sequences and heads, that a backend of array code computes at once; where
            heads are computed in ranges, that many of each range.
        one_device: whether the arrays are on a CPU that is a single device, so that they are not divided among devices.
        sequence_axis: the mesh axis, or tuple of them, over which the steps are sharded; None if they are not.
    """

    chunkwise: ChunkwiseOptions
    return_state: bool
    backend: str
    interpret: bool
    block: int
    one_device: bool = False
    sequence_axis: str | tuple[str, ...] | None = None
