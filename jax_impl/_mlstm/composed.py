"""The mLSTM as array code that XLA compiles, by chunks, in blocks that bound the memory in use.

Dense sequences are computed block by block; a block is a few chunks of all sequences and heads. The forward pass saves
the memory at the start of every block, from which the backward pass recomputes the block. Packed sequences are computed
in `packed`.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._arrays import einsum
from jax_impl._chunk_layout import from_chunks, padded, to_chunks
from jax_impl._gates import finite_stabiliser, log_sigmoid, stabilised_decay
from jax_impl._mesh_axes import vary_like
from jax_impl._mlstm import chunkwise, packed
from jax_impl._mlstm.arguments import Arguments, Gradients, Options, Result, Tokens
from jax_impl._mlstm.blocks import PADDING
from jax_impl._mlstm.chunkwise import NOTHING_PRECOMPUTED, Chunks, Precomputed
from jax_impl._mlstm.drift import Carried, LogWeights, after_single_step, begin, bounded, pass_on
from jax_impl._mlstm.head_ranges import HeadRange, divided, joined, side_by_side
from jax_impl._mlstm.state import (
    StateGradients,
    given_or_zeros,
    join_stabiliser_gradient,
    normaliser_floor,
    split_stabiliser_gradient,
    weighted,
)
from reference.arguments import MLSTMState


class Residuals(NamedTuple):
    """The residuals that the forward pass over dense sequences saves for the backward pass.

    Attributes:
        arguments: the arguments of the call.
        starts: the memory at the start of every block, ``(blocks, B, N, ·)``.
        last: the final state.
        weight: the weight in it of the memory that the call carried, ``(B, N)``; see `drift`.
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
    (B, S, N), first = tokens.i.shape, begin(initial)
    if S == 0:
        return jnp.zeros_like(tokens.v), jax.tree.map(lambda x: x[None][:0], first), first
    size, ranges, _ = divided(options, B, S, N)
    tokens = _whole_blocks(tokens, size)
    h = vary_like(jnp.zeros_like(tokens.v), tokens.v)

    def block(
        carry: tuple[list[Carried], jax.Array], number: jax.Array
    ) -> tuple[tuple[list[Carried], jax.Array], list[Carried]]:
        starts, h = carry
        dtype = starts[0].drift.dtype
        given = [_to_chunks(options, _block_of(tokens, number, size, heads), dtype, heads) for heads in ranges]
        given = side_by_side(given)
        passes = side_by_side([*map(partial(chunkwise.forward, options.chunkwise), given, starts)])
        outputs = side_by_side([*map(partial(chunkwise.output, options.chunkwise), given, passes)])
        for heads, output in zip(ranges, outputs, strict=True):
            h = _with_block(h, _from_chunks(output, size, h.dtype, heads), number, heads)
        return ([p.last for p in passes], h), starts

    carry = ([heads.squeezed(heads.of(first, 1), 0) for heads in ranges], h)
    (last, h), starts = jax.lax.scan(block, carry, jnp.arange(tokens.i.shape[1] // size))
    return h[:, :S], joined(ranges, starts, 1), joined(ranges, last, 0)


def _dense_gradient(
    options: Options,
    tokens: Tokens,
    starts: Carried,
    dh: jax.Array,
    dlast: StateGradients,
    given: Precomputed = NOTHING_PRECOMPUTED,
) -> tuple[Tokens, StateGradients]:
    B, S, N = tokens.i.shape
    if S == 0:
        return jax.tree.map(jnp.zeros_like, tokens), dlast
    size, _, ranges = divided(options, B, S, N)
    tokens, dh = _whole_blocks(tokens, size), padded(dh, 1, size)
    dtokens = Tokens(*(vary_like(jnp.zeros_like(x), dh) for x in tokens))
    dtype = starts.drift.dtype

    def block_of_range(
        heads: HeadRange, number: jax.Array, start: Carried, dstate: StateGradients
    ) -> tuple[Tokens, StateGradients]:
        x = _to_chunks(options, _block_of(tokens, number, size, heads), dtype, heads)
        dh_x = _array_to_chunks(options, _block_of(dh, number, size, heads), dtype, heads)
        p = chunkwise.forward(options.chunkwise, x, start, heads.squeezed(heads.of(given, 2), 1))
        dx, dstate = chunkwise.backward(options.chunkwise, x, p, dh_x, dstate)
        found = zip(_of_unscaled_q(dx), tokens, strict=True)
        return Tokens(*(_from_chunks(d, size, like.dtype, heads) for d, like in found)), dstate

    def block(
        carry: tuple[list[StateGradients], Tokens], at: tuple[jax.Array, list[Carried]]
    ) -> tuple[tuple[list[StateGradients], Tokens], None]:
        (dstates, dtokens), (number, starts) = carry, at
        by_range = zip(ranges, starts, dstates, strict=True)
        found = [block_of_range(heads, number, start, dstate) for heads, start, dstate in by_range]
        for heads, (one, _) in zip(ranges, found, strict=True):
            dtokens = Tokens(*(_with_block(all, d, number, heads) for all, d in zip(dtokens, one, strict=True)))
        return ([dstate for _, dstate in found], dtokens), None

    carry = ([heads.squeezed(heads.of(dlast, 1), 0) for heads in ranges], dtokens)
    of_blocks = (jnp.arange(tokens.i.shape[1] // size), [heads.squeezed(heads.of(starts, 2), 1) for heads in ranges])
    (dinitial, dtokens), _ = jax.lax.scan(block, carry, of_blocks, reverse=True)
    return Tokens(*(x[:, :S] for x in dtokens)), joined(ranges, dinitial, 0)


def _whole_blocks(tokens: Tokens, size: int) -> Tokens:
    """The inputs, with steps at the end that change nothing, so that they are a whole number of blocks."""
    return Tokens(**{name: padded(part, 1, size, PADDING.get(name, 0)) for name, part in tokens._asdict().items()})


def _block_of(tree: Any, number: jax.Array, size: int, heads: HeadRange) -> Any:
    """The steps of one block of some heads, of arrays ``(B, S, N, …)``. To cut all blocks at once would copy all arrays
    twice."""
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, number * size, size, 1), heads.of(tree, 2))


def _with_block(x: jax.Array, block: jax.Array, number: jax.Array, heads: HeadRange) -> jax.Array:
    """``x`` with the steps of one block of some heads replaced, in place inside a loop."""
    at = (0, number * block.shape[1], heads.first, *(0 for _ in x.shape[3:]))
    return jax.lax.dynamic_update_slice(x, block, at)


def _to_chunks(options: Options, tokens: Tokens, dtype: Any, heads: HeadRange) -> Chunks:
    """The inputs of some heads in chunks, in the accumulation dtype, with q divided by √K."""
    chunks = Chunks(
        **{
            name: _array_to_chunks(options, x, dtype, heads, PADDING.get(name, 0))
            for name, x in tokens._asdict().items()
        }
    )
    return chunks._replace(q=chunks.q * tokens.q.shape[-1] ** -0.5)


def _of_unscaled_q(dchunks: Chunks) -> Chunks:
    """Replace the gradient of q̂ = q/√K by that of q."""
    return dchunks._replace(q=dchunks.q * dchunks.q.shape[-1] ** -0.5)


def _array_to_chunks(options: Options, x: jax.Array, dtype: Any, heads: HeadRange, padding: float = 0.0) -> jax.Array:
    """``(B, S, N, …)`` in chunks, ``(c, B, N, L, …)``, squeezed."""
    chunks = to_chunks(x.astype(dtype), 1, options.chunkwise.L, padding)
    return heads.squeezed(jnp.moveaxis(chunks, 3, 2), 1)


def _from_chunks(x: jax.Array, steps: int, dtype: Any, heads: HeadRange) -> jax.Array:
    """Inverse of `_array_to_chunks`, with this number of steps and this dtype."""
    return from_chunks(jnp.moveaxis(heads.restored(x, 1), 2, 3), 1, steps).astype(dtype)
