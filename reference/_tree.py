"""Pytrees of NumPy arrays (dicts, lists and tuples; None is an empty tree) and the box for a sharded parameter."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Partitioned:
    """A parameter and the mesh axis that shards each of its dimensions (like flax.linen's `Partitioned`).

    Attributes:
        value: this device's shard.
        names: for each dimension of ``value``, a mesh axis, a tuple of mesh axes, or None if it is not sharded.
    """

    value: Any
    names: tuple[Any, ...]


def _children(tree: Any) -> list[tuple[str, Any]] | None:
    """The child subtrees of a node with their paths, or None if the node is a leaf."""
    if tree is None:
        return []
    if isinstance(tree, dict):
        return [(f"[{key!r}]", tree[key]) for key in sorted(tree)]
    if isinstance(tree, list | tuple):
        return [(f"[{number}]", subtree) for number, subtree in enumerate(tree)]
    if isinstance(tree, Partitioned):
        return [(".value", tree.value)]
    return None


def _rebuild(tree: Any, children: list) -> Any:
    if tree is None:
        return None
    if isinstance(tree, dict):
        return dict(zip(sorted(tree), children, strict=True))
    if isinstance(tree, Partitioned):
        return Partitioned(children[0], tree.names)
    return type(tree)(*children) if hasattr(tree, "_fields") else type(tree)(children)


def tree_map(function: Callable, tree: Any, *others: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Apply ``function`` leaf by leaf to trees that have the same structure."""
    children = None if is_leaf is not None and is_leaf(tree) else _children(tree)
    if children is None:
        return function(tree, *others)
    subtrees = [[subtree for _, subtree in _children(other) or []] for other in (tree, *others)]
    return _rebuild(tree, [tree_map(function, *row, is_leaf=is_leaf) for row in zip(*subtrees, strict=True)])


def flatten_with_paths(
    tree: Any, is_leaf: Callable[[Any], bool] | None = None, prefix: str = ""
) -> list[tuple[str, Any]]:
    """Every leaf together with its path, ``("['x'][0]", leaf)``."""
    children = None if is_leaf is not None and is_leaf(tree) else _children(tree)
    if children is None:
        return [(prefix, tree)]
    return [leaf for path, subtree in children for leaf in flatten_with_paths(subtree, is_leaf, prefix + path)]
