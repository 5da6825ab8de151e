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
from jax_impl._mesh_axes import vary_like
from jax_impl._mlstm import chunkwise, packed
from jax_impl._mlstm.arguments import Arguments, Gradients, Options, Result, Tokens
from jax_impl._mlstm.blocks import block_size
from jax_impl._mlstm.chunk_layout import PADDING, from_chunks, padded, to_chunks
from jax_impl._mlstm.chunkwise import NOTHING_PRECOMPUTED, Chunks, Precomputed
from jax_impl._mlstm.state import (
    StateGradients,
    given_or_zeros,
    join_stabiliser_gradient,
    normaliser_floor,
    split_stabiliser_gradient,
    weighted,
)
from jax_impl._mlstm.units import Carried, LogWeights, after_single_step, begin, bounded, pass_on
from reference.arguments import MLSTMState


class Residuals(NamedTuple):
    """The residuals that the forward pass over dense sequences saves for the backward pass.

    Attributes:
        arguments: the arguments of the call.
        starts: the memory at the start of every block, ``(blocks, B, N, ·)``.
        last: the final state.
        weight: the weight in it of the memory that the call carried, ``(B, N)``; see `units`.
    """

    arguments: Arguments
    starts: Carried
    last: MLSTMState
    weight: jax.Array


class StepResiduals(NamedTuple):
    """The arguments and the final state of one step."""

    arguments: Arguments
    last: MLSTMState


def forward(options: Options, arguments: Arguments) -> tuple[Result, Residuals | packed.Residuals]:
    """h and the final state."""
    tokens = arguments.tokens
    if arguments.cu_seqlens is None:
        initial = given_or_zeros(arguments.initial_state, tokens.q, tokens.v, arguments.B)
        h, starts, carried = _dense(options, tokens, initial)
        last, weight = pass_on(carried)
        residuals = Residuals(arguments=arguments, starts=starts, last=last, weight=weight)
    else:
        h, residuals = packed.forward(options, arguments)
    return Result(h=h, state=residuals.last if options.return_state else None), residuals


def backward(options: Options, residuals: Residuals | packed.Residuals, cotangents: Result) -> Gradients:
    """Gradients of the inputs, in their dtypes, and of the initial state."""
    if isinstance(residuals, packed.Residuals):
        return packed.backward(options, residuals, cotangents.h, cotangents.state)
    arguments, last = residuals.arguments, residuals.last
    dlast = jax.tree.map(jnp.zeros_like, last) if cotangents.state is None else cotangents.state
    dlast = weighted(split_stabiliser_gradient(last, dlast), residuals.weight)
    tokens, dinitial = _dense_gradient(options, arguments.tokens, residuals.starts, cotangents.h, dlast)
    initial = arguments.initial_state
    return Gradients(
        tokens=tokens, initial_state=None if initial is None else join_stabiliser_gradient(initial, dinitial)
    )


def step(options: Options, arguments: Arguments) -> tuple[Result, StepResiduals]:
    """One step, by the recurrence itself: the memory is updated and then read.

    XLA compiles it to eight kernels for a CPU. That is the most that it runs one after the other in the calling thread;
    longer programs are divided among threads, which for so little work takes longer than the work.
    """
    state = arguments.initial_state
    assert state is not None
    x = Tokens(*(part.astype(state.C.dtype) for part in arguments.tokens))
    m, kept, written = _gates_of_step(x.i, x.f, state)

    write = written[..., None] * x.k
    last = MLSTMState(
        C=kept[..., None, None] * state.C + write[..., :, None] * x.v[..., None, :],
        n=kept[..., None] * state.n + write,
        m=m,
    )
    q = x.q * x.q.shape[-1] ** -0.5
    precision = options.chunkwise.precision
    numerator = einsum("...k,...kv->...v", q, last.C, precision)
    nu = _sum_by_halves(q * last.n)
    Y = jnp.maximum(jnp.abs(nu), normaliser_floor(m)) + options.chunkwise.eps
    h = (numerator / Y[..., None]).astype(arguments.tokens.v.dtype)
    return Result(h=h, state=last), StepResiduals(arguments=arguments, last=last)


def _gates_of_step(i: jax.Array, f: jax.Array, state: MLSTMState) -> tuple[jax.Array, jax.Array, jax.Array]:
    """m after a step, and the weights of the memory before it and of its write in units of exp(m)."""
    a = log_sigmoid(f)
    m = jnp.maximum(a + state.m, i)
    m = after_single_step(m, stabilised_decay(a, state.m, m), i - finite_stabiliser(m), state.n)
    # Two kernels. Without the first barrier XLA makes kernels of their own of what both compute, and without the second
    # it computes the gates again for every element of the memory.
    i, f, before, m = jax.lax.optimization_barrier((i, f, state.m, m))
    weights = map(jnp.exp, bounded(m, stabilised_decay(log_sigmoid(f), before, m), i - finite_stabiliser(m)))
    kept, written = jax.lax.optimization_barrier(jnp.stack([*weights]))
    return m, kept, written


