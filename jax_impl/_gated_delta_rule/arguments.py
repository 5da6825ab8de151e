"""The data of a call of `gated_delta_rule` or `gated_delta_step`: its arrays, its static options and its results."""

from typing import NamedTuple

import jax


class Tokens(NamedTuple):
    """Inputs by token: dense ``(B, S, N′, ·)``, packed ``(T, N′, ·)``, a single step ``(B, N′, ·)``, each with its own
    number of heads.

    Attributes:
        q, k: ``(…, N′, K)``.
        v: ``(…, N′, V)``.
        g, beta: ``(…, N′)``.
    """

    q: jax.Array
    k: jax.Array
    v: jax.Array
    g: jax.Array
    beta: jax.Array


class Arguments(NamedTuple):
    """The arrays of a call.

    Attributes:
        tokens: the inputs.
        state: S of every sequence before its first step, ``(B, N, K, V)`` in the accumulation dtype.
        cu_seqlens: the start and end of each packed sequence, ``(B+1,)`` int32; None if the sequences are dense.
    """

    tokens: Tokens
    state: jax.Array
    cu_seqlens: jax.Array | None = None


class Result(NamedTuple):
    """o, with the heads of the state and the dtype of v, and S after the last step."""

    o: jax.Array
    state: jax.Array


class Options(NamedTuple):
    """The static part of a call: everything except its arrays.

    Attributes:
        L: steps per chunk.
        scale: by which q is multiplied.
        qk_norm_eps: None means that q and k are not normalised.
        precision: the precision of the products.
        backend: the name of the backend that computes the call.
    """

    L: int
    scale: float
    qk_norm_eps: float | None
    precision: str
    backend: str
