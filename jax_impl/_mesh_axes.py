"""Mesh axes: places on them, casts that make all arrays of a call vary over the same manual axes, and explicit axes
made automatic.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.extend.core import unsafe_get_axis_names_DO_NOT_USE as bound_axis_names
from jax.sharding import NamedSharding, PartitionSpec

from reference.arguments import axis_names, unknown_axis


def place(function: str, axis_name: Any, argument: str = "axis_name") -> tuple[jax.Array, int]:
    """Index of this device and number of devices along one axis, or along a tuple of axes treated as one.

    Args:
        function, argument: the public names that errors mention.
    """
    names = axis_names(function, axis_name, argument)
    for name in names:
        try:
            jax.lax.axis_size(name)
        except NameError:
            raise unknown_axis(function, name, tuple(bound_axis_names()), argument) from None
    return jax.lax.axis_index(names), jax.lax.axis_size(names)


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


def partition(x: jax.Array) -> tuple[Any, ...]:
    """For each axis of an array, the explicit mesh axes over which it is sharded, or None."""
    sharding = jax.typeof(x).sharding
    return (*sharding.spec, *(None,) * (x.ndim - len(sharding.spec)))


def with_auto_axes(function: Callable[[Any], Any], arrays: Any, specs: Callable[[], Any]) -> Any:
    """``function(arrays)``, computed with explicit mesh axes turned into automatic ones where there are any.

    Inside, XLA places every value; outside, results and gradients are sharded as the types say.

    Args:
        arrays: a tree.
        specs: the partitions of the result, a tree of `jax.sharding.PartitionSpec` like it; asked for where needed.
    """
    meshes = (jax.typeof(x).sharding.mesh for x in jax.tree.leaves(arrays))
    mesh = next((mesh for mesh in meshes if mesh.explicit_axes), None)
    if mesh is None:
        return function(arrays)
    shardings = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), specs(), is_leaf=lambda x: isinstance(x, PartitionSpec)
    )
    return jax.sharding.auto_axes(function, axes=mesh.explicit_axes, out_sharding=shardings)(arrays)
