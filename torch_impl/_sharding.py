"""What one rank of a mesh sees: its seed, its slice of a tensor, its shard of a parameter (xlstm_jax, array_utils).

The functions hold no communication. A mesh is a ``torch.distributed.device_mesh.DeviceMesh`` with named dimensions, or
whatever has its ``mesh_dim_names``, ``get_local_rank(name)`` and ``size(index)``. A tuple of axes counts as one, its
first axis varying slowest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from reference.arguments import axis_names, check_split, check_stack, check_unstack, unknown_axis
from torch_impl._arrays import TORCH

Axis = str | tuple[str, ...]


@dataclass(frozen=True)
class Partitioned:
    """A parameter and, for each of its dimensions, the mesh axis that shards it (flax.linen's box of that name).

    A pytree whose one leaf is the value.

    Attributes:
        value: this device's shard.
        names: for every dimension of ``value`` a mesh axis, a tuple of mesh axes, or None where it is whole.
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
    """A seed of this rank's own: different along the axis, the same on every other.

    Args:
        rng: an integer seed.
        axis_name: a mesh axis or a tuple of them.
        mesh: the device mesh.

    Returns:
        An integer seed, ``SeedSequence((rng, index))``.

    Raises:
        TypeError: `axis_name` is neither a name nor a tuple of names.
        ValueError: there is no such axis.
    """
    index, _ = _place("fold_rng_over_axis", axis_name, mesh)
    return int(np.random.SeedSequence((rng, index)).generate_state(1, np.uint64)[0])


def split_array_over_mesh(x: Tensor, axis_name: Axis, split_axis: int, *, mesh: Any) -> Tensor:
    """This rank's slice of a tensor: the index-th of as many equal runs along ``split_axis`` as the mesh axis is long.

    Args:
        x: the whole tensor.
        axis_name: a mesh axis or a tuple of them.
        split_axis: the tensor's axis to split; a negative one counts from the last.
        mesh: the device mesh.

    Raises:
        TypeError: `axis_name` is neither a name nor a tuple of names.
        ValueError: there is no such axis, of the mesh or of the tensor, or its size is no multiple of the mesh axis.
    """
    index, size = _place("split_array_over_mesh", axis_name, mesh)
    axis = check_split(TORCH, x, axis_name, size, split_axis)
    length = x.shape[axis] // size
    return x.narrow(axis, index * length, length).clone(memory_format=torch.contiguous_format)


def stack_params(
    params: Any, axis_name: Axis, axis: int = 0, mask_except: int | Tensor | None = None, *, mesh: Any
) -> Any:
    """Make each rank's own parameters shards of one tensor that is stacked along a new axis.

    Args:
        params: a pytree of tensors or `Partitioned` boxes.
        axis_name: the mesh axis (or tuple of them) that the new dimension is sharded over.
        axis: where the new dimension stands; a negative one counts from the last of the result.
        mask_except: None, or the index of the one rank whose values stay; the others' become zeros.
        mesh: the device mesh.

    Returns:
        The tree with `Partitioned` leaves: this rank's shard, of size 1 along the new axis, and its labels.

    Raises:
        TypeError: `axis_name` is neither a name nor a tuple of names.
        ValueError: there is no such axis, `mask_except` is no index of one, or a parameter is sharded over it already.
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
    """Inverse of `stack_params`: take the stacked dimension off every parameter that is sharded over ``axis_name``.

    Args:
        params: a pytree of tensors or `Partitioned` boxes.
        axis_name: the mesh axis, or tuple of them, that `stack_params` was given.
        mesh: the device mesh, where it shall be checked that the axis is one of its own.

    Returns:
        The tree; a leaf with no label left is a bare tensor again.

    Raises:
        TypeError: `axis_name` is neither a name nor a tuple of names.
        ValueError: there is no such axis, or a shard's size along it is not 1.
    """
    axis_names("unstack_params", axis_name)
    if mesh is not None:
        _place("unstack_params", axis_name, mesh)

    def unstack(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, Partitioned) or axis_name not in leaf.names:
            return leaf
        at = check_unstack(TORCH, path, leaf.value, leaf.names, axis_name)
        names = (*leaf.names[:at], *leaf.names[at + 1 :])
        value = leaf.value.squeeze(at).clone()
        return value if all(name is None for name in names) else Partitioned(value, names)

    return _map_boxes(unstack, params)


def _map_boxes(function: Callable[[str, Any], Any], params: Any) -> Any:
    leaves, tree = pytree.tree_flatten_with_path(params, is_leaf=lambda leaf: isinstance(leaf, Partitioned))
    mapped = [None if leaf is None else function(pytree.keystr(path), leaf) for path, leaf in leaves]
    return pytree.tree_unflatten(mapped, tree)


def _place(function: str, axis_name: Any, mesh: Any) -> tuple[int, int]:
    """Index and size of one axis, or of a tuple of axes taken as one."""
    index, size = 0, 1
    known = tuple(mesh.mesh_dim_names or ())
    for name in axis_names(function, axis_name):
        if name not in known:
            raise unknown_axis(function, name, known)
        ranks = mesh.size(known.index(name))
        index, size = index * ranks + mesh.get_local_rank(name), size * ranks
    return index, size
