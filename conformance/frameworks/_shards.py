"""Sequences, or a packing, that are cut along their steps into shards, for targets that take shards."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np


def lacks_keyword(functions: Mapping[str, Any], operation: str, keyword: str) -> str | None:
    """The reason why a target cannot be given shards: it has not the function, or that has not the keyword."""
    if operation not in functions:
        return f"there is no {operation}"
    try:
        taken = inspect.signature(functions[operation]).parameters
    except (ValueError, TypeError):
        taken = {}
    return None if keyword in taken else f"{operation} does not take `{keyword}`"


def step_axis(cu_seqlens: Any) -> int:
    """The axis of the steps, of dense sequences or of a packing."""
    return 1 if cu_seqlens is None else 0


def ranges(shape: Sequence[int], axis: int, shards: int) -> list[slice]:
    """The steps of each shard of an array: any number of them, 0 too, and the same for every array of this shape."""
    steps = shape[axis]
    inner = np.random.default_rng([*shape]).integers(0, steps + 1, shards - 1)
    return [slice(start, end) for start, end in pairwise([0, *np.sort(inner).tolist(), steps])]


def in_arrays(sharded: Callable, shards: int) -> Callable:
    """A NumPy function whose sequences are lists of shards, or its backward, as one of whole sequences."""
    taken = inspect.signature(sharded).parameters

    def whole(*sequences: np.ndarray, cu_seqlens: Any = None, dh: Any = None, **options: Any) -> Any:
        axis = step_axis(cu_seqlens)
        at = [(slice(None),) * axis + (steps,) for steps in ranges(sequences[0].shape, axis, shards)]
        options = {name: option for name, option in options.items() if name in taken}
        if dh is not None:
            options["dh"] = [dh[part] for part in at]
        found = sharded(*([x[part] for part in at] for x in sequences), cu_seqlens=cu_seqlens, **options)
        if isinstance(found, dict):
            return {name: joined(x, axis) if isinstance(x, list) else x for name, x in found.items()}
        return (joined(found[0], axis), *found[1:]) if isinstance(found, tuple) else joined(found, axis)

    def joined(parts: list[np.ndarray], axis: int) -> np.ndarray:
        return np.concatenate(parts, axis)

    return whole
