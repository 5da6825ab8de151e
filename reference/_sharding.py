"""One device's view of a mesh: its seed, its slice of an array, its shard of a parameter (xlstm_jax, array_utils).

The functions do not communicate. JAX and torch ask the mesh for the device's position; here the caller passes it:
``axis_index`` and ``axis_size`` are numbers, or dicts by axis name if several axes are used. A tuple of axes counts
as one axis, whose first axis varies slowest.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reference._arrays import NUMPY
from reference._seeds import DEVICES, derived_seed
from reference._tree import Partitioned, flatten_with_paths, tree_map
from reference.arguments import axis_names, check_seed, check_split, check_stack, check_unstack, unknown_axis

Place = int | Mapping[str, int]


def fold_rng_over_axis(rng: int, axis_name: str | tuple[str, ...], *, axis_index: Place, axis_size: Place) -> int:
    """A seed for this device: different along the axis, the same along every other axis.

    Args:
        rng: an integer seed.
        axis_name: a mesh axis or a tuple of them.
        axis_index: this device's position on the axis, counted from 0.
        axis_size: the number of devices on the axis.

    Returns:
        An integer seed: the state of ``SeedSequence(rng, spawn_key=(1, index))``.

    Raises:
        TypeError: `rng` is not an integer, or `axis_name` is neither a name nor a tuple of names.
        ValueError: `rng` is negative, the axis does not exist, or it is named twice.
    """
    index, _ = _place("fold_rng_over_axis", axis_name, axis_index, axis_size)
    return derived_seed(check_seed("fold_rng_over_axis", rng), DEVICES, index)


def split_array_over_mesh(
    x: np.ndarray, axis_name: str | tuple[str, ...], split_axis: int, *, axis_index: Place, axis_size: Place
) -> np.ndarray:
    """This device's slice of an array: the one at ``axis_index`` of ``axis_size`` equal slices along ``split_axis``.

    Args:
        x: the whole array.
        axis_name: a mesh axis or a tuple of them.
        split_axis: the array's axis to split; a negative number counts from the last axis.
        axis_index, axis_size: as in `fold_rng_over_axis`.

    Returns:
        The slice, with the dtype of `x`.

    Raises:
        TypeError: `axis_name` is neither a name nor a tuple of names.
        ValueError: the mesh axis or the array axis does not exist, or the array axis is not a multiple of the mesh
            axis.
    """
    index, size = _place("split_array_over_mesh", axis_name, axis_index, axis_size)
    axis = check_split(NUMPY, x, axis_name, size, split_axis)
    return np.split(x, size, axis=axis)[index].copy()


def stack_params(
    params: Any,
    axis_name: str | tuple[str, ...],
    axis: int = 0,
    mask_except: int | None = None,
    *,
    axis_index: Place,
    axis_size: Place,
) -> Any:
    """Turn each device's own parameters into shards of one array that is stacked along a new axis.

    Args:
        params: a pytree of arrays or `Partitioned` boxes.
        axis_name: the mesh axis (or tuple of mesh axes) that shards the new dimension.
        axis: position of the new dimension; a negative number counts from the last axis of the result.
        mask_except: None, or the index of the one device whose values are kept; those of the others become zeros.
        axis_index, axis_size: as in `fold_rng_over_axis`.

    Returns:
        The tree with `Partitioned` leaves: this device's shard, of size 1 along the new axis, and its labels.

    Raises:
        TypeError: `axis_name` is neither a name nor a tuple of names.
        ValueError: an axis does not exist, `mask_except` is not an index of it, or a parameter is already sharded over
            it.
    """
    index, size = _place("stack_params", axis_name, axis_index, axis_size)

    def stack(path: str, leaf: Any) -> Partitioned:
        value, names = (leaf.value, leaf.names) if isinstance(leaf, Partitioned) else (leaf, (None,) * np.ndim(leaf))
        at = check_stack(NUMPY, path, value, names, axis_name, axis, mask_except, size)
        kept = value if mask_except is None or mask_except == index else np.zeros_like(value)
        return Partitioned(np.expand_dims(kept, at).copy(), (*names[:at], axis_name, *names[at:]))

    return _map_boxes(stack, params)


def unstack_params(params: Any, axis_name: str | tuple[str, ...]) -> Any:
    """Inverse of `stack_params`: remove the stacked dimension of every parameter that is sharded over ``axis_name``.

    Args:
        params: a pytree of arrays or `Partitioned` boxes.
        axis_name: the mesh axis, or tuple of them, that `stack_params` was given.

    Returns:
        The tree; a leaf without any label left is a bare array again.

    Raises:
        TypeError: `axis_name` is neither a name nor a tuple of names.
        ValueError: a shard's size along the axis is not 1.
    """
    axis_names("unstack_params", axis_name)

    def unstack(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, Partitioned):
            return _copied(leaf)
        if axis_name not in leaf.names:
            return Partitioned(_copied(leaf.value), leaf.names)
        at = check_unstack(NUMPY, path, leaf.value, leaf.names, axis_name)
        names = (*leaf.names[:at], *leaf.names[at + 1 :])
        value = np.squeeze(leaf.value, axis=at).copy()
        return value if all(name is None for name in names) else Partitioned(value, names)

    return _map_boxes(unstack, params)


def _copied(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def _map_boxes(function: Any, params: Any) -> Any:
    def is_box(leaf: Any) -> bool:
        return isinstance(leaf, Partitioned)

    paths = iter([path for path, _ in flatten_with_paths(params, is_leaf=is_box)])
    return tree_map(lambda leaf: function(next(paths), leaf), params, is_leaf=is_box)


def _place(function: str, axis_name: Any, axis_index: Place, axis_size: Place) -> tuple[int, int]:
    """Index and size of one axis, or of a tuple of axes treated as one."""
    index, size = 0, 1
    names = axis_names(function, axis_name)
    for name in names:
        if isinstance(axis_size, Mapping) and isinstance(axis_index, Mapping):
            if name not in axis_size:
                raise unknown_axis(function, name, tuple(axis_size))
            of_name, devices = axis_index[name], axis_size[name]
        elif isinstance(axis_size, int) and isinstance(axis_index, int) and len(names) == 1:
            of_name, devices = axis_index, axis_size
        else:
            raise TypeError(f"{function}: `axis_index` is {axis_index!r}; expected a number, or a dict by axis name")
        if not 0 <= of_name < devices:
            raise ValueError(f"{function}: `axis_index` is {of_name}; expected 0 to {devices - 1} along {name!r}")
        index, size = index * devices + of_name, size * devices
    return index, size
