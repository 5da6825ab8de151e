"""What the GRU's resident and streamed kernels share: layouts, how a step's operands reach the tensor cores, and plans.

Roles are transposed: *units* are the 64 rows of a wgmma and its 8 to 32 *columns* one sequence of one head each; the
columns of a block read the same weights. With eight columns a tile of 64 units is four numbers a thread, so that a
step, which waits for the one before, is short; and a state of 1024 units still fits in shared memory.

The units of a head, or of several small heads whose weights lie along a diagonal, make up U tiles of 64. Arrays of the
steps are ``(S, weights, kinds, U, 64, columns)``, with a leading axis for the step and one for the kind of value;
states are ``(weights, U, 64, columns)`` float32. Weights lie in device memory in the order in which they are read:
`arranged`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._pallas import L, multiply, pallas, parts, split, split_in_kernel

FORGET, RESET, CANDIDATE = range(3)
"""Kinds of weight and of input, in the order in which the forward pass reads them; its phases where it streams."""
BACK_FORGET, BACK_CANDIDATE, BACK_RESET = range(3)
"""Kinds of weight in the order in which the backward pass reads them."""
DX, DXF, DXR = range(3)
"""Kinds of gradient that the backward pass writes."""


class Plan(NamedTuple):
    """How the kernels of one pass are tiled.

    Attributes:
        resident: whether weights stay in shared memory; else they are streamed.
        terms: bfloat16 terms of an operand.
        tiles: U.
        wide: tiles of inputs in a block of the weights.
        columns: columns of a block.
        stages: TMA stages.
        interpret: whether the GPU interpreter runs the kernels.
    """

    resident: bool
    terms: int
    tiles: int
    wide: int
    columns: int
    stages: int
    interpret: bool


def arranged(plan: Plan, weights: Sequence[jax.Array]) -> jax.Array:
    """Three weights ``(weights, 64·U, 64·U)``, a row for each result, as blocks one below the other.

    Returns:
        ``(weights · 3 · U · U/wide · terms · 64, 64 · wide)`` bfloat16: by weight, kind, tile of results, inputs, term.
    """
    terms = split(jnp.stack(weights, axis=1), plan.terms)
    blocks = terms.reshape(plan.terms, weights[0].shape[0], 3, plan.tiles, L, plan.tiles // plan.wide, L * plan.wide)
    return jnp.transpose(blocks, (1, 2, 3, 5, 0, 4, 6)).reshape(-1, L * plan.wide)


def flat(x: jax.Array) -> jax.Array:
    """Arrays of the steps with one leading axis: TMA takes five dimensions."""
    return x.reshape(-1, *x.shape[-2:])


def load(ref: Any) -> jax.Array:
    """A tile as the tensor cores hold their results: units down, columns across."""
    plgpu = pallas().plgpu
    return plgpu.load(ref, layout=plgpu.Layout.WGMMA, optimized=False)


def as_result(x: jax.Array) -> jax.Array:
    """A loaded tile in the type of what a kernel computes: under `shard_map` only loads vary over mesh axes."""
    return x * 1.0


def put(plan: Plan, x: jax.Array, to: Any) -> None:
    """A tile from registers as an operand ``(terms, columns, 64)`` in shared memory; `commit_smem` makes it visible."""
    plgpu = pallas().plgpu
    for term, part in enumerate(split_in_kernel(x, plan.terms, plan.interpret)):
        to.at[term].T[...] = plgpu.layout_cast(part, plgpu.Layout.WGMMA_TRANSPOSED)


def accumulate(plan: Plan, acc: Any, weight: Any, row: int, operand: Any, first: Any) -> None:
    """Add a block of the weights, its terms from ``row`` on, times tiles of the operand from ``first`` on."""
    pl = pallas().pl
    for tile in range(plan.wide):
        block = [weight.at[pl.ds(row + term * L, L), pl.ds(tile * L, L)] for term in range(plan.terms)]
        multiply(acc, block, parts(operand.at[first + tile], plan.terms), transpose_b=True)


def sigmoid(x: jax.Array) -> jax.Array:
    return 1 / (1 + jnp.exp(-x))


def clipped(x: jax.Array, bound: float | None) -> jax.Array:
    return x if bound is None else jnp.clip(x, -bound, bound)