def step_backward(options: Options, residuals: StepResiduals, cotangents: Result) -> Gradients:
    """Gradients of the inputs and of the state before the step."""
    (tokens, state, *_), last = residuals.arguments, residuals.last
    assert cotangents.state is not None and state is not None
    dlast = split_stabiliser_gradient(last, cotangents.state)
    # In units of the m that the step returned.
    i, m = tokens.i.astype(last.m.dtype), last.m
    decay = stabilised_decay(log_sigmoid(tokens.f.astype(m.dtype)), state.m, m)
    by_step = (m, *bounded(m, decay, i - finite_stabiliser(m)))
    m, decay, gain = (x[None, ..., None] for x in by_step)
    given = Precomputed(m=m, weights=LogWeights(decay=decay, gain=gain, drift=jnp.zeros_like(m)))
    starts = jax.tree.map(lambda part: part[None], begin(state))
    tokens, dinitial = _dense_gradient(options, add_step_axis(tokens), starts, cotangents.h[:, None], dlast, given)
    return Gradients(tokens=drop_step_axis(tokens), initial_state=join_stabiliser_gradient(state, dinitial))


def add_step_axis(tokens: Tokens) -> Tokens:
    """One step as sequences of length 1, ``(B, N, …)`` → ``(B, 1, N, …)``."""
    return jax.tree.map(lambda part: part[:, None], tokens)


def drop_step_axis(tokens: Tokens) -> Tokens:
    """Inverse of `add_step_axis`."""
    return jax.tree.map(lambda part: part[:, 0], tokens)


def _sum_by_halves(x: jax.Array) -> jax.Array:
    """The sum over the last axis. XLA would compute one of more than 32 elements in several kernels."""
    while (size := x.shape[-1]) > 32 and size % 2 == 0:
        x = x[..., : size // 2] + x[..., size // 2 :]
    return jnp.sum(x, axis=-1)


def _dense(options: Options, tokens: Tokens, initial: MLSTMState) -> tuple[jax.Array, Carried, Carried]:
    """h, the memory at the start of every block, and the final memory."""
    S, size = tokens.v.shape[1], block_size(options, *tokens.i.shape)
    before = begin(initial)
    if S == 0:
        return jnp.zeros_like(tokens.v), jax.tree.map(lambda part: part[None][:0], before), before
    tokens = _whole_blocks(tokens, size)
    h = vary_like(jnp.zeros_like(tokens.v), tokens.v)

    def block(carry: tuple[Carried, jax.Array], number: jax.Array) -> tuple[tuple[Carried, jax.Array], Carried]:
        before, h = carry
        x = _block_of(tokens, number, size)
        chunks = _to_chunks(options, x, before.drift.dtype)
        p = chunkwise.forward(options.chunkwise, chunks, before)
        one = _from_chunks(chunkwise.output(options.chunkwise, chunks, p), x.v)
        return (p.last, _with_block(h, one, number)), before

    (last, h), starts = jax.lax.scan(block, (before, h), jnp.arange(tokens.i.shape[1] // size))
    return h[:, :S], starts, last


def _dense_gradient(
    options: Options,
    tokens: Tokens,
    starts: Carried,
    dh: jax.Array,
    dlast: StateGradients,
    given: Precomputed = NOTHING_PRECOMPUTED,
) -> tuple[Tokens, StateGradients]:
    S, size = tokens.i.shape[1], block_size(options, *tokens.i.shape)
    if S == 0:
        return jax.tree.map(jnp.zeros_like, tokens), dlast
    tokens, dh = _whole_blocks(tokens, size), padded(dh, 1, size)
    dtokens = Tokens(*(vary_like(jnp.zeros_like(part), dh) for part in tokens))

    def block(
        carry: tuple[StateGradients, Tokens], at: tuple[jax.Array, Carried]
    ) -> tuple[tuple[StateGradients, Tokens], None]:
        (dstate, dtokens), (number, start) = carry, at
        dtype = start.drift.dtype
        x, dh_x = _block_of(tokens, number, size), _block_of(dh, number, size)
        chunks = _to_chunks(options, x, dtype)
        p = chunkwise.forward(options.chunkwise, chunks, start, given)
        gradients = chunkwise.backward(options.chunkwise, chunks, p, _array_to_chunks(options, dh_x, dtype), dstate)
        one = Tokens(*map(_from_chunks, _of_unscaled_q(gradients.chunks), x))
        return (gradients.initial_state, jax.tree.map(lambda all, d: _with_block(all, d, number), dtokens, one)), None

    numbers = jnp.arange(tokens.i.shape[1] // size)
    (dinitial, dtokens), _ = jax.lax.scan(block, (dlast, dtokens), (numbers, starts), reverse=True)
    return Tokens(*(part[:, :S] for part in dtokens)), dinitial


def _whole_blocks(tokens: Tokens, size: int) -> Tokens:
    """The inputs, with steps at the end that change nothing, so that they are a whole number of blocks."""
    return Tokens(**{name: padded(part, 1, size, PADDING.get(name, 0)) for name, part in tokens._asdict().items()})


def _block_of(tree: Any, number: jax.Array, size: int) -> Any:
    """The steps of one block of arrays ``(B, S, …)``. Cutting all blocks at once would copy every array twice."""
    return jax.tree.map(lambda part: jax.lax.dynamic_slice_in_dim(part, number * size, size, 1), tree)


def _with_block(x: jax.Array, block: jax.Array, number: jax.Array) -> jax.Array:
    """``x`` with the steps of one block replaced, in place inside a loop."""
    return jax.lax.dynamic_update_slice_in_dim(x, block, number * block.shape[1], 1)


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
