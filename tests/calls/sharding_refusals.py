"""Bad calls of the sharding functions, on a mesh with one axis of two devices."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from conformance.base.dtypes import array
from tests.calls.refusals import BadUse

AXIS = "model"
_AXIS_NAMES: tuple[tuple[str, Any], ...] = (
    ("an axis that the mesh does not have", "data"),
    ("a tuple with an axis that the mesh does not have", (AXIS, "data")),
    ("an empty tuple of axes", ()),
    ("a number for an axis name", 0),
    ("a list of axes", [AXIS]),
)


def _on_device(operation: str, call: Callable[[Callable, dict[str, Any], Any], Any]) -> Callable[[Any], Any]:
    """Makes a call of ``operation`` on every device, with an array of 3 rows of 5."""

    def use(implementation: Any) -> Any:
        function = implementation.functions[operation]

        def device(place: dict[str, Any], x: Any) -> dict[str, Any]:
            call(function, place, x)
            return {"x": x}

        x = array(np.ones((3, 5)), "float32")
        return implementation.on_mesh({AXIS: 2}, device, [x, x])

    return use


def fold_bad_uses() -> list[BadUse]:
    """Bad uses of `fold_rng_over_axis`."""
    operation = "fold_rng_over_axis"

    def use(name: Any, implementation: Any) -> Any:
        return _on_device(operation, lambda f, place, x: f(implementation.rng(0), name, **place))(implementation)

    return [BadUse(operation, label, partial(use, name)) for label, name in _AXIS_NAMES]


def split_bad_uses() -> list[BadUse]:
    """Bad uses of `split_array_over_mesh`."""
    axes: tuple[tuple[str, Any], ...] = (
        ("an axis that the devices do not divide", 1),
        ("an axis beyond the last", 2),
        ("an axis before the first", -3),
        ("an axis of 1.0", 1.0),
        ("no axis", None),
    )

    def bad(label: str, name: Any = AXIS, axis: Any = 0, value: Any = None) -> BadUse:
        return _bad("split_array_over_mesh", label, lambda f, at, x: f(x if value is None else value, name, axis, **at))

    return [
        *(bad(label, axis=axis) for label, axis in axes),
        *(bad(label, name) for label, name in _AXIS_NAMES),
        bad("a list for an array", value=[1.0, 2.0]),
    ]


def stack_bad_uses() -> list[BadUse]:
    """Bad uses of `stack_params`."""
    options: tuple[tuple[str, dict[str, Any]], ...] = (
        ("an axis beyond the last", {"axis": 3}),
        ("an axis before the first", {"axis": -4}),
        ("an axis of 1.0", {"axis": 1.0}),
        ("a mask of a device beyond the last", {"mask_except": 2}),
        ("a mask of a device before the first", {"mask_except": -1}),
    )

    def bad(label: str, name: Any = AXIS, leaf: Any = None, **given: Any) -> BadUse:
        return _bad("stack_params", label, lambda f, at, x: f({"p": x if leaf is None else leaf}, name, **given, **at))

    return [
        *(bad(label, **given) for label, given in options),
        *(bad(label, name) for label, name in _AXIS_NAMES),
        bad("a number for a parameter", leaf=1.0),
        _bad(
            "stack_params",
            "a parameter that is sharded over the axis already",
            lambda f, at, x: f(f({"p": x}, AXIS, **at), AXIS, **at),
        ),
    ]


def unstack_bad_uses() -> list[BadUse]:
    """Bad uses of `unstack_params`."""
    operation = "unstack_params"

    def longer(implementation: Any) -> Any:
        def call(unstack: Callable, place: dict[str, Any], x: Any) -> None:
            box = implementation.functions["stack_params"]({"p": x}, AXIS, **place)["p"]
            unstack({"p": type(box)(x, (AXIS, None))}, AXIS)

        return _on_device(operation, call)(implementation)

    wrong = [(label, name) for label, name in _AXIS_NAMES if not isinstance(name, str) and "mesh" not in label]
    return [
        *(_bad(operation, label, lambda f, place, x, name=name: f({"p": x}, name)) for label, name in wrong),
        BadUse(operation, "a shard of more than one row", longer),
    ]


def _bad(operation: str, label: str, call: Callable[[Callable, dict[str, Any], Any], Any]) -> BadUse:
    return BadUse(operation, label, _on_device(operation, call))
