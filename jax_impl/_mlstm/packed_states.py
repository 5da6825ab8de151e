"""Initial and final states of packed sequences: their products with all tokens, and the sums over each sequence.

Products with initial states, and with the cotangents of final states, are inputs of the chunks; final states, and the
gradients of initial ones, are sums of what the chunks return.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jax_impl._arrays import einsum
from jax_impl._chunk_layout import join_axes
from jax_impl._mlstm import isolation
from jax_impl._mlstm.arguments import Arguments, Options, Tokens
from jax_impl._mlstm.by_sequence import Tiles
from jax_impl._mlstm.drift import begin, pass_on
from jax_impl._mlstm.inter_chunk import Memory, expand
from jax_impl._mlstm.packed_inputs import CotangentsByToken, Packing, ReadsByToken, from_blocks
from jax_impl._mlstm.packed_sequences import FinalContributions, InitialReadGradients
from jax_impl._mlstm.state import StateGradients, given_or_zeros, inner_product
from reference.arguments import MLSTMState


def initial_reads(options: Options, arguments: Arguments, packing: Packing) -> ReadsByToken | None:
    """The reads of the initial states by token; None if these are zeros."""
    tokens, initial = arguments.tokens, arguments.initial_state
    if initial is None:
        return None

    def read(memory: Memory, q: jax.Array) -> tuple[jax.Array, jax.Array]:
        C = einsum("tlnk,tnkv->tlnv", q, memory.C, options.chunkwise.precision)
        return C, jnp.sum(q * memory.n[:, None], axis=-1)

    q = _scaled_q(tokens, initial.C.dtype)
    C, n = _tiles(packing).read(read, Memory(C=initial.C, n=initial.n), q)
    return ReadsByToken(m=isolation.usable_stabiliser(initial.m)[packing.sequence], C=C, n=n)


def final_cotangents(
    options: Options, arguments: Arguments, packing: Packing, dfinal: StateGradients | None
) -> CotangentsByToken | None:
    """The cotangents of the final states by token; None if there are none."""
    if dfinal is None:
        return None
    tokens, initial, dtype = arguments.tokens, arguments.initial_state, dfinal.C.dtype
    precision = options.chunkwise.precision

    def read(d: Memory, kv: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        k, v = kv
        return (
            einsum("tlnv,tnkv->tlnk", v, d.C, precision) + d.n[:, None],
            einsum("tlnk,tnkv->tlnv", k, d.C, precision),
        )

    kv = (tokens.k.astype(dtype), tokens.v.astype(dtype))
    dk, dv = _tiles(packing).read(read, Memory(C=dfinal.C, n=dfinal.n), kv)
    of_initial = None if initial is None else inner_product(initial, dfinal.C, dfinal.n)[packing.sequence]
    return CotangentsByToken(k=dk, v=dv, g=dfinal.g[packing.sequence], initial=of_initial)


def final_states(
    options: Options, arguments: Arguments, packing: Packing, contributions: FinalContributions
) -> tuple[MLSTMState, jax.Array]:
    """The final states: writes near the end of each sequence, and what is left of the memory from before them; and the
    weight in them of these sums."""
    tokens, initial, borders = arguments.tokens, arguments.initial_state, packing.borders
    incoming = jax.tree.map(join_axes, contributions.incoming)
    written, m = (from_blocks(part, tokens.i) for part in (contributions.written, contributions.m))

    def write(x: tuple[jax.Array, jax.Array, jax.Array]) -> Memory:
        written, k, v = x
        k = written[..., None] * k
        return Memory(C=einsum("tlnk,tlnv->tnkv", k, v, options.chunkwise.precision), n=jnp.sum(k, axis=1))

    zeros = given_or_zeros(None, tokens.q, tokens.v, arguments.B)
    x = (written, tokens.k.astype(m.dtype), tokens.v.astype(m.dtype))
    memory = _tiles(packing).sum(write, x, Memory(C=zeros.C, n=zeros.n))
    memory = jax.tree.map(
        lambda x, of_chunk: x + _where(borders.across, of_chunk[borders.end_chunk], 0), memory, incoming
    )
    if initial is not None and contributions.initial is not None:
        weight = from_blocks(contributions.initial, tokens.i)[borders.end]
        memory = Memory(C=memory.C + weight[..., None, None] * initial.C, n=memory.n + weight[..., None] * initial.n)
    last, weight = pass_on(begin(MLSTMState(C=memory.C, n=memory.n, m=m[borders.end])))
    last = jax.tree.map(lambda x, empty: _where(borders.empty, empty, x), last, zeros if initial is None else initial)
    return last, _where(~borders.empty, weight, 1)


def initial_gradients(
    options: Options,
    arguments: Arguments,
    packing: Packing,
    g: jax.Array | None,
    dreads: InitialReadGradients,
    dfinal: StateGradients | None,
) -> tuple[jax.Array, StateGradients]:
    """The gradient of q̂ by way of the initial states, and the gradient of these."""
    tokens, initial, borders = arguments.tokens, arguments.initial_state, packing.borders
    assert initial is not None
    tiles, precision = _tiles(packing), options.chunkwise.precision
    dC, dn = from_blocks(dreads.C, tokens.i), from_blocks(dreads.n, tokens.i)

    def read(memory: Memory, d: tuple[jax.Array, jax.Array]) -> jax.Array:
        return einsum("tlnv,tnkv->tlnk", d[0], memory.C, precision) + d[1][..., None] * memory.n[:, None]

    def write(x: tuple[jax.Array, jax.Array, jax.Array]) -> Memory:
        q, dC, dn = x
        return Memory(C=einsum("tlnk,tlnv->tnkv", q, dC, precision), n=jnp.sum(q * dn[..., None], axis=1))

    dq = tiles.read(read, Memory(C=initial.C, n=initial.n), (dC, dn))
    zeros = jax.tree.map(jnp.zeros_like, initial)
    x = (_scaled_q(tokens, dC.dtype), dC, dn)
    found = tiles.sum(write, x, Memory(C=zeros.C, n=zeros.n))
    outgoing = jax.tree.map(join_axes, dreads.outgoing)
    found = jax.tree.map(
        lambda x, of_chunk: x + _where(borders.across, of_chunk[borders.begin_chunk], 0), found, outgoing
    )
    if dfinal is None or g is None:
        return dq, StateGradients(C=found.C, n=found.n, g=zeros.m)
    weight = from_blocks(dreads.weight, tokens.i)[borders.end]
    dinitial = StateGradients(
        C=found.C + weight[..., None, None] * dfinal.C,
        n=found.n + weight[..., None] * dfinal.n,
        g=from_blocks(g, tokens.i)[borders.begin],
    )
    return dq, jax.tree.map(lambda x, of_final: _where(borders.empty, of_final, x), dinitial, dfinal)


def _tiles(packing: Packing) -> Tiles:
    assert packing.tiles is not None
    return packing.tiles


def _scaled_q(tokens: Tokens, dtype: Any) -> jax.Array:
    return tokens.q.astype(dtype) * tokens.q.shape[-1] ** -0.5


def _where(condition: jax.Array, x: jax.Array, y: Any) -> jax.Array:
    return jnp.where(expand(condition, x), x, y)
