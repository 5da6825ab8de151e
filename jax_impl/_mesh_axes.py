"""Mesh axes under ``shard_map``: casts that make all arrays of a call vary over the same axes."""

from functools import partial
from typing import Any

import jax


def vary_alike(tree: Any) -> Any:
    """Cast every array to vary over the union of the mesh axes that any of them varies over (under ``shard_map``).

    The gradient of a handwritten rule has the types of the arguments. The cast therefore comes before the function with
    that rule: the cast's transpose then sums the gradient of an argument that was replicated.
    """
    union = frozenset[Any]().union(*(varying_axes(x) for x in jax.tree.leaves(tree)))
    return jax.tree.map(partial(vary_to, union), tree) if union else tree


def vary_like(x: jax.Array, like: jax.Array) -> jax.Array:
    """Cast a fresh array to vary over the mesh axes that ``like`` varies over."""
    return vary_to(varying_axes(like), x)


def varying_axes(x: Any) -> frozenset:
    """The mesh axes that an array, or the result of ``jax.eval_shape``, varies over."""
    manual = (x if isinstance(x, jax.ShapeDtypeStruct) else jax.typeof(x)).manual_axis_type
    return frozenset() if manual is None else manual.varying


def vary_to(axes: frozenset, x: jax.Array) -> jax.Array:
    """Cast an array to vary over the mesh axes ``axes`` as well."""
    missing = tuple(axes - varying_axes(x))
    return jax.lax.pcast(x, missing, to="varying") if missing else x
