"""One rank's view of a mesh: its seed, its slice of a tensor, its shard of a parameter (xlstm_jax, array_utils).

The functions do not communicate. A mesh is a ``torch.distributed.device_mesh.DeviceMesh`` with named dimensions, or any
object with its ``mesh_dim_names``, ``get_local_rank(name)`` and ``size(index)``. A tuple of axes counts as one axis, of
which the first varies slowest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from reference.arguments import axis_names, check_seed, check_split, check_stack, check_unstack, describe, unknown_axis
from torch_impl._arrays import TORCH
from torch_impl._seeds import DEVICES, derived_seed

Axis = str | tuple[str, ...]


@dataclass(frozen=True)
class Partitioned:
    """A parameter and the mesh axis that shards each of its dimensions (like flax.linen's `Partitioned`).

    It is a pytree whose only leaf is the value.

    Attributes:
        value: this device's shard.
        names: for each dimension of ``value``, a mesh axis, a tuple of mesh axes, or None if it is not sharded.
    """

    value: Any
    names: tuple[Any, ...]


def _with_key(box: Partitioned) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
    return [(pytree.GetAttrKey("value"), box.value)], box.names


pytree.register_pytree_node(
    Partitioned,
    lambda box: ([box.value], box.names),
    lambda values, names: Partitioned(next(iter(values)), names),
    serialized_type_name="torch_impl.Partitioned",
    flatten_with_keys_fn=_with_key,
)


def fold_rng_over_axis(rng: int, axis_name: Axis, *, mesh: Any) -> int:
    """A seed for this rank: different along the axis, the same along every other axis.

    Args:
        rng: an integer seed.
        axis_name: a mesh axis or a tuple of them.
        mesh: the device mesh.

    Returns:
        An integer seed: the state of ``SeedSequence(rng, spawn_key=(1, index))``.

    Raises:
        TypeError: `axis_name` is neither a name nor a tuple of names, or `mesh` is not a device mesh.
        ValueError: the axis does not exist.
    """
    index, _ = _place("fold_rng_over_axis", axis_name, mesh)
    return derived_seed(check_seed("fold_rng_over_axis", rng), DEVICES, index)


def split_array_over_mesh(x: Tensor, axis_name: Axis, split_axis: int, *, mesh: Any) -> Tensor:
    """This rank's slice of a tensor: ``split_axis`` is cut into as many equal slices as the mesh axis has ranks.

    Args:
        x: the whole tensor.
        axis_name: a mesh axis or a tuple of them.
        split_axis: the tensor's axis to split; a negative number counts from the last axis.
        mesh: the device mesh.

    Returns:
        The slice, with the dtype of `x`.

    Raises:
        TypeError: `axis_name` is neither a name nor a tuple of names, or `mesh` is not a device mesh.
        ValueError: the mesh axis or the tensor axis does not exist, or the tensor axis is not a multiple of the mesh
            axis.
    """
    index, size = _place("split_array_over_mesh", axis_name, mesh)
    axis = check_split(TORCH, x, axis_name, size, split_axis)
    length = x.shape[axis] // size
    return x.narrow(axis, index * length, length).clone(memory_format=torch.contiguous_format)


def stack_params(
    params: Any, axis_name: Axis, axis: int = 0, mask_except: int | Tensor | None = None, *, mesh: Any
) -> Any:
    """Turn each rank's own parameters into shards of one tensor that is stacked along a new axis.

    Args:
        params: a pytree of tensors or `Partitioned` boxes.
        axis_name: the mesh axis (or tuple of mesh axes) that shards the new dimension.
        axis: position of the new dimension; a negative number counts from the last axis of the result.
        mask_except: None, or the index of the one rank whose values are kept; those of the others become zeros.
        mesh: the device mesh.

    Returns:
        The tree with `Partitioned` leaves: this rank's shard, of size 1 along the new axis, and its labels.

    Raises:
        TypeError: `axis_name` is neither a name nor a tuple of names, or `mesh` is not a device mesh.
        ValueError: an axis does not exist, `mask_except` is not an index of it, or a parameter is already sharded over
            it.
    """
    index, size = _place("stack_params", axis_name, mesh)

    def stack(path: str, leaf: Any) -> Partitioned:
        value, names = leaf, (None,) * getattr(leaf, "ndim", 0)
        if isinstance(leaf, Partitioned):
            value, names = leaf.value, leaf.names
        at = check_stack(TORCH, path, value, names, axis_name, axis, mask_except, size)
        shard = value.unsqueeze(at)
        if isinstance(mask_except, Tensor):
            shard = torch.where(mask_except == index, shard, torch.zeros_like(shard))
        elif mask_except is None or mask_except == index:
            shard = shard.clone()
        else:
            shard = torch.zeros_like(shard)
        return Partitioned(shard, (*names[:at], axis_name, *names[at:]))

    return _map_boxes(stack, params)


def unstack_params(params: Any, axis_name: Axis, *, mesh: Any = None) -> Any:
    """Inverse of `stack_params`: remove the stacked dimension of every parameter that is sharded over ``axis_name``.

    Args:
        params: a pytree of tensors or `Partitioned` boxes.
        axis_name: the mesh axis, or tuple of them, that `stack_params` was given.
        mesh: the device mesh; if given, the axis must be one of its axes.

    Returns:
        The tree; a leaf without any label left is a bare tensor again.

    Raises:
        TypeError: `axis_name` is neither a name nor a tuple of names, or `mesh` is not a device mesh.
        ValueError: the axis does not exist, or a shard's size along it is not 1.
    """
    axis_names("unstack_params", axis_name)
    if mesh is not None:
        _place("unstack_params", axis_name, mesh)

    def unstack(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, Partitioned):
            return _copied(leaf)
        if axis_name not in leaf.names:
            return Partitioned(_copied(leaf.value), leaf.names)
        at = check_unstack(TORCH, path, leaf.value, leaf.names, axis_name)
        names = (*leaf.names[:at], *leaf.names[at + 1 :])
        value = leaf.value.squeeze(at).clone()
        return value if all(name is None for name in names) else Partitioned(value, names)

    return _map_boxes(unstack, params)


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _map_boxes(function: Callable[[str, Any], Any], params: Any) -> Any:
    leaves, tree = pytree.tree_flatten_with_path(params, is_leaf=lambda leaf: isinstance(leaf, Partitioned))
    mapped = [None if leaf is None else function(pytree.keystr(path), leaf) for path, leaf in leaves]
    return pytree.tree_unflatten(mapped, tree)


def _place(function: str, axis_name: Any, mesh: Any) -> tuple[int, int]:
    """Index and size of one axis, or of a tuple of axes treated as one."""
    if not all(hasattr(mesh, name) for name in ("mesh_dim_names", "get_local_rank", "size")):
        raise TypeError(f"{function}: `mesh` is {describe(mesh)}; expected a device mesh with named dimensions")
    index, size = 0, 1
    known = tuple(mesh.mesh_dim_names or ())
    for name in axis_names(function, axis_name):
        if name not in known:
            raise unknown_axis(function, name, known)
        ranks = mesh.size(known.index(name))
        index, size = index * ranks + mesh.get_local_rank(name), size * ranks
    return index, size
