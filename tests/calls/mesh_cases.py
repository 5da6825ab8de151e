"""Meshes of devices, and arrays that are split over them or stacked on them."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.cases import PINS, SEEDS, Limits, generator, register

REPLICAS = "replicas"


@register()
@dataclass(frozen=True)
class MeshCase:
    """An array of ``shape`` on the devices of one mesh axis, or of two axes that count as one.

    Attributes:
        devices: the number of devices on each of these axes.
        axis: the axis to split along, or at which to stack; may be negative.
        keep: the one device that keeps its values when stacking, or None for all.
        replicas: the number of devices on one more axis, along which nothing may differ.
    """

    shape: tuple[int, ...]
    devices: tuple[int, ...]
    axis: int
    keep: int | None = None
    replicas: int = 1
    seed: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.total * self.replicas

    @property
    def total(self) -> int:
        return math.prod(self.devices)

    def describe(self) -> str:
        kept = "" if self.keep is None else f", mask_except={self.keep}"
        replicas = "" if self.replicas == 1 else f", {self.replicas} on another axis"
        devices = "x".join(map(str, self.devices))
        return f"shape {list(self.shape)} on {devices} devices{replicas}, axis {self.axis}{kept}, seed={self.seed}"

    def values(self, *salt: int) -> np.ndarray:
        return generator(self.seed, 40, *salt).normal(size=self.shape)

    @property
    def axes(self) -> dict[str, int]:
        """The mesh: its axes and their sizes."""
        names = ("first", "second")[: len(self.devices)]
        return {**dict(zip(names, self.devices, strict=True)), REPLICAS: self.replicas}

    @property
    def axis_name(self) -> Any:
        """The axis name as the functions take it: a name, or a tuple of names."""
        first, *more, _ = self.axes
        return (first, *more) if more else first


DEVICES = ((2,), (1,), (3,), (4,), (2, 3), (2, 1))


# Cases that no run may miss; they are all that is tried where every new shape has to be compiled.
_SPLIT_TABLE = (
    MeshCase((3, 4), (2,), -1, replicas=2, seed=1),
    MeshCase((6, 2), (2, 3), 0, seed=2),
    MeshCase((3,), (3,), -1, seed=3),
)
_STACK_TABLE = (
    MeshCase((3, 2), (2,), -1, keep=1, replicas=2, seed=1),
    MeshCase((3, 2), (2, 3), 1, seed=2),
    MeshCase((), (2, 3), 0, keep=4, seed=3),
)


def _pinned(table: tuple[MeshCase, ...], limits: Limits) -> st.SearchStrategy | None:
    """A row of the table for each pin; without a pin None, and for a target that compiles no other cases."""
    if limits.pin:
        return st.just(table[PINS[limits.stratum].index(limits.pin)])
    return None if limits.eager else st.nothing()


@st.composite
def splits(draw: Any, limits: Limits) -> MeshCase:
    """An array with an axis that the number of devices divides."""
    pinned = _pinned(_SPLIT_TABLE, limits)
    if pinned is not None:
        return draw(pinned)
    devices, replicas = draw(st.sampled_from(DEVICES)), draw(st.sampled_from((1, 2)))
    shape = [draw(st.sampled_from((1, 2, 3))) for _ in range(draw(st.sampled_from((1, 2, 3))))]
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    shape[axis] *= math.prod(devices)
    return MeshCase(tuple(shape), devices, axis, replicas=replicas, seed=draw(SEEDS))


@st.composite
def stacks(draw: Any, limits: Limits) -> MeshCase:
    """A parameter, and the axis at which it is stacked."""
    pinned = _pinned(_STACK_TABLE, limits)
    if pinned is not None:
        return draw(pinned)
    devices, replicas = draw(st.sampled_from(DEVICES)), draw(st.sampled_from((1, 2)))
    shape = tuple(draw(st.sampled_from((1, 2, 3))) for _ in range(draw(st.sampled_from((1, 2, 0, 3)))))
    axis = draw(st.integers(-len(shape) - 1, len(shape)))
    keep = draw(st.sampled_from((None, *range(math.prod(devices)))))
    return MeshCase(shape, devices, axis, keep, replicas, draw(SEEDS))
