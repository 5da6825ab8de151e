"""A parameter with the mesh axes that its dimensions are sharded over (flax.linen's box of that name)."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Partitioned:
    """A parameter and, for each of its dimensions, the mesh axis that shards it.

    Attributes:
        value: this device's shard.
        names: for every dimension of ``value`` a mesh axis, a tuple of mesh axes, or None where it is whole.
    """

    value: Any
    names: tuple[Any, ...]
