"""Conversion of layers' parameters and results, which are trees, to the flat form that laws use."""

from collections.abc import Mapping
from typing import Any


def flattened(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A tree of dicts as one dict whose keys are paths, ``input_projection.kernel``."""
    flat = {}
    for name, x in tree.items():
        flat |= flattened(x, f"{prefix}{name}.") if isinstance(x, Mapping) else {f"{prefix}{name}": x}
    return flat


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `flattened`."""
    tree: dict[str, Any] = {}
    for path, x in flat.items():
        *above, name = path.split(".")
        branch = tree
        for step in above:
            branch = branch.setdefault(step, {})
        branch[name] = x
    return tree


def leaves(result: Any) -> list[Any]:
    """The result of a layer, possibly nested tuples or lists, as a list of arrays."""
    return [leaf for part in result for leaf in leaves(part)] if isinstance(result, tuple | list) else [result]
