"""JAX arrays of a call, sharded over the batch and the heads of an operation."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from conformance.operations import OPERATIONS

BATCH, HEADS = "batch", "heads"


def sharded(operation: str, arrays: tuple[dict[str, Any], ...], devices: list[Any], explicit: bool) -> tuple[Any, ...]:
    """Named arrays on a mesh of two or four devices; an axis that they do not divide is replicated.

    Args:
        operation: the operation whose arguments and outputs the arrays are named after.
        arrays: arguments and cotangents.
        devices: at least two devices.
        explicit: whether the mesh's axes are part of the types of arrays (`AxisType.Explicit`).
    """
    sizes = {BATCH: 2, HEADS: len(devices) // 2}
    kind = AxisType.Explicit if explicit else AxisType.Auto
    used = devices[: 2 * sizes[HEADS]]
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(kind,) * 2, devices=used)
    record, packed = OPERATIONS[operation], any("cu_seqlens" in part for part in arrays)
    shapes = {part.name: part.shape for part in (*record.outputs, *record.arguments)}
    letters = {name: (shape.replace("B S", "T") if packed else shape).split() for name, shape in shapes.items()}
    axis_of_heads = {name: _first(of, lambda letter: letter.startswith("N")) for name, of in letters.items()}
    heads = [x.shape[axis] for name, x in arrays[0].items() if (axis := axis_of_heads[name]) is not None]

    def place(name: str, x: Any) -> Any:
        spec: list[str | None] = [None] * x.ndim
        batch, head = _first(letters[name], lambda letter: letter in ("B", "...")), axis_of_heads[name]
        if batch is not None and x.shape[batch] % sizes[BATCH] == 0:
            spec[batch] = BATCH
        # Heads that share an input or a weight with others are on every device.
        if head is not None and x.shape[head] == max(heads) and max(heads) % sizes[HEADS] == 0:
            spec[head] = HEADS
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))

    return tuple({name: place(name, x) for name, x in part.items()} for part in arrays)


def _first(letters: list[str], wanted: Callable[[str], bool]) -> int | None:
    return next((at for at, letter in enumerate(letters) if wanted(letter)), None)
