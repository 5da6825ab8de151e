"""What the GRU's two plans share: how arrays lie, how a step's operands reach the tensor cores, and the gates.

Roles are transposed: *units* are the 64 rows of a wgmma and *lanes* its 8 to 32 columns. A lane is one sequence of one
head; lanes of a block read the same weights. With eight lanes a tile of 64 units is four numbers a thread, so that a
step, which waits for the one before, is short; and a state of 1024 units still fits in shared memory.

The units of a head, or of several small heads whose weights lie along a diagonal, make up U tiles of 64. Arrays of the
steps are ``(S, W, n, U, 64, R)``: W weights, R lanes, n kinds of value; states ``(W, U, 64, R)`` float32. Weights lie
in device memory as they are read: `arranged`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl.kernels._pallas import L, multiply, pallas, parts, split, split_in_kernel

FLOAT, HALF = jnp.float32, jnp.bfloat16
SLACK = 1024
"""Bytes for barriers and for alignment."""


class Cut(NamedTuple):
    """How the kernels of one pass are cut.

    Attributes:
        resident: whether weights stay in shared memory; else they are streamed.
        terms: bfloat16 terms of an operand.
        tiles: U.
        wide: tiles of inputs in a block of the weights.
        lanes: lanes of a block.
        stages: TMA stages.
        interpret: whether the GPU interpreter runs the kernels.
    """

    resident: bool
    terms: int
    tiles: int
    wide: int
    lanes: int
    stages: int
    interpret: bool


def arranged(c: Cut, weights: Sequence[jax.Array]) -> jax.Array:
    """Three weights ``(W, 64·U, 64·U)``, rows by what they yield, as blocks one below the other.

    Returns:
        ``(W · 3 · U · U/wide · terms · 64, 64 · wide)`` bfloat16: by weight, kind, tile of results, inputs, term.
    """
    W = weights[0].shape[0]
    terms = split(jnp.stack(weights, axis=1), c.terms)
    blocks = terms.reshape(c.terms, W, 3, c.tiles, L, c.tiles // c.wide, L * c.wide)
    return jnp.transpose(blocks, (1, 2, 3, 5, 0, 4, 6)).reshape(-1, L * c.wide)


def flat(x: jax.Array) -> jax.Array:
    """Arrays of the steps with one leading axis: TMA takes five dimensions."""
    return x.reshape(-1, *x.shape[-2:])


def load(ref: Any) -> jax.Array:
    """A tile as the tensor cores hold their results: units down, lanes across."""
    plgpu = pallas().plgpu
    return plgpu.load(ref, layout=plgpu.Layout.WGMMA, optimized=False)


def as_result(x: jax.Array) -> jax.Array:
    """A loaded tile in the type of what a kernel computes: under `shard_map` only loads vary over mesh axes."""
    return x * 1.0


def put(c: Cut, x: jax.Array, to: Any) -> None:
    """A tile from registers as an operand, ``(terms, lanes, 64)`` in shared memory; `commit_smem` makes it visible."""
    plgpu = pallas().plgpu
    for term, part in enumerate(split_in_kernel(x, c.terms, c.interpret)):
        to.at[term].T[...] = plgpu.layout_cast(part, plgpu.Layout.WGMMA_TRANSPOSED)


def accumulate(c: Cut, acc: Any, weight: Any, row: int, operand: Any, first: Any) -> None:
    """Add a block of the weights, its terms from ``row`` on, times tiles of the operand from ``first`` on."""
    pl = pallas().pl
    for tile in range(c.wide):
        block = [weight.at[pl.ds(row + term * L, L), pl.ds(tile * L, L)] for term in range(c.terms)]
        multiply(acc, block, parts(operand.at[first + tile], c.terms), transpose_b=True)


def sigmoid(x: jax.Array) -> jax.Array:
    return 1 / (1 + jnp.exp(-x))


def clipped(x: jax.Array, bound: float | None) -> jax.Array:
    return x if bound is None else jnp.clip(x, -bound, bound)
