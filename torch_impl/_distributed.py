"""Calls with DTensors: every process computes its own sequences or heads, without communication.

Sequences and heads do not depend on each other. A mesh axis may therefore shard the batch or the heads, in the same way
for all arrays. Arrays that it does not shard are replicated, and their gradients are summed over the mesh axis.
Sharding any other axis raises.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

BATCH, HEADS = "batch (B)", "heads (N)"


def is_distributed(x: Any) -> bool:
    """Whether ``x`` is a DTensor; does not import what would be needed to make one."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def place_of(x: Tensor) -> Any:
    """The device of a tensor; of a DTensor, with its mesh. All arrays of a call share it."""
    return f"{x.device} over {_described(x.device_mesh)}" if is_distributed(x) else x.device  # type: ignore[attr-defined]


def _described(mesh: Any) -> str:
    names = mesh.mesh_dim_names or [f"axis {number}" for number in range(mesh.ndim)]
    ranks = mesh.mesh.flatten().tolist()
    return f"a mesh of {', '.join(f'{n}={s}' for n, s in zip(names, mesh.shape, strict=True))} (ranks {ranks})"


def _kind(letter: str) -> str:
    """The kind of an axis: sequences, heads, one of the leading axes of an elementwise operation, or none of these."""
    if letter == "B":
        return BATCH
    return HEADS if letter.startswith("N") else letter if letter.isdigit() else ""


def leading(x: Tensor, *last: str) -> str:
    """The axes of a tensor for `distributed_call`, of a call in which all axes except the last ones may be sharded."""
    return " ".join((*map(str, range(x.ndim - len(last))), *last))


def distributed_call(
    function: str,
    arguments: Sequence[tuple[str, Any, str | None]],
    results: Sequence[str],
    packed: bool,
    compute: Callable[[list[Any]], Sequence[Tensor]],
) -> list[Tensor]:
    """Call a function with the local parts of DTensors, and make DTensors of its results.

    Args:
        function: the public name that errors mention.
        arguments: name, value and axes (``"B S N K"``) of every argument; without axes it is passed as it is. Axes that
            are numbers may be sharded as well.
        results: the axes of the results.
        packed: whether sequences are packed, so that no array has an axis of one entry per sequence to shard.
        compute: ``(values) →`` the results.

    Raises:
        ValueError: an array is sharded over an axis other than batch and heads, a mesh axis shards the batch of one
            array and the heads of another, or a mesh axis does not divide a number of heads.
    """
    from torch.distributed.tensor import DTensor

    layout = _Layout(
        function, [(name, x, axes.split()) for name, x, axes in arguments if axes and x is not None], packed
    )
    values: list[Any] = []
    for name, x, axes in arguments:
        if x is None or axes is None:
            values.append(x.full_tensor() if x is not None and is_distributed(x) else x)
            continue
        target = layout.placements(name, x.shape, axes.split())
        # What is replicated here and used with different sequences or heads elsewhere has a part of its gradient here.
        gradient = layout.gradient_placements(target)
        values.append(x.redistribute(layout.mesh, target).to_local(grad_placements=gradient))
    outputs = []
    for y, axes in zip(compute(values), results, strict=True):
        shape = layout.whole_shape(y.shape, axes.split())
        outputs.append(
            DTensor.from_local(
                y,
                layout.mesh,
                layout.placements("result", shape, axes.split()),
                run_check=False,
                shape=torch.Size(shape),
                stride=torch.empty(shape, device="meta").stride(),
            )
        )
    return outputs


class _Layout:
    """The layout of a call: for every mesh axis, whether it shards the batch, the heads, one leading axis, or
    nothing.
    """

    def __init__(self, function: str, arrays: Sequence[tuple[str, Any, Sequence[str]]], packed: bool):
        self.function, self.mesh = function, arrays[0][1].device_mesh
        self.names = self.mesh.mesh_dim_names or tuple(range(self.mesh.ndim))
        self.sizes: dict[str, int] = {}
        self.kinds = [""] * self.mesh.ndim
        for name, x, axes in arrays:
            for letter, size in zip(axes, x.shape, strict=True):
                kind = _kind(letter)
                self.sizes[kind] = max(self.sizes.get(kind, 0), size)
            for number, placement in enumerate(x.placements):
                if placement.is_replicate() or placement.is_partial():
                    continue
                self._shard(name, axes, number, placement, packed)

    def refuse(self, name: str, got: str, expected: str) -> NoReturn:
        raise ValueError(f"{self.function}: `{name}` is {got}; expected {expected}")

    def _shard(self, name: str, axes: Sequence[str], number: int, placement: Any, packed: bool) -> None:
        from torch.distributed.tensor import Shard

        by = f"by mesh axis {self.names[number]!r}"
        if type(placement) is not Shard:
            self.refuse(name, f"placed as {placement} {by}", "it sharded evenly or replicated there")
        letter = axes[int(placement.dim)]
        kind = _kind(letter)
        if not kind or (packed and kind == BATCH):
            which = "leading axes" if "0" in axes else "heads" if packed else "batch and heads"
            which = f"only {which} can be sharded" + " in packed sequences" * packed
            self.refuse(name, f"sharded over axis {placement.dim} ({letter}) {by}", f"it replicated there: {which}")
        if self.kinds[number] not in ("", kind):
            self.refuse(name, f"sharded over {kind} {by}", f"{self.kinds[number]}, as another array is")
        self.kinds[number] = kind

    def placements(self, name: str, shape: Sequence[int], axes: Sequence[str]) -> list[Any]:
        """The placements of a whole array: sharded wherever it has the axis that a mesh axis shards."""
        from torch.distributed.tensor import Replicate, Shard

        found: list[Any] = []
        for number, kind in enumerate(self.kinds):
            axis = next((at for at, letter in enumerate(axes) if kind and _kind(letter) == kind), None)
            if axis is None or (kind == HEADS and shape[axis] == 1 < self.sizes[HEADS]):
                # It has no such axis, or one head that all share.
                found.append(Replicate())
                continue
            if kind == HEADS and shape[axis] % self.mesh.size(number):
                self.refuse(
                    name,
                    f"an array of {shape[axis]} heads sharded by mesh axis {self.names[number]!r}",
                    f"a multiple of its size, {self.mesh.size(number)}",
                )
            found.append(Shard(axis))
        return found

    def gradient_placements(self, placements: Sequence[Any]) -> list[Any]:
        """The placements of the gradient of an array that is placed so."""
        from torch.distributed.tensor import Partial

        return [
            Partial() if kind and placement.is_replicate() else placement
            for kind, placement in zip(self.kinds, placements, strict=True)
        ]

    def whole_shape(self, shape: Sequence[int], axes: Sequence[str]) -> list[int]:
        """The shape of a result, given that of a local part."""
        kinds = (_kind(letter) for letter in axes)
        return [self.sizes[kind] if kind in self.kinds and kind else n for kind, n in zip(kinds, shape, strict=True)]
