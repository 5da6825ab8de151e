"""The data of a call of `gru`: its arrays, its residuals, its results and their gradients."""

from typing import NamedTuple

import jax


class Inputs(NamedTuple):
    """x, x_f and x_r, all in the same layout; or their gradients."""

    x: jax.Array
    xf: jax.Array
    xr: jax.Array


class Weights(NamedTuple):
    """W, W_f and W_r, and b if the reset gate is applied after the product; or their gradients."""

    W: jax.Array
    Wf: jax.Array
    Wr: jax.Array
    b: jax.Array | None = None


class Arguments(NamedTuple):
    """The arrays of a call.

    Attributes:
        x, xf, xr: inputs, ``(B, S, Nx, H)``, each with its own number of heads; packed ``(T, Nx, H)``.
        W, Wf, Wr: weights, ``(Nw, H, H)``, each with its own number of heads.
        b: the recurrent bias, ``(Nw, H)``; None if the reset gate is applied before the product.
        initial_state: ``(B, N, H)`` in the accumulation dtype; None means zeros.
        cu_seqlens: the start and end of each packed sequence, ``(B+1,)`` int32; None if the sequences are dense.
    """

    x: jax.Array
    W: jax.Array
    xf: jax.Array
    Wf: jax.Array
    xr: jax.Array
    Wr: jax.Array
    b: jax.Array | None
    initial_state: jax.Array | None
    cu_seqlens: jax.Array | None

    @property
    def inputs(self) -> Inputs:
        return Inputs(x=self.x, xf=self.xf, xr=self.xr)

    @property
    def weights(self) -> Weights:
        return Weights(W=self.W, Wf=self.Wf, Wr=self.Wr, b=self.b)

    @property
    def B(self) -> int:
        """The number of sequences."""
        return self.x.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    @property
    def N(self) -> int:
        """The number of heads: the largest of the six counts."""
        return max(*(x.shape[-2] for x in self.inputs), *(W.shape[0] for W in (self.W, self.Wf, self.Wr)))


class Result(NamedTuple):
    """The results of a call, or their cotangents.

    Attributes:
        output: the state after every step, ``(B, S, N, H)`` or ``(T, N, H)``, in the dtype of the inputs.
        state: the final state, ``(B, N, H)``, in the accumulation dtype.
    """

    output: jax.Array
    state: jax.Array


class Residuals(NamedTuple):
    """The residuals that the forward pass saves: the arguments, and y, the output in the accumulation dtype."""

    arguments: Arguments
    y: jax.Array


class Gradients(NamedTuple):
    """The gradients of `Arguments`, field by field; None for a bias or an initial state of None."""

    x: jax.Array
    W: jax.Array
    xf: jax.Array
    Wf: jax.Array
    xr: jax.Array
    Wr: jax.Array
    b: jax.Array | None
    initial_state: jax.Array | None
