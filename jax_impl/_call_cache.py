"""A cache for what is checked and decided before a call, so that calls of one kind pay for it once."""

from collections.abc import Callable
from typing import Any

import jax

from jax_impl._arrays import is_array, is_traced, platform, setting

LARGEST_CACHE = 4096
"""Entries of a cache; a full one starts anew."""


def cached_by_signature(decide: Callable[..., Any]) -> Callable[..., Any]:
    """``decide(*arguments)``, cached by the kinds, shapes, dtypes, devices and plain values of the arguments.

    What it raises is not cached, and neither are calls with arguments that cannot be hashed.

    Args:
        decide: returns anything but None, and reads no array's values.
    """
    decisions: dict[Any, Any] = {}

    def cached(*arguments: Any) -> Any:
        try:
            # Arrays and plain values here, without a call each: this is run at every call of an operation.
            signatures = [
                (x.aval, x.sharding)
                if (kind := type(x)) in _concrete
                else (kind, x)
                if kind in _PLAIN
                else _signature(x)
                for x in arguments
            ]
            key = (setting("jax_enable_x64"), *signatures)
            decision = decisions.get(key)
        except TypeError:
            return decide(*arguments)
        if decision is None:
            if len(decisions) >= LARGEST_CACHE:
                decisions.clear()
            decision = decisions[key] = decide(*arguments)
        return decision

    return cached


_PLAIN = frozenset((type(None), bool, int, float, str))
_concrete: set[type] = set()
"""Classes of arrays with values seen so far: asking `isinstance` for every argument is a third of a call's overhead."""


def _signature(x: Any) -> Any:
    """What a decision may depend on: hashable, or a TypeError where it is hashed."""
    kind = type(x)
    if kind in _concrete:
        return x.aval, x.sharding
    if kind in _PLAIN:
        return kind, x
    if isinstance(x, tuple):
        return kind, tuple(map(_signature, x))
    if is_array(x):
        if isinstance(x, jax.Array) and not is_traced(x):
            _concrete.add(kind)
        return x.shape, x.dtype, platform(x)
    return type(x), x
