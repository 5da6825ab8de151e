"""The mLSTM as array code that XLA compiles, by chunks, in blocks that bound the memory in use.

Dense sequences are computed block by block; a block is a few chunks of all sequences and heads. The forward pass saves
the memory at the start of every block, from which the backward pass recomputes the block. Packed sequences are computed
in `packed`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._arrays import einsum
from jax_impl._gates import finite_stabiliser, log_sigmoid, stabilised_decay
from jax_impl._mlstm import chunkwise, packed
from jax_impl._mlstm.arguments import Arguments, Gradients, Options, Result, Tokens
from jax_impl._mlstm.blocks import block_size
from jax_impl._mlstm.chunk_layout import PADDING, from_chunks, to_chunks
from jax_impl._mlstm.chunkwise import Chunks
from jax_impl._mlstm.state import (
    StateGradients,
    given_or_zeros,
    join_stabiliser_gradient,
    normaliser_floor,
    split_stabiliser_gradient,
)
from reference.arguments import MLSTMState


class Residuals(NamedTuple):
    """The residuals that the forward pass over dense sequences saves for the backward pass.

    Attributes:
        arguments: the arguments of the call.
        starts: the memory at the start of every block, ``(blocks, B, N, ·)``.
        last: the final state.
    """

    arguments: Arguments
    starts: MLSTMState
    last: MLSTMState


class Block(NamedTuple):
    """The values of a block that the backward pass reads, ``(B, steps, N, ·)``; for all blocks, with a leading axis.

    Attributes:
        tokens: the inputs.
        dh: the cotangent of h.
        start: the memory at the start of the block.
    """

    tokens: Tokens
    dh: jax.Array
    start: MLSTMState


def forward(options: Options, arguments: Arguments) -> tuple[Result, Residuals | packed.Residuals]:
    """h and the final state."""
    tokens = arguments.tokens
    if arguments.cu_seqlens is None:
        initial = given_or_zeros(arguments.initial_state, tokens.q, tokens.v, arguments.B)
        h, starts, last = _dense(options, tokens, initial)
        residuals = Residuals(arguments=arguments, starts=starts, last=last)
    else:
        h, residuals = packed.forward(options, arguments)
    return Result(h=h, state=residuals.last if options.return_state else None), residuals


def backward(options: Options, residuals: Residuals | packed.Residuals, cotangents: Result) -> Gradients:
    """Gradients of the inputs, in their dtypes, and of the initial state."""
    if isinstance(residuals, packed.Residuals):
        return packed.backward(options, residuals, cotangents.h, cotangents.state)
    arguments, last = residuals.arguments, residuals.last
    dlast = jax.tree.map(jnp.zeros_like, last) if cotangents.state is None else cotangents.state
    dlast = split_stabiliser_gradient(last, dlast)
    tokens, dinitial = _dense_gradient(options, arguments.tokens, residuals.starts, cotangents.h, dlast)
    initial = arguments.initial_state
    return Gradients(
        tokens=tokens, initial_state=None if initial is None else join_stabiliser_gradient(initial, dinitial)
    )


def step(options: Options, arguments: Arguments) -> tuple[Result, Residuals]:
    """One step, by the recurrence itself: the memory is updated and then read."""
    state = arguments.initial_state
    assert state is not None
    x = Tokens(*(part.astype(state.C.dtype) for part in arguments.tokens))
    a = log_sigmoid(x.f)
    m = jnp.maximum(a + state.m, x.i)
    kept, written = jnp.exp(stabilised_decay(a, state.m, m)), jnp.exp(x.i - finite_stabiliser(m))
    # Without the barrier XLA computes the gates again for every element of the memory.
    m, kept, written = jax.lax.optimization_barrier((m, kept, written))

    write = written[..., None] * x.k
    last = MLSTMState(
        C=kept[..., None, None] * state.C + write[..., :, None] * x.v[..., None, :],
        n=kept[..., None] * state.n + write,
        m=m,
    )
    q = x.q * x.q.shape[-1] ** -0.5
    precision = options.chunkwise.precision
    numerator = einsum("...k,...kv->...v", q, last.C, precision)
    nu = einsum("...k,...k->...", q, last.n, precision)
    Y = jnp.maximum(jnp.abs(nu), normaliser_floor(m)) + options.chunkwise.eps
    h = (numerator / Y[..., None]).astype(arguments.tokens.v.dtype)
    return Result(h=h, state=last), Residuals(arguments=arguments, starts=state, last=last)


def step_backward(options: Options, residuals: Residuals, cotangents: Result) -> Gradients:
    """Gradients of the inputs and of the state before the step."""
    assert cotangents.state is not None
    starts = jax.tree.map(lambda part: part[None], residuals.starts)
    dlast = split_stabiliser_gradient(residuals.last, cotangents.state)
    tokens, dinitial = _dense_gradient(
        options, add_step_axis(residuals.arguments.tokens), starts, cotangents.h[:, None], dlast
    )
    return Gradients(tokens=drop_step_axis(tokens), initial_state=join_stabiliser_gradient(residuals.starts, dinitial))


def add_step_axis(tokens: Tokens) -> Tokens:
    """One step as sequences of length 1, ``(B, N, …)`` → ``(B, 1, N, …)``."""
    return jax.tree.map(lambda part: part[:, None], tokens)


def drop_step_axis(tokens: Tokens) -> Tokens:
    """Inverse of `add_step_axis`."""
    return jax.tree.map(lambda part: part[:, 0], tokens)


def _dense(options: Options, tokens: Tokens, initial: MLSTMState) -> tuple[jax.Array, MLSTMState, MLSTMState]:
    """h, the memory at the start of every block, and the final state."""

    def block(state: MLSTMState, tokens: Tokens) -> tuple[MLSTMState, tuple[jax.Array, MLSTMState]]:
        chunks = _to_chunks(options, tokens, state.C.dtype)
        p = chunkwise.forward(options.chunkwise, chunks, state)
        h = _from_chunks(chunkwise.output(options.chunkwise, chunks, p), tokens.v)
        return p.last, (h, state)

    last, (h, starts) = jax.lax.scan(block, initial, _to_blocks(options, tokens))
    return from_chunks(h, 1, tokens.v.shape[1]), starts, last


def _dense_gradient(
    options: Options, tokens: Tokens, starts: MLSTMState, dh: jax.Array, dlast: StateGradients
) -> tuple[Tokens, StateGradients]:
    def block(dstate: StateGradients, x: Block) -> tuple[StateGradients, Tokens]:
        dtype = x.start.C.dtype
        chunks = _to_chunks(options, x.tokens, dtype)
        p = chunkwise.forward(options.chunkwise, chunks, x.start)
        gradients = chunkwise.backward(options.chunkwise, chunks, p, _array_to_chunks(options, x.dh, dtype), dstate)
        dchunks = _of_unscaled_q(gradients.chunks)
        return gradients.initial_state, Tokens(*map(_from_chunks, dchunks, x.tokens))

    blocks, size = _to_blocks(options, tokens), block_size(options, *tokens.i.shape)
    blocks = Block(tokens=blocks, dh=to_chunks(dh, 1, size), start=starts)
    dinitial, dtokens = jax.lax.scan(block, dlast, blocks, reverse=True)
    return Tokens(*(from_chunks(part, 1, tokens.q.shape[1]) for part in dtokens)), dinitial


def _to_blocks(options: Options, tokens: Tokens) -> Tokens:
    """``(B, S, N, …)`` → ``(blocks, B, steps per block, N, …)``."""
    size = block_size(options, *tokens.i.shape)
    return Tokens(**{name: to_chunks(part, 1, size, PADDING.get(name, 0)) for name, part in tokens._asdict().items()})


def _to_chunks(options: Options, tokens: Tokens, dtype: Any) -> Chunks:
    """The inputs in chunks, in the accumulation dtype, with q divided by √K."""
    chunks = Chunks(
        **{
            name: _array_to_chunks(options, part, dtype, PADDING.get(name, 0))
            for name, part in tokens._asdict().items()
        }
    )
    return chunks._replace(q=chunks.q * tokens.q.shape[-1] ** -0.5)


def _of_unscaled_q(dchunks: Chunks) -> Chunks:
    """Replace the gradient of q̂ = q/√K by that of q."""
    return dchunks._replace(q=dchunks.q * dchunks.q.shape[-1] ** -0.5)


def _array_to_chunks(options: Options, x: jax.Array, dtype: Any, padding: float = 0.0) -> jax.Array:
    """``(B, S, N, …)`` in chunks, ``(c, B, N, L, …)``."""
    return jnp.moveaxis(to_chunks(x.astype(dtype), 1, options.chunkwise.L, padding), 3, 2)


def _from_chunks(x: jax.Array, like: jax.Array) -> jax.Array:
    """Inverse of `_array_to_chunks`, with the dtype and the number of steps of ``like``."""
    return from_chunks(jnp.moveaxis(x, 2, 3), 1, like.shape[1]).astype(like.dtype)
