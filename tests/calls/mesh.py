"""A mesh of devices as PyTorch's sharding functions see it, without a process group."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Mesh:
    """The part of a ``DeviceMesh`` that a sharding function uses, for one device.

    Attributes:
        axes: the number of devices on each axis.
        number: the number of this device; the first axis varies slowest.
    """

    axes: Mapping[str, int]
    number: int

    @property
    def mesh_dim_names(self) -> tuple[str, ...]:
        return tuple(self.axes)

    @property
    def ndim(self) -> int:
        return len(self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.axes.values())

    def get_local_rank(self, mesh_dim: str | int | None = None) -> int:
        return place(self.axes, self.number)[self._name(mesh_dim)]

    def size(self, mesh_dim: int | str | None = None) -> int:
        return math.prod(self.axes.values()) if mesh_dim is None else self.axes[self._name(mesh_dim)]

    def _name(self, mesh_dim: str | int | None) -> str:
        return mesh_dim if isinstance(mesh_dim, str) else tuple(self.axes)[mesh_dim or 0]


def place(axes: Mapping[str, int], number: int) -> dict[str, int]:
    """The position of the device with this number on each axis; the first axis varies slowest."""
    at = {}
    for name, devices in reversed(tuple(axes.items())):
        number, at[name] = divmod(number, devices)
    return at
