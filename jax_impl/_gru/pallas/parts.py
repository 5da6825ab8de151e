"""Helpers shared by the GRU's resident and streamed kernels: layouts, operands for the tensor cores, and plans.

Roles are transposed: the *units* of a state are the 64 rows of a wgmma, and its 8 to 32 *columns* are one sequence of
one head each. The columns of a block read the same weights. With eight columns, a tile of 64 units is four numbers per
thread. A step, which has to wait for the one before, is then short, and a state of 1024 units still fits in shared
memory.

The units of a head, or of several small heads whose weights lie along a diagonal, form U tiles of 64. Arrays of the
steps are ``(S, weights, kinds, U, 64, columns)``, with a leading axis for the step and an axis for the kind of value;
states are ``(weights, U, 64, columns)`` float32. Weights are stored in device memory in the order in which they are
read: `arranged`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_impl._pallas import L, multiply, pallas, parts, split, split_in_kernel

FORGET, RESET, CANDIDATE = range(3)
"""Kinds of weight and of input in the order in which the forward pass reads them; its phases if it streams."""
BACK_FORGET, BACK_CANDIDATE, BACK_RESET = range(3)
"""Kinds of weight in the order in which the backward pass reads them."""
DX, DXF, DXR = range(3)
"""Kinds of gradient that the backward pass writes."""


class Plan(NamedTuple):
    """The tiling of the kernels of one pass.

    Attributes:
        resident: whether the weights stay in shared memory; otherwise they are streamed.
        terms: number of bfloat16 terms of an operand.
        tiles: U.
        wide: number of tiles of inputs in a block of the weights.
        columns: number of columns of a block.
        stages: number of TMA stages.
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
    """Arrange three weights ``(weights, 64·U, 64·U)``, with a row per result, as blocks one below the other.

    Returns:
        ``(weights · 3 · U · U/wide · terms · 64, 64 · wide)`` bfloat16: by weight, kind, tile of results, inputs, term.
    """
    terms = split(jnp.stack(weights, axis=1), plan.terms)
    blocks = terms.reshape(plan.terms, weights[0].shape[0], 3, plan.tiles, L, plan.tiles // plan.wide, L * plan.wide)
    return jnp.transpose(blocks, (1, 2, 3, 5, 0, 4, 6)).reshape(-1, L * plan.wide)


def flat(x: jax.Array) -> jax.Array:
    """Merge the leading axes of arrays of the steps into one, because TMA takes five dimensions."""
    return x.reshape(-1, *x.shape[-2:])


def load(ref: Any) -> jax.Array:
    """Load a tile in the layout of tensor-core results, with units as rows."""
    plgpu = pallas().plgpu
    return plgpu.load(ref, layout=plgpu.Layout.WGMMA, optimized=False)


def as_result(x: jax.Array) -> jax.Array:
    """Give a loaded tile the type of a computed one: under `shard_map` only loads vary over mesh axes."""
    return x * 1.0


def put(plan: Plan, x: jax.Array, to: Any) -> None:
    """Write a tile from registers to an operand ``(terms, columns, 64)``; `commit_smem` makes it visible to wgmma."""
    plgpu = pallas().plgpu
    for term, part in enumerate(split_in_kernel(x, plan.terms, plan.interpret)):
        to.at[term].T[...] = plgpu.layout_cast(part, plgpu.Layout.WGMMA_TRANSPOSED)


def accumulate(plan: Plan, acc: Any, weight: Any, row: int, operand: Any, first: Any) -> None:
    """Add the product of a block of the weights, terms from ``row`` on, with tiles of the operand from ``first`` on."""
    pl = pallas().pl
    for tile in range(plan.wide):
        block = [weight.at[pl.ds(row + term * L, L), pl.ds(tile * L, L)] for term in range(plan.terms)]
        multiply(acc, block, parts(operand.at[first + tile], plan.terms), transpose_b=True)


def sigmoid(x: jax.Array) -> jax.Array:
    return 1 / (1 + jnp.exp(-x))


def clipped(x: jax.Array, bound: float | None) -> jax.Array:
    return x if bound is None else jnp.clip(x, -bound, bound)
