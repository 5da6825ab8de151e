"""The data of a call of `mlstm` or `mlstm_step`: its arrays, its static options, its results and their gradients."""

from typing import NamedTuple

import jax

from jax_impl._mlstm.chunkwise import ChunkwiseOptions
from reference.arguments import MLSTMState


class Tokens(NamedTuple):
    """Inputs by token: dense ``(B, S, N, ·)``, packed ``(T, N, ·)``, of a step ``(B, N, ·)``; or their gradients.

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
        initial_state: of every sequence, ``(B, N, ·)``; None for zeros.
        cu_seqlens: where packed sequences start and end, ``(B+1,)`` int32; None where they are dense.
    """

    tokens: Tokens
    initial_state: MLSTMState | None
    cu_seqlens: jax.Array | None = None

    @property
    def B(self) -> int:
        """The number of sequences."""
        return self.tokens.q.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1


class Result(NamedTuple):
    """h, shaped like v, and the final state, None where it is not wanted; or their cotangents."""

    h: jax.Array
    state: MLSTMState | None


class Gradients(NamedTuple):
    """The gradients of `Arguments`, field by field; that of an initial state of None is None."""

    tokens: Tokens
    initial_state: MLSTMState | None


class Options(NamedTuple):
    """What a call fixes apart from its arrays; static.

    Attributes:
        chunkwise: of the arithmetic.
        return_state: whether the final state is wanted.
        backend: the name of the backend that computes.
        interpret: whether Pallas kernels run under their interpreter.
        block: steps, counted over sequences and heads, that are computed at once on a backend of array code.
    """

    chunkwise: ChunkwiseOptions
    return_state: bool
    backend: str
    interpret: bool
    block: int
