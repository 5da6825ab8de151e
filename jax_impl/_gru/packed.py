"""The GRU over packed sequences as array code: loops over steps that advance all sequences together.

Sequences are sorted by length, and tokens by step and, within a step, in the order of their sequences. The tokens of
several sequences at a step are therefore one slice, and the sequences that have a step t are the first ones. They are
advanced a fixed number at a time; once no more than a quarter of that number are left, a loop of that width continues.
The cost follows the steps there are, and empty sequences cost nothing.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._arrays import is_symbolic
from jax_impl._gru.arguments import Inputs, Weights
from jax_impl._gru.steps import Options, StepValues, gate_weights, step, step_back, transposed
from jax_impl._mesh_axes import vary_like
from jax_impl._packing import argsort, indices, sequence_of_tokens


def forward(
    options: Options, inputs: Inputs, weights: Weights, h0: jax.Array, cu_seqlens: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The state after every step, ``(groups, T, heads, H)``, and the final state of each sequence."""
    side_by_side = gate_weights(weights)

    def advance(h: jax.Array, x: Inputs) -> tuple[jax.Array, jax.Array]:
        h = step(options, h, x, side_by_side)
        return h, h

    return over_steps(advance, h0, inputs, cu_seqlens, options.together)


def backward(
    options: Options, values: StepValues, weights: Weights, dlast: jax.Array, cu_seqlens: jax.Array
) -> tuple[Inputs, jax.Array]:
    """Gradients of the inputs, ``(groups, T, heads, H)``, and of the initial state."""
    retreat = partial(step_back, options, transposed(weights))
    return over_steps(retreat, dlast, values, cu_seqlens, options.together, reverse=True)


_FEW = 4
"""Number of sequences up to which a step costs about the same."""


class _Loop(NamedTuple):
    """The steps ``begin ≤ t < end``, whose sequences are advanced all at once or, if ``tiled``, ``width`` at a time."""

    width: int
    tiled: bool
    begin: jax.Array
    end: jax.Array


