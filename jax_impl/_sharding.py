"""One device's view of a mesh inside ``shard_map``: its key, its slice of an array, its shard of a parameter.

Source: xlstm_jax, distributed.array_utils. A tuple of axes counts as one axis, whose first axis varies slowest.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jax_impl._arrays import JAX, check_key
from jax_impl._mesh_axes import place
from reference.arguments import axis_names, check_split, check_stack, check_unstack

AxisName = str | tuple[str, ...]


def fold_rng_over_axis(rng: jax.Array, axis_name: AxisName) -> jax.Array:
    """A key for this device: different along the axis, the same along every other axis.

    Args:
        rng: a key of either style.
        axis_name: a mesh axis or a tuple of them.

    Returns:
        ``jax.random.fold_in(rng, index)``.

    Raises:
        TypeError: `axis_name` is neither a name nor a tuple of names.
        ValueError: the axis does not exist.
    """
    check_key("fold_rng_over_axis", rng)
    index, _ = place("fold_rng_over_axis", axis_name)
    return jax.random.fold_in(rng, index)


def split_array_over_mesh(x: jax.Array, axis_name: AxisName, split_axis: int) -> jax.Array:
    """This device's slice of an array: ``split_axis`` is cut into as many equal slices as the mesh axis has devices.

    Args:
        x: the whole array.
        axis_name: a mesh axis or a tuple of them.
        split_axis: the array's axis to split; a negative number counts from the last axis.

    Returns:
        The slice, with the dtype of `x`.

    Raises:
        TypeError: `axis_name` is neither a name nor a tuple of names.
        ValueError: the mesh axis or the array axis does not exist, or the array axis is not a multiple of the mesh
            axis.
    """
    index, size = place("split_array_over_mesh", axis_name)
    axis = check_split(JAX, x, axis_name, size, split_axis)
    run = x.shape[axis] // size
    return jax.lax.dynamic_slice_in_dim(jnp.asarray(x), index * run, run, axis)


def stack_params(params: Any, axis_name: AxisName, axis: int = 0, mask_except: jax.Array | int | None = None) -> Any:
    """Turn each device's own parameters into shards of one array that is stacked along a new axis.

    Args:
        params: a pytree of arrays or ``flax.linen.Partitioned`` boxes.
        axis_name: the mesh axis (or tuple of mesh axes) that shards the new dimension.
        axis: position of the new dimension; a negative number counts from the last axis of the result.
        mask_except: None, or the index of the one device whose values are kept; those of the others become zeros.

    Returns:
        The tree with ``Partitioned`` leaves: this device's shard, of size 1 along the new axis, and its labels.

    Raises:
        TypeError: `axis_name` is neither a name nor a tuple of names.
        ValueError: an axis does not exist, `mask_except` is not an index of it, or a parameter is already sharded over
            it.
    """
    index, size = place("stack_params", axis_name)

    def stack(path: str, leaf: Any) -> nn.Partitioned:
        box = leaf if _is_box(leaf) else nn.Partitioned(leaf, (None,) * jnp.ndim(leaf))
        value, names = box.value, box.names
        at = check_stack(JAX, path, value, names, axis_name, axis, mask_except, size)
        kept = value if mask_except is None else jnp.where(index == mask_except, value, jnp.zeros_like(value))
        return box.replace(value=jnp.expand_dims(kept, at), names=(*names[:at], axis_name, *names[at:]))

    return _map_boxes(stack, params)


def unstack_params(params: Any, axis_name: AxisName) -> Any:
    """Inverse of `stack_params`: remove the stacked dimension of every parameter that is sharded over ``axis_name``.

    Args:
        params: a pytree of arrays or ``flax.linen.Partitioned`` boxes.
        axis_name: the mesh axis, or tuple of them, that `stack_params` was given.

    Returns:
        The tree; a leaf without any label left is a bare array again.

    Raises:
        TypeError: `axis_name` is neither a name nor a tuple of names.
        ValueError: a shard's size along the axis is not 1.
    """
    axis_names("unstack_params", axis_name)

    def unstack(path: str, leaf: Any) -> Any:
        if not _is_box(leaf):
            return _copied(leaf)
        if axis_name not in leaf.names:
            return leaf.replace(value=_copied(leaf.value))
        at = check_unstack(JAX, path, leaf.value, leaf.names, axis_name)
        names = (*leaf.names[:at], *leaf.names[at + 1 :])
        value = jnp.squeeze(leaf.value, axis=at)
        return value if all(name is None for name in names) else leaf.replace(value=value, names=names)

    return _map_boxes(unstack, params)


def _copied(leaf: Any) -> Any:
    """A copy of a NumPy leaf, because the caller may write to it; JAX arrays cannot be written to."""
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _is_box(leaf: Any) -> bool:
    return isinstance(leaf, nn.Partitioned)


def _map_boxes(function: Callable[[str, Any], Any], params: Any) -> Any:
    def with_path(path: Any, leaf: Any) -> Any:
        return function(jax.tree_util.keystr(path), leaf)

    return jax.tree_util.tree_map_with_path(with_path, params, is_leaf=_is_box)
