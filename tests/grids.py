"""Chooses among the sets of parameters of a test.

A test that is marked ``grid`` takes one path through the code at many sizes, switches or dtypes, and its parameters do
not work on each other: a fault shows at some value of one of them. ``--grids each`` keeps so many sets that every value
of every parameter occurs, and ``--grids whole``, the default, keeps all. A set that is marked ``whole_grid`` by itself
runs only then.

``--grids one`` is for tests that are repeated under another version of a framework. Parameters choose a path through
our code, and all paths are tested under the first version; what a version changes is what the framework makes of the
code. So every test, marked or not, keeps one set for each operation (`KEPT`), and what the reference alone is asked is
left out. Tests of Pallas kernels run under no other version: there, only grids are reduced.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import pytest

HOW = ("whole", "each", "one")
KEPT = ("framework", "wing", "package", "name", "op", "operation", "function", "law", "form")
"""Parameters that name an operation, or how it is asked: each of their values is kept under another version."""


def larger(*values: Any) -> Any:
    """A set of parameters that ``--grids whole`` alone runs, because it takes longer than those that show the same."""
    return pytest.param(*values, marks=pytest.mark.whole_grid)


def each_value(sets: Sequence[Mapping[str, Hashable]]) -> list[int]:
    """Positions of sets that together have every value of every parameter, as few as a greedy choice finds.

    Args:
        sets: the values of each set by the name of the parameter.
    """
    used: Counter[tuple[str, Hashable]] = Counter()
    left = {value for of in sets for value in of.items()}
    chosen = []
    while left:
        # Of those with the most values that have not occurred, the one whose other values have occurred least.
        scores = [(len(left & of.items()), -sum(used[value] for value in of.items())) for of in sets]
        best = scores.index(max(scores))
        chosen.append(best)
        used.update(sets[best].items())
        left -= sets[best].items()
    return sorted(chosen)


def split(items: Iterable[pytest.Item], how: str) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests that run and those that do not, each in the order of ``items``."""
    items = list(items)
    if how == "whole":
        return items, []
    dropped = {item for item in items if item.get_closest_marker("whole_grid")}
    tests: dict[tuple, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if item in dropped or not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        parameters, repeated = item.callspec.params, how == "one" and "kernels" not in item.path.parts
        if repeated and "reference" in (parameters.get("wing"), parameters.get("package")):
            dropped.add(item)
        elif repeated or item.get_closest_marker("grid"):
            # Each framework of `tests/both` gets sets of its own.
            operation = tuple(str(parameters.get(name)) for name in (KEPT if repeated else KEPT[:1]))
            tests[item.path, item.cls, item.originalname, *operation].append(item)
    for of in tests.values():
        kept = [len(of) // 2] if how == "one" else each_value([_values(item) for item in of])
        dropped |= {item for at, item in enumerate(of) if at not in kept}
    return [item for item in items if item not in dropped], [item for item in items if item in dropped]


def _values(item: pytest.Function) -> dict[str, int]:
    """The identity of the value of each parameter: the sets of a grid share their values, which may have no hash."""
    return {name: id(value) for name, value in item.callspec.params.items()}