class _Order(NamedTuple):
    """The order of sequences and tokens in the loops.

    Every index is within bounds for any values of ``cu_seqlens``.

    Attributes:
        sequences: the sequences, the longest first, ``(B,)``.
        lengths: their numbers of steps, ``(B,)``.
        active: the number of sequences that have a step, ``(T,)``.
        first: the first row of every step, ``(T,)``; a row is a token in the order of steps.
        tokens: the token of every row, ``(T,)``.
        rows: the row of every token, ``(T,)``.
    """

    sequences: jax.Array
    lengths: jax.Array
    active: jax.Array
    first: jax.Array
    tokens: jax.Array
    rows: jax.Array

    @classmethod
    def of(cls, cu_seqlens: jax.Array, T: int) -> "_Order":
        """The order for a packing of T tokens."""
        # An invalid packing may claim more steps than there are; no step reads beyond the last token.
        lengths = jnp.clip(jnp.diff(cu_seqlens), 0, T)
        sequences = argsort(-lengths)
        lengths, t = lengths[sequences], indices(T)
        active = jnp.searchsorted(-lengths, -t, side="left")
        first = jnp.cumsum(active) - active
        owner = sequence_of_tokens(cu_seqlens, T)
        step_of_token = jnp.clip(t - cu_seqlens[owner], 0, T - 1)
        rows = jnp.clip(first[step_of_token] + argsort(sequences)[owner], 0, T - 1)
        return cls(
            sequences=sequences,
            lengths=lengths,
            active=active,
            first=first,
            tokens=argsort(rows),
            rows=rows,
        )

    def loops(self, together: int) -> list[_Loop]:
        """The loops, in the order of their steps."""
        B, T, lengths = self.lengths.shape[0], self.tokens.shape[0], self.lengths
        most = B if is_symbolic(B, T) else min(B, T)
        widths = [most if is_symbolic(B, T) else min(most, together)]
        while not is_symbolic(B, T) and widths[-1] > _FEW:
            widths.append(-(-widths[-1] // 4))
        ends = [lengths[narrower] for narrower in widths[1:]] + [lengths[0]]
        begins = [jnp.zeros_like(lengths[0]), *ends[:-1]]
        return [
            _Loop(width=w, tiled=not is_symbolic(B, T) and number == 0 and w < most, begin=begin, end=end)
            for number, (w, begin, end) in enumerate(zip(widths, begins, ends, strict=True))
        ]


def over_steps(
    step: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any,
    cu_seqlens: jax.Array,
    together: int,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """The results by token, ``(groups, T, heads, H)``, and the final carry of each sequence.

    A sequence that has ended (in reverse: has not begun) keeps its carry.

    Args:
        step: ``carry, x → (carry, result)``.
        carry: an array ``(groups, B, heads, H)``, or a tree of them.
        xs: arrays by token, ``(groups, T, heads, H)``.
        together: maximum number of sequences that are advanced at once.
    """
    first = jax.tree.leaves(carry)[0]
    B, order = first.shape[1], _Order.of(cu_seqlens, jax.tree.leaves(xs)[0].shape[1])
    loops = order.loops(together)
    # The last slice of a step may extend beyond the last row, and beyond the last sequence.
    width = loops[0].width
    tokens = jnp.pad(order.tokens, (0, width))
    xs = jax.tree.map(lambda x: x[:, tokens], xs)
    carry = jax.tree.map(lambda x: x[:, order.sequences], carry)
    result = jax.eval_shape(step, *jax.tree.map(lambda x: x[:, :1], (carry, xs)))[1]
    results = jax.tree.map(
        lambda y: vary_like(jnp.zeros((y.shape[0], tokens.shape[0], *y.shape[2:]), y.dtype), first), result
    )
    if loops[0].tiled:
        carry = jax.tree.map(lambda x: jnp.pad(x, [(0, 0), (0, width), (0, 0), (0, 0)]), carry)
        order = order._replace(lengths=jnp.pad(order.lengths, (0, width)))
    for loop in reversed(loops) if reverse else loops:
        part = carry if loop.tiled else jax.tree.map(lambda x, width=loop.width: x[:, :width], carry)
        moved, results = _run(step, loop, order, part, xs, results, reverse)
        carry = _written(carry, moved, 0)
    results = jax.tree.map(lambda y: y[:, order.rows], results)
    return results, jax.tree.map(lambda x: x[:, :B][:, argsort(order.sequences)], carry)


def _written(all: Any, part: Any, at: Any) -> Any:
    """A tree of arrays in which the sequences from ``at`` on are replaced."""
    return jax.tree.map(lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, at, axis=1), all, part)


def _run(
    step: Callable, loop: _Loop, order: _Order, carry: Any, xs: Any, results: Any, reverse: bool
) -> tuple[Any, Any]:
    """The carry after the steps of one loop, and the results, with those of its steps."""

    def sequences(x: jax.Array, first: Any, axis: int = 1) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(x, first, loop.width, axis=axis)

    def advance(state: tuple[Any, Any], t: jax.Array, at: Any) -> tuple[Any, Any]:
        """One step t of the sequences from ``at`` on."""
        carry, results = state
        row, active = order.first[t] + at, (t < sequences(order.lengths, at, 0))[:, None, None]
        before = jax.tree.map(lambda x: sequences(x, at), carry)
        moved, result = step(before, jax.tree.map(lambda x: sequences(x, row), xs))

        def write(all: jax.Array, one: jax.Array) -> jax.Array:
            # Rows after those of this step belong to the next one, which in reverse has been computed.
            one = jnp.where(active, one, sequences(all, row)) if reverse else one
            return jax.lax.dynamic_update_slice_in_dim(all, one, row, axis=1)

        kept = jax.tree.map(lambda after, x: jnp.where(active, after, x), moved, before)
        return _written(carry, kept, at), jax.tree.map(write, results, result)

    def body(number: jax.Array, state: tuple[Any, Any]) -> tuple[Any, Any]:
        t = loop.end - 1 - number if reverse else loop.begin + number
        if not loop.tiled:
            return advance(state, t, 0)
        tiles = -(-order.active[t] // loop.width)
        return jax.lax.fori_loop(0, tiles, lambda tile, state: advance(state, t, tile * loop.width), state)

    return jax.lax.fori_loop(0, loop.end - loop.begin, body, (carry, results))
