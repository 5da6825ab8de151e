"""The mLSTM by Pallas kernels: sequences cut into the kernels' chunks, and what the kernels return put together again.

The same function and the same gradient as `_chunkwise`, which XLA compiles. The kernels take the values in their
own dtype and choose the length of a chunk themselves; ``chunk_size`` changes no value.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._chunkwise import Steps
from jax_impl._framework import first_order
from jax_impl._packing import BLANK, Table, chunk_table, gather_chunks, gather_tokens
from jax_impl.kernels import mlstm_chunk
from jax_impl.kernels._pallas import L
from jax_impl.kernels.mlstm_chunk import Setting, Values
from jax_impl.kernels.mlstm_gates import Chunks
from reference.arguments import MLSTMState


class Kept(NamedTuple):
    """What the forward pass keeps for the gradient: h and ν by chunk, and the final state."""

    h: jax.Array
    nu: jax.Array
    last: MLSTMState


@first_order("mlstm")
def forward(
    setting: Setting, x: Steps, initial: MLSTMState, cu_seqlens: jax.Array | None
) -> tuple[jax.Array, MLSTMState, Kept | None]:
    """h, shaped and typed like v, the final state, and what `backward` needs of them."""
    if not x.i.size:
        return jnp.zeros_like(x.v), initial, None
    values, chunks, table = _cut(x, cu_seqlens)
    h, nu, last = mlstm_chunk.forward(setting, values, initial, chunks)
    return _join(h, table, x.v), last, Kept(h, nu, last)


def backward(
    setting: Setting,
    x: Steps,
    initial: MLSTMState,
    cu_seqlens: jax.Array | None,
    kept: Kept | None,
    dh: jax.Array,
    dlast: MLSTMState,
) -> tuple[Steps, MLSTMState]:
    """Gradients of the inputs, in their dtypes, and of the initial state."""
    if kept is None:
        return jax.tree.map(jnp.zeros_like, x), dlast
    values, chunks, table = _cut(x, cu_seqlens)
    dh = _cut_rows(dh, table)
    dx, dinitial = mlstm_chunk.backward(setting, values, initial, chunks, kept.h, kept.nu, kept.last, dh, dlast)
    di, df = (_join(jnp.swapaxes(part, 1, 2).reshape(-1, part.shape[1]), table, x.i) for part in (dx.i, dx.f))
    dq, dk, dv = (_join(part, table, of) for part, of in zip(dx[:3], x[:3], strict=True))
    return Steps(dq, dk, dv, di.astype(x.i.dtype), df.astype(x.f.dtype)), dinitial


def _cut(x: Steps, cu_seqlens: jax.Array | None) -> tuple[Values, Chunks, Table | None]:
    if cu_seqlens is None:
        B, S = x.q.shape[:2]
        each, table = -(-S // L), None
        chunks = Chunks(
            begin=jnp.arange(B, dtype=jnp.int32) * each,
            count=jnp.full(B, each, jnp.int32),
            sequence=jnp.repeat(jnp.arange(B), each, total_repeat_length=B * each),
            first=jnp.arange(B * each) % each == 0,
        )
    else:
        table = chunk_table(cu_seqlens, x.q.shape[0], L)
        of, c = table.restarts, table.token.shape[0]
        count = jnp.where(of.empty, 0, of.last_chunk - of.first_chunk + 1)
        begin = of.first_chunk.astype(jnp.int32)
        chunks = Chunks(begin, jnp.clip(count, 0, c - begin).astype(jnp.int32), of.sequence, of.first)
    gates = (_cut_rows(of.astype(jnp.float32), table, blank) for of, blank in ((x.i, BLANK["i"]), (x.f, BLANK["f"])))
    i, f = (jnp.swapaxes(of.reshape(-1, L, of.shape[-1]), 1, 2) for of in gates)
    q, k, v = (_cut_rows(part, table) for part in x[:3])
    return Values(q, k, v, i, f), chunks, table


def _cut_rows(x: jax.Array, table: Table | None, blank: float = 0.0) -> jax.Array:
    """``(B, S, N, …)`` or ``(T, N, …)`` → ``(c·L, N, …)``, chunk after chunk, filled up with ``blank``."""
    if table is not None:
        x = gather_chunks(x, table, blank)
    elif x.shape[1] % L:
        widths = [(0, -x.shape[1] % L if axis == 1 else 0) for axis in range(x.ndim)]
        x = jnp.pad(x, widths, constant_values=blank)
    return x.reshape(-1, *x.shape[2:])


def _join(x: jax.Array, table: Table | None, like: jax.Array) -> jax.Array:
    """Inverse of `_cut_rows`, with the steps of ``like``."""
    if table is not None:
        return gather_tokens(x.reshape(-1, L, *x.shape[1:]), table)
    return x.reshape(like.shape[0], -1, *x.shape[1:])[:, : like.shape[1]]
