"""The mLSTM by Pallas kernels: cuts sequences into the kernels' chunks and reassembles the kernels' results.

It computes the same function and the same gradient as `composed`, which XLA compiles. The kernels take the values in
their own dtype and choose the chunk length themselves; ``chunk_size`` does not change the value.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._chunk_layout import ChunkTable, chunk_table, gather_chunks, gather_tokens, join_axes
from jax_impl._handwritten_gradient import without_second_derivative
from jax_impl._mlstm.arguments import Arguments, Gradients, Options, Result, Tokens
from jax_impl._mlstm.blocks import PADDING
from jax_impl._mlstm.composed import add_step_axis, drop_step_axis
from jax_impl._mlstm.drift import is_exact
from jax_impl._mlstm.pallas import decode, sequence
from jax_impl._mlstm.pallas.gates import ChunkRanges
from jax_impl._mlstm.pallas.sequence import Outputs, Rows
from jax_impl._mlstm.state import given_or_zeros
from jax_impl._pallas import L
from reference.arguments import MLSTMState


class Residuals(NamedTuple):
    """The residuals that the forward pass saves for the backward pass.

    Attributes:
        arguments: the arguments of the call.
        outputs: the outputs of the kernels, by chunk; None if there are no steps.
        last: the final state.
    """

    arguments: Arguments
    outputs: Outputs | None
    last: MLSTMState


class StepResiduals(NamedTuple):
    """The residuals of one step: its arguments and the state after it."""

    arguments: Arguments
    last: MLSTMState


def forward(options: Options, arguments: Arguments) -> tuple[Result, Residuals]:
    """h, with the shape and dtype of v, and the final state."""
    h, last, outputs = _compute(options, _with_state(arguments))
    result = Result(h=h, state=last if options.return_state else None)
    return result, Residuals(arguments=arguments, outputs=outputs, last=last)


@without_second_derivative("mlstm")
def _compute(options: Options, arguments: Arguments) -> tuple[jax.Array, MLSTMState, Outputs | None]:
    tokens, initial = arguments.tokens, arguments.initial_state
    assert initial is not None
    if not tokens.i.size:
        return jnp.zeros_like(tokens.v), initial, None
    rows, ranges, table = _to_rows(arguments)
    outputs = sequence.forward(rows, initial, ranges, eps=options.chunkwise.eps, interpret=options.interpret)
    return _from_rows(outputs.h, table, tokens.v), outputs.last, outputs


def backward(options: Options, residuals: Residuals, cotangents: Result) -> Gradients:
    """Gradients of the inputs, in their dtypes, and of the initial state."""
    arguments, last = residuals.arguments, residuals.last
    dlast = jax.tree.map(jnp.zeros_like, last) if cotangents.state is None else cotangents.state
    if residuals.outputs is None:
        gradients = Gradients(tokens=jax.tree.map(jnp.zeros_like, arguments.tokens), initial_state=dlast)
    else:
        gradients = _backward(options, _with_state(arguments), residuals.outputs, cotangents.h, dlast)
    return gradients if arguments.initial_state is not None else gradients._replace(initial_state=None)


def _backward(options: Options, arguments: Arguments, outputs: Outputs, dh: jax.Array, dlast: MLSTMState) -> Gradients:
    tokens, initial = arguments.tokens, arguments.initial_state
    assert initial is not None
    rows, ranges, table = _to_rows(arguments)
    d, dinitial = sequence.backward(
        rows,
        initial,
        ranges,
        outputs,
        dh=_array_to_rows(dh, table),
        dlast=dlast,
        eps=options.chunkwise.eps,
        interpret=options.interpret,
    )
    di, df = (_from_rows(jnp.swapaxes(of, 1, 2).reshape(-1, of.shape[1]), table, tokens.i) for of in (d.i, d.f))
    dq, dk, dv = (_from_rows(of, table, like) for of, like in zip(d[:3], tokens[:3], strict=True))
    return Gradients(
        tokens=Tokens(q=dq, k=dk, v=dv, i=di.astype(tokens.i.dtype), f=df.astype(tokens.f.dtype)),
        initial_state=dinitial,
    )


def step(options: Options, arguments: Arguments) -> tuple[Result, StepResiduals]:
    """One step, with the inputs ``(B, N, ·)``."""
    result = _step(options, arguments)
    return result, StepResiduals(arguments=arguments, last=result.state)


@without_second_derivative("mlstm_step")
def _step(options: Options, arguments: Arguments) -> Result:
    assert arguments.initial_state is not None
    h, state = decode.step(
        *arguments.tokens, arguments.initial_state, eps=options.chunkwise.eps, interpret=options.interpret
    )
    return Result(h=h, state=state)


def step_backward(options: Options, residuals: StepResiduals, cotangents: Result) -> Gradients:
    """Gradients of the inputs and of the state before the step, computed as those of a sequence of length 1."""
    arguments = residuals.arguments._replace(tokens=add_step_axis(residuals.arguments.tokens))
    _, of_sequence = forward(options, arguments)
    if of_sequence.outputs is not None:
        # The cotangents belong to the state that the step returned, in units of exp of its m.
        last, outputs = residuals.last, of_sequence.outputs
        moved = jnp.where(is_exact(last.m), outputs.last.m - last.m, 0)
        outputs = outputs._replace(last=last, weight=outputs.weight * jnp.exp(moved))
        of_sequence = of_sequence._replace(outputs=outputs, last=last)
    gradients = backward(options, of_sequence, cotangents._replace(h=cotangents.h[:, None]))
    return gradients._replace(tokens=drop_step_axis(gradients.tokens))


def _with_state(arguments: Arguments) -> Arguments:
    """The arguments with zeros instead of an initial state of None."""
    tokens = arguments.tokens
    return arguments._replace(initial_state=given_or_zeros(arguments.initial_state, tokens.q, tokens.v, arguments.B))


def _to_rows(arguments: Arguments) -> tuple[Rows, ChunkRanges, ChunkTable | None]:
    tokens = arguments.tokens
    if arguments.cu_seqlens is None:
        B, S = tokens.q.shape[:2]
        each, table = -(-S // L), None
        ranges = ChunkRanges(
            begin=jnp.arange(B, dtype=jnp.int32) * each,
            count=jnp.full(B, each, jnp.int32),
            sequence=jnp.repeat(jnp.arange(B), each, total_repeat_length=B * each),
            first=jnp.arange(B * each) % each == 0,
        )
    else:
        table = chunk_table(arguments.cu_seqlens, tokens.q.shape[0], L)
        bounds, c = table.bounds, table.token.shape[0]
        count = jnp.where(bounds.empty, 0, bounds.last_chunk - bounds.first_chunk + 1)
        begin = bounds.first_chunk.astype(jnp.int32)
        ranges = ChunkRanges(
            begin=begin,
            count=jnp.clip(count, 0, c - begin).astype(jnp.int32),
            sequence=bounds.sequence,
            first=bounds.first,
        )
    gates = (
        _array_to_rows(gate.astype(jnp.float32), table, padding)
        for gate, padding in ((tokens.i, PADDING["i"]), (tokens.f, PADDING["f"]))
    )
    i, f = (jnp.swapaxes(gate.reshape(-1, L, gate.shape[-1]), 1, 2) for gate in gates)
    q, k, v = (_array_to_rows(part, table) for part in tokens[:3])
    return Rows(q=q, k=k, v=v, i=i, f=f), ranges, table


def _array_to_rows(x: jax.Array, table: ChunkTable | None, padding: float = 0.0) -> jax.Array:
    """``(B, S, N, …)`` or ``(T, N, …)`` → ``(c·L, N, …)``, chunk by chunk; the last chunk of a sequence is padded."""
    if table is not None:
        x = gather_chunks(x, table, padding)
    elif x.shape[1] % L:
        widths = [(0, -x.shape[1] % L if axis == 1 else 0) for axis in range(x.ndim)]
        x = jnp.pad(x, widths, constant_values=padding)
    return join_axes(x)


def _from_rows(x: jax.Array, table: ChunkTable | None, like: jax.Array) -> jax.Array:
    """Inverse of `_array_to_rows`, with the number of steps of ``like``."""
    if table is not None:
        return gather_tokens(x.reshape(x.shape[0] // L, L, *x.shape[1:]), table)
    B, S = like.shape[:2]
    return x.reshape(B, x.shape[0] // B, *x.shape[1:])[:, :S]
