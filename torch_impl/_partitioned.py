"""A parameter with the mesh axes that its dimensions are sharded over (flax.linen's box of that name)."""

from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Partitioned:
    """A parameter and, for each of its dimensions, the mesh axis that shards it. A pytree whose one leaf is the value.

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
