"""The mLSTM over packed sequences as array code that XLA compiles, in blocks of chunks.

The chunks divide the tokens, whichever sequences these belong to (`packed_chunks`), so that time and memory follow the
number of tokens and not their division into sequences. The forward pass saves the memory at the start of every block,
from which the backward pass recomputes the block. Products with the initial states and with the cotangents of the final
states are computed for all tokens before the chunks, and sums over the tokens of a sequence after them
(`packed_states`); a call without states has neither. What a NaN spoils is found before the chunks too (`isolation`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._arrays import zeros_like_states
from jax_impl._mlstm import isolation, packed_chunks, packed_states
from jax_impl._mlstm.arguments import Arguments, Gradients, Options, Tokens
from jax_impl._mlstm.drift import Carried, begin
from jax_impl._mlstm.isolation import Spoilt
from jax_impl._mlstm.packed_inputs import (
    ByToken,
    Packing,
    chunks_of,
    cotangents_of,
    from_blocks,
    from_chunks,
    in_blocks,
    in_chunks,
    sequences_of,
)
from jax_impl._mlstm.packed_sequences import FinalContributions, InitialReadGradients
from jax_impl._mlstm.state import StateGradients, join_stabiliser_gradient, split_stabiliser_gradient, weighted
from reference.arguments import MLSTMState


class Residuals(NamedTuple):
    """The residuals that the forward pass saves for the backward pass.

    Attributes:
        arguments: the arguments of the call.
        starts: the memory at the start of every block, ``(blocks, N, ·)``.
        last: the final states; None if they are not requested.
        weight: the weight in them of the memories that the call carried, ``(B, N)``; see `drift`.
        unusable: whether k, v or a gate of a token is not usable, ``(T, N)``.
    """

    arguments: Arguments
    starts: Carried
    last: MLSTMState | None
    weight: jax.Array | None
    unusable: jax.Array


def forward(options: Options, arguments: Arguments) -> tuple[jax.Array, Residuals]:
    """h, and the final states among the residuals."""
    tokens, initial = arguments.tokens, arguments.initial_state
    packing = Packing.of(options, arguments, states=initial is not None or options.return_state)

    def block(before: Carried, x: ByToken) -> tuple[Carried, tuple[jax.Array, Carried, FinalContributions | None]]:
        chunks = chunks_of(options, isolation.usable(x.tokens)._replace(q=x.tokens.q), before.drift.dtype)
        sequences = sequences_of(options, x, initial)
        p = packed_chunks.forward(options.chunkwise, chunks, before, sequences)
        h = from_chunks(packed_chunks.output(options.chunkwise, chunks, p, sequences))
        h = isolation.spoil(x.spoilt, h).astype(tokens.v.dtype)
        if not options.return_state:
            return p.last, (h, before, None)
        contributions = packed_chunks.final_contributions(p, sequences)
        by_token = jax.tree.map(from_chunks, contributions._replace(incoming=None))
        return p.last, (h, before, by_token._replace(incoming=contributions.incoming))

    N, K = tokens.q.shape[1:]
    start = begin(MLSTMState(*zeros_like_states(tokens.v, (N, K, tokens.v.shape[-1]), (N, K), (N,))))
    unusable = isolation.unusable_tokens(tokens, packing.zero)
    spoilt = _spoilt_forward(arguments, packing, unusable)
    reads = packed_states.initial_reads(options, arguments, packing)
    by_token = ByToken.of(tokens, packing.sequence, reads, spoilt.tokens)
    _, (h, starts, contributions) = jax.lax.scan(block, start, in_blocks(options, by_token))
    last, weight = None, None
    if contributions is not None:
        last, weight = packed_states.final_states(options, arguments, packing, contributions)
        last = isolation.spoil(spoilt.sequences, last)
    residuals = Residuals(arguments=arguments, starts=starts, last=last, weight=weight, unusable=unusable)
    return from_blocks(h, tokens.v), residuals


def backward(options: Options, residuals: Residuals, dh: jax.Array, dlast: MLSTMState | None) -> Gradients:
    """Gradients of the inputs, in their dtypes, and of the initial states.

    Args:
        dlast: the cotangents of the final states; None if these are not requested.
    """
    arguments, dfinal = residuals.arguments, None
    tokens, initial = arguments.tokens, arguments.initial_state
    if residuals.last is not None and residuals.weight is not None and dlast is not None:
        dfinal = weighted(split_stabiliser_gradient(residuals.last, dlast), residuals.weight)
    packing = Packing.of(options, arguments, states=initial is not None or dfinal is not None)

    def block(
        dafter: StateGradients, x: tuple[ByToken, Carried]
    ) -> tuple[StateGradients, tuple[Tokens, jax.Array | None, InitialReadGradients | None]]:
        by_token, before = x
        assert by_token.dh is not None
        dtype = before.drift.dtype
        chunks = chunks_of(options, isolation.usable(by_token.tokens), dtype)
        sequences = sequences_of(options, by_token, initial)
        p = packed_chunks.forward(options.chunkwise, chunks, before, sequences)
        dh = in_chunks(options, isolation.usable_values(by_token.dh)).astype(dtype)
        final = cotangents_of(options, by_token, dfinal)
        found = packed_chunks.backward(options.chunkwise, chunks, p, dh, dafter, sequences, final)
        dtokens = isolation.spoil(by_token.spoilt, Tokens(*map(from_chunks, found.chunks)))
        g = None if found.g is None else from_chunks(found.g)
        if found.initial is None:
            return found.before, (Tokens(*map(_cast_like, _of_unscaled_q(dtokens), tokens)), g, None)
        dinitial = jax.tree.map(from_chunks, found.initial._replace(outgoing=None))
        dinitial = dinitial._replace(outgoing=found.initial.outgoing)
        return found.before, (dtokens, g, dinitial)

    spoilt = _spoilt_backward(residuals, packing, dh, dlast)
    reads = packed_states.initial_reads(options, arguments, packing)
    final = packed_states.final_cotangents(options, arguments, packing, dfinal)
    by_token = ByToken.of(tokens, packing.sequence, reads, spoilt.tokens, dh=dh, final=final)
    dafter = jax.tree.map(lambda start: jnp.zeros_like(start[0]), residuals.starts.state)
    dafter = StateGradients(C=dafter.C, n=dafter.n, g=dafter.m)
    blocks = (in_blocks(options, by_token), residuals.starts)
    _, (dtokens, g, dreads) = jax.lax.scan(block, dafter, blocks, reverse=True)
    dtokens = Tokens(*map(from_blocks, dtokens, tokens))
    if initial is None or dreads is None:
        return Gradients(tokens=dtokens, initial_state=None)
    dq, dinitial = packed_states.initial_gradients(options, arguments, packing, g, dreads, dfinal)
    dinitial = isolation.spoil(spoilt.sequences, dinitial)
    dtokens = _of_unscaled_q(dtokens._replace(q=dtokens.q + dq))
    return Gradients(
        tokens=Tokens(*map(_cast_like, dtokens, tokens)), initial_state=join_stabiliser_gradient(initial, dinitial)
    )


def _spoilt_forward(arguments: Arguments, packing: Packing, unusable: jax.Array) -> Spoilt:
    """The results that depend on values that are not usable: those of a sequence from such a token on.

    A q that is not usable spoils the results of its own token alone, and needs no help for that.
    """
    found = isolation.spoilt_from(unusable, packing.borders)
    if arguments.initial_state is None:
        return found
    states = isolation.unusable_states(arguments.initial_state, packing.zero)
    return Spoilt(tokens=found.tokens | states[packing.sequence], sequences=found.sequences | states)


def _spoilt_backward(residuals: Residuals, packing: Packing, dh: jax.Array, dlast: MLSTMState | None) -> Spoilt:
    """The gradients that depend on values that are not usable: all of a sequence."""
    arguments, unusable, zero = residuals.arguments, residuals.unusable, packing.zero
    unusable |= isolation.infinite_or_nan(arguments.tokens.q, zero) | isolation.infinite_or_nan(dh, zero)
    sequences = isolation.spoilt_from(unusable, packing.borders).sequences
    if arguments.initial_state is not None:
        sequences |= isolation.unusable_states(arguments.initial_state, zero)
    if residuals.last is not None and dlast is not None:
        sequences |= isolation.unusable_states(dlast, zero) | ~jnp.isfinite(dlast.m)
    return Spoilt(tokens=sequences[packing.sequence], sequences=sequences)


def _of_unscaled_q(dtokens: Tokens) -> Tokens:
    """Replace the gradient of q̂ = q/√K by that of q."""
    return dtokens._replace(q=dtokens.q * dtokens.q.shape[-1] ** -0.5)


def _cast_like(x: jax.Array, like: jax.Array) -> jax.Array:
    return x.astype(like.dtype)
