"""The mLSTM over packed sequences as array code that XLA compiles, in blocks of chunks.

The chunks divide the tokens, whichever sequences these belong to (`packed_chunks`), so that time and memory follow the
number of tokens and not their division into sequences. The forward pass saves the memory at the start of every block,
from which the backward pass recomputes the block. Products with the initial states and with the cotangents of the final
states are computed for all tokens before the chunks, and sums over the tokens of a sequence after them (`by_sequence`);
a call without states has neither. What a NaN spoils is found before the chunks too (`isolation`).
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._arrays import einsum, zeros_like_states
from jax_impl._mlstm import isolation, packed_chunks
from jax_impl._mlstm.arguments import Arguments, Gradients, Options, Tokens
from jax_impl._mlstm.blocks import block_size
from jax_impl._mlstm.by_sequence import Tiles
from jax_impl._mlstm.carry import Memory, expand
from jax_impl._mlstm.chunk_layout import PADDING, to_chunks
from jax_impl._mlstm.chunkwise import Chunks
from jax_impl._mlstm.isolation import Spoilt
from jax_impl._mlstm.segments import Borders, FinalCotangents, FinalParts, InitialReadGradients, InitialReads, Segments
from jax_impl._mlstm.state import (
    StateGradients,
    given_or_zeros,
    inner_product,
    join_stabiliser_gradient,
    split_stabiliser_gradient,
    weighted,
)
from jax_impl._mlstm.units import Carried, begin, pass_on
from jax_impl._packing import sequence_of_tokens
from reference.arguments import MLSTMState


class Residuals(NamedTuple):
    """The residuals that the forward pass saves for the backward pass.

    Attributes:
        arguments: the arguments of the call.
        starts: the memory at the start of every block, ``(blocks, N, ·)``.
        last: the final states; None if they are not requested.
        weight: the weight in them of the memories that the call carried, ``(B, N)``; see `units`.
        unusable: whether k, v or a gate of a token is not usable, ``(T, N)``.
    """

    arguments: Arguments
    starts: Carried
    last: MLSTMState | None
    weight: jax.Array | None
    unusable: jax.Array


class _Reads(NamedTuple):
    """`InitialReads` by token, ``(T, N, ·)``."""

    m: jax.Array
    C: jax.Array
    n: jax.Array


class _Cotangents(NamedTuple):
    """`FinalCotangents` by token, ``(T, N, ·)``."""

    k: jax.Array
    v: jax.Array
    g: jax.Array
    initial: jax.Array | None


class _ByToken(NamedTuple):
    """The inputs of a pass by token, ``(T, ·)``; a block of them likewise.

    Attributes:
        tokens: the inputs of the call.
        first, last: whether a token is the first or last one of its sequence, ``(T, 1)``.
        sequence: the sequence of a token, ``(T, 1)``.
        initial: the reads of the initial states; None if these are zeros.
        spoilt: whether the results of a token are NaN, ``(T, N)``.
        dh: the cotangent of h; None in the forward pass.
        final: the cotangents of the final states; None if they have none.
    """

    tokens: Tokens
    first: jax.Array
    last: jax.Array
    sequence: jax.Array
    initial: _Reads | None
    spoilt: jax.Array
    dh: jax.Array | None = None
    final: _Cotangents | None = None


def forward(options: Options, arguments: Arguments) -> tuple[jax.Array, Residuals]:
    """h, and the final states among the residuals."""
    tokens, initial = arguments.tokens, arguments.initial_state

    def block(before: Carried, x: _ByToken) -> tuple[Carried, tuple[jax.Array, Carried, FinalParts | None]]:
        dtype = before.drift.dtype
        chunks = _chunks(options, isolation.usable(x.tokens)._replace(q=x.tokens.q), dtype)
        segments = _segments(options, x, initial)
        p = packed_chunks.forward(options.chunkwise, chunks, before, segments)
        h = _from_chunks(packed_chunks.output(options.chunkwise, chunks, p, segments))
        h = isolation.spoil(x.spoilt, h).astype(tokens.v.dtype)
        if not options.return_state:
            return p.last, (h, before, None)
        parts = packed_chunks.final_parts(p, segments)
        by_token = jax.tree.map(_from_chunks, parts._replace(incoming=None))
        return p.last, (h, before, by_token._replace(incoming=parts.incoming))

    N, K = tokens.q.shape[1:]
    start = begin(MLSTMState(*zeros_like_states(tokens.v, (N, K, tokens.v.shape[-1]), (N, K), (N,))))
    unusable = isolation.unusable_tokens(tokens, _zero(arguments))
    spoilt = _spoilt_forward(options, arguments, unusable)
    _, (h, starts, parts) = jax.lax.scan(block, start, _blocks(options, _by_token(options, arguments, spoilt)))
    last, weight = None, None
    if parts is not None:
        last, weight = _final_states(options, arguments, parts)
        last = isolation.spoil(spoilt.sequences, last)
    residuals = Residuals(arguments=arguments, starts=starts, last=last, weight=weight, unusable=unusable)
    return _joined(h, tokens.v), residuals


def backward(options: Options, residuals: Residuals, dh: jax.Array, dlast: MLSTMState | None) -> Gradients:
    """Gradients of the inputs, in their dtypes, and of the initial states.

    Args:
        dlast: the cotangents of the final states; None if these are not requested.
    """
    arguments, dfinal = residuals.arguments, None
    tokens, initial = arguments.tokens, arguments.initial_state
    if residuals.last is not None and residuals.weight is not None and dlast is not None:
        dfinal = weighted(split_stabiliser_gradient(residuals.last, dlast), residuals.weight)

    def block(
        dafter: StateGradients, x: tuple[_ByToken, Carried]
    ) -> tuple[StateGradients, tuple[Tokens, jax.Array | None, InitialReadGradients | None]]:
        by_token, before = x
        assert by_token.dh is not None
        dtype = before.drift.dtype
        chunks = _chunks(options, isolation.usable(by_token.tokens), dtype)
        segments = _segments(options, by_token, initial)
        p = packed_chunks.forward(options.chunkwise, chunks, before, segments)
        dh = _to_chunks(options, isolation.usable_values(by_token.dh)).astype(dtype)
        final = _final_cotangents(options, by_token, dfinal)
        found = packed_chunks.backward(options.chunkwise, chunks, p, dh, dafter, segments, final)
        dtokens = isolation.spoil(by_token.spoilt, Tokens(*map(_from_chunks, found.chunks)))
        g = None if found.g is None else _from_chunks(found.g)
        if found.initial is None:
            return found.before, (Tokens(*map(_cast_like, _of_unscaled_q(dtokens), tokens)), g, None)
        dinitial = InitialReadGradients(*map(_from_chunks, found.initial[:3]), outgoing=found.initial.outgoing)
        return found.before, (dtokens, g, dinitial)

    spoilt = _spoilt_backward(options, residuals, dh, dlast)
    by_token = _by_token(options, arguments, spoilt)
    by_token = by_token._replace(dh=dh, final=_cotangents_by_token(options, arguments, dfinal))
    dafter = jax.tree.map(lambda start: jnp.zeros_like(start[0]), residuals.starts.state)
    dafter = StateGradients(C=dafter.C, n=dafter.n, g=dafter.m)
    blocks = (_blocks(options, by_token), residuals.starts)
    _, (dtokens, g, dreads) = jax.lax.scan(block, dafter, blocks, reverse=True)
    dtokens = Tokens(*map(_joined, dtokens, tokens))
    if initial is None or dreads is None:
        return Gradients(tokens=dtokens, initial_state=None)
    dq, dinitial = _initial_gradients(options, arguments, g, dreads, dfinal)
    dinitial = isolation.spoil(spoilt.sequences, dinitial)
    dtokens = _of_unscaled_q(dtokens._replace(q=dtokens.q + dq))
    return Gradients(
        tokens=Tokens(*map(_cast_like, dtokens, tokens)), initial_state=join_stabiliser_gradient(initial, dinitial)
    )


def _spoilt_forward(options: Options, arguments: Arguments, unusable: jax.Array) -> Spoilt:
    """The results that depend on values that are not usable: those of a sequence from such a token on.

    A q that is not usable spoils the results of its own token alone, and needs no help for that.
    """
    found = isolation.spoilt_from(unusable, _borders(options, arguments))
    if arguments.initial_state is None:
        return found
    states = isolation.unusable_states(arguments.initial_state, _zero(arguments))
    return Spoilt(tokens=found.tokens | states[_sequence(arguments)], sequences=found.sequences | states)


def _spoilt_backward(options: Options, residuals: Residuals, dh: jax.Array, dlast: MLSTMState | None) -> Spoilt:
    """The gradients that depend on values that are not usable: all of a sequence."""
    arguments, unusable, zero = residuals.arguments, residuals.unusable, _zero(residuals.arguments)
    unusable |= isolation.infinite_or_nan(arguments.tokens.q, zero) | isolation.infinite_or_nan(dh, zero)
    sequences = isolation.spoilt_from(unusable, _borders(options, arguments)).sequences
    if arguments.initial_state is not None:
        sequences |= isolation.unusable_states(arguments.initial_state, zero)
    if residuals.last is not None and dlast is not None:
        sequences |= isolation.unusable_states(dlast, zero) | ~jnp.isfinite(dlast.m)
    return Spoilt(tokens=sequences[_sequence(arguments)], sequences=sequences)


def _by_token(options: Options, arguments: Arguments, spoilt: Spoilt) -> _ByToken:
    tokens, initial = arguments.tokens, arguments.initial_state
    sequence = _sequence(arguments)
    changes = sequence[1:] != sequence[:-1]
    first, last = (jnp.pad(changes, widths, constant_values=True) for widths in ((1, 0), (0, 1)))
    reads = None
    if initial is not None:

        def read(memory: Memory, q: jax.Array) -> tuple[jax.Array, jax.Array]:
            C = einsum("tlnk,tnkv->tlnv", q, memory.C, options.chunkwise.precision)
            return C, jnp.sum(q * memory.n[:, None], axis=-1)

        q = _scaled_q(tokens, initial.C.dtype)
        C, n = _tiles(options, arguments).read(read, Memory(C=initial.C, n=initial.n), q)
        reads = _Reads(m=isolation.usable_stabiliser(initial.m)[sequence], C=C, n=n)
    return _ByToken(
        tokens=tokens,
        first=first[:, None],
        last=last[:, None],
        sequence=sequence[:, None],
        initial=reads,
        spoilt=spoilt.tokens,
    )


def _cotangents_by_token(options: Options, arguments: Arguments, dfinal: StateGradients | None) -> _Cotangents | None:
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
    dk, dv = _tiles(options, arguments).read(read, Memory(C=dfinal.C, n=dfinal.n), kv)
    sequence = _sequence(arguments)
    of_initial = None if initial is None else inner_product(initial, dfinal.C, dfinal.n)[sequence]
    return _Cotangents(k=dk, v=dv, g=dfinal.g[sequence], initial=of_initial)


def _final_states(options: Options, arguments: Arguments, parts: FinalParts) -> tuple[MLSTMState, jax.Array]:
    """The final states: writes near the end of each sequence, and what is left of the memory from before them; and the
    weight in them of these sums."""
    tokens, initial, borders = arguments.tokens, arguments.initial_state, _borders(options, arguments)
    incoming = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), parts.incoming)
    written, m = (_joined(part, tokens.i) for part in (parts.written, parts.m))

    def write(x: tuple[jax.Array, jax.Array, jax.Array]) -> Memory:
        written, k, v = x
        k = written[..., None] * k
        return Memory(C=einsum("tlnk,tlnv->tnkv", k, v, options.chunkwise.precision), n=jnp.sum(k, axis=1))

    zeros = given_or_zeros(None, tokens.q, tokens.v, arguments.B)
    x = (written, tokens.k.astype(m.dtype), tokens.v.astype(m.dtype))
    memory = _tiles(options, arguments).sum(write, x, Memory(C=zeros.C, n=zeros.n))
    memory = jax.tree.map(
        lambda x, of_chunk: x + _where(borders.across, of_chunk[borders.end_chunk], 0), memory, incoming
    )
    if initial is not None and parts.initial is not None:
        weight = _joined(parts.initial, tokens.i)[borders.end]
        memory = Memory(C=memory.C + weight[..., None, None] * initial.C, n=memory.n + weight[..., None] * initial.n)
    last, weight = pass_on(begin(MLSTMState(C=memory.C, n=memory.n, m=m[borders.end])))
    last = jax.tree.map(lambda x, empty: _where(borders.empty, empty, x), last, zeros if initial is None else initial)
    return last, _where(~borders.empty, weight, 1)


def _initial_gradients(
    options: Options,
    arguments: Arguments,
    g: jax.Array | None,
    dreads: InitialReadGradients,
    dfinal: StateGradients | None,
) -> tuple[jax.Array, StateGradients]:
    """The gradient of q̂ by way of the initial states, and the gradient of these."""
    tokens, initial, borders = arguments.tokens, arguments.initial_state, _borders(options, arguments)
    assert initial is not None
    tiles, precision = _tiles(options, arguments), options.chunkwise.precision
    dC, dn = (_joined(part, tokens.i) for part in dreads[:2])

    def read(memory: Memory, d: tuple[jax.Array, jax.Array]) -> jax.Array:
        return einsum("tlnv,tnkv->tlnk", d[0], memory.C, precision) + d[1][..., None] * memory.n[:, None]

    def write(x: tuple[jax.Array, jax.Array, jax.Array]) -> Memory:
        q, dC, dn = x
        return Memory(C=einsum("tlnk,tlnv->tnkv", q, dC, precision), n=jnp.sum(q * dn[..., None], axis=1))

    dq = tiles.read(read, Memory(C=initial.C, n=initial.n), (dC, dn))
    zeros = jax.tree.map(jnp.zeros_like, initial)
    x = (_scaled_q(tokens, dC.dtype), dC, dn)
    found = tiles.sum(write, x, Memory(C=zeros.C, n=zeros.n))
    outgoing = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), dreads.outgoing)
    found = jax.tree.map(
        lambda x, of_chunk: x + _where(borders.across, of_chunk[borders.begin_chunk], 0), found, outgoing
    )
    if dfinal is None or g is None:
        return dq, StateGradients(C=found.C, n=found.n, g=zeros.m)
    weight = _joined(dreads.weight, tokens.i)[borders.end]
    dinitial = StateGradients(
        C=found.C + weight[..., None, None] * dfinal.C,
        n=found.n + weight[..., None] * dfinal.n,
        g=_joined(g, tokens.i)[borders.begin],
    )
    return dq, jax.tree.map(lambda x, of_final: _where(borders.empty, of_final, x), dinitial, dfinal)


def _cu_seqlens(arguments: Arguments) -> jax.Array:
    assert arguments.cu_seqlens is not None
    return arguments.cu_seqlens


def _sequence(arguments: Arguments) -> jax.Array:
    """The sequence of each token, ``(T,)``."""
    return sequence_of_tokens(_cu_seqlens(arguments), arguments.tokens.q.shape[0])


def _zero(arguments: Arguments) -> jax.Array:
    """The start of the first sequence, which is 0."""
    return _cu_seqlens(arguments)[0]


def _borders(options: Options, arguments: Arguments) -> Borders:
    return Borders.of(_cu_seqlens(arguments), arguments.tokens.q.shape[0], options.chunkwise.L)


def _tiles(options: Options, arguments: Arguments) -> Tiles:
    T, N = arguments.tokens.i.shape
    return Tiles.of(_cu_seqlens(arguments), T, max(1, options.block // max(1, N)))


def _segments(options: Options, x: _ByToken, initial: MLSTMState | None) -> Segments:
    first, last, sequence = (_to_chunks(options, part) for part in (x.first, x.last, x.sequence))
    if initial is None or x.initial is None:
        return Segments(first=first, last=last, initial=None)
    outgoing = sequence[:, 0, -1]
    return Segments(
        first=first,
        last=last,
        initial=InitialReads(
            *(_to_chunks(options, part) for part in x.initial),
            outgoing=Memory(C=initial.C[outgoing], n=initial.n[outgoing]),
        ),
    )


def _final_cotangents(options: Options, x: _ByToken, dfinal: StateGradients | None) -> FinalCotangents | None:
    if dfinal is None or x.final is None:
        return None
    incoming = _to_chunks(options, x.sequence)[:, 0, 0]
    final = jax.tree.map(partial(_to_chunks, options), x.final)
    return FinalCotangents(*final, incoming=Memory(C=dfinal.C[incoming], n=dfinal.n[incoming]))


def _blocks(options: Options, by_token: _ByToken) -> _ByToken:
    """``(T, ·)`` → ``(blocks, steps per block, ·)``; the padding continues the last sequence."""
    T, N = by_token.tokens.i.shape
    size = block_size(options, 1, T, N)
    blocks = jax.tree.map(lambda x: to_chunks(x, 0, size), by_token)
    gates = {name: to_chunks(getattr(by_token.tokens, name), 0, size, padding) for name, padding in PADDING.items()}
    sequence = to_chunks(by_token.sequence, 0, size, by_token.sequence[-1, 0])
    return blocks._replace(tokens=blocks.tokens._replace(**gates), sequence=sequence)


def _joined(x: jax.Array, like: jax.Array) -> jax.Array:
    """``(blocks, steps per block, ·)`` → ``(T, ·)`` with the T of ``like``."""
    return x.reshape(-1, *x.shape[2:])[: like.shape[0]]


def _chunks(options: Options, tokens: Tokens, dtype: Any) -> Chunks:
    """The inputs in chunks, in the accumulation dtype, with q divided by √K."""
    chunks = Chunks(*(_to_chunks(options, part).astype(dtype) for part in tokens))
    return chunks._replace(q=chunks.q * tokens.q.shape[-1] ** -0.5)


def _to_chunks(options: Options, x: jax.Array) -> jax.Array:
    """A block ``(steps, N, ·)`` in chunks, ``(c, N, L, ·)``."""
    return jnp.moveaxis(to_chunks(x, 0, options.chunkwise.L), 2, 1)


def _from_chunks(x: jax.Array) -> jax.Array:
    """Inverse of `_to_chunks`."""
    x = jnp.moveaxis(x, 1, 2)
    return x.reshape(-1, *x.shape[2:])


def _scaled_q(tokens: Tokens, dtype: Any) -> jax.Array:
    return tokens.q.astype(dtype) * tokens.q.shape[-1] ** -0.5


def _of_unscaled_q(dtokens: Tokens) -> Tokens:
    """Replace the gradient of q̂ = q/√K by that of q."""
    return dtokens._replace(q=dtokens.q * dtokens.q.shape[-1] ** -0.5)


def _cast_like(x: jax.Array, like: jax.Array) -> jax.Array:
    return x.astype(like.dtype)


def _where(condition: jax.Array, x: jax.Array, y: Any) -> jax.Array:
    return jnp.where(expand(condition, x), x, y)
