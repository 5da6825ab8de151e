"""The data of a call of `slstm`: its options, its arrays, its residuals, its results and their gradients."""

from typing import NamedTuple

import jax

from reference.arguments import SLSTMState


class Options(NamedTuple):
    """The static part of a call: everything except its arrays.

    Attributes:
        exponential: whether the forget gate is exponential.
        bound: the bound of gradient clipping; None disables it.
        precision: the precision of the products.
        backend: the name of the backend that computes the call.
        together: the number of packed sequences that are advanced at once.
    """

    exponential: bool
    bound: float | None
    precision: str
    backend: str
    together: int


class Gates(NamedTuple):
    """One array for each of z, i, f and o: preactivations, weights, or their gradients."""

    z: jax.Array
    i: jax.Array
    f: jax.Array
    o: jax.Array


class Arguments(NamedTuple):
    """The arrays of a call.

    Attributes:
        inputs: preactivations, ``(B, S, N, H)``; packed ``(T, N, H)``.
        weights: ``(N, H, H)``.
        initial_state: each array ``(B, N, H)`` in the accumulation dtype; None means the empty state.
        cu_seqlens: the start and end of each packed sequence, ``(B+1,)`` int32; None if the sequences are dense.
    """

    inputs: Gates
    weights: Gates
    initial_state: SLSTMState | None
    cu_seqlens: jax.Array | None

    @property
    def B(self) -> int:
        """The number of sequences."""
        return self.inputs.z.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1


class Result(NamedTuple):
    """The results of a call, or their cotangents: h of every step in the dtype of z, and the final state."""

    h: jax.Array
    state: SLSTMState


class Residuals(NamedTuple):
    """The residuals that the forward pass saves.

    Attributes:
        arguments: the arrays of the call.
        states: the state after every step, by step, in the accumulation dtype.
        last: the final state of each sequence.
    """

    arguments: Arguments
    states: SLSTMState
    last: SLSTMState


class Gradients(NamedTuple):
    """The gradients of `Arguments`, field by field; None for an initial state of None."""

    inputs: Gates
    weights: Gates
    initial_state: SLSTMState | None
