"""A cache for the checks and decisions before a call, so that similar calls pay for them only once."""

from collections.abc import Callable
from typing import Any

import jax

from jax_impl._arrays import is_array, is_symbolic, is_traced, platform, setting

LARGEST_CACHE = 4096
"""Maximum number of entries; a full cache is emptied."""


def cached_by_signature(decide: Callable[..., Any]) -> Callable[..., Any]:
    """Cache ``decide(*arguments)`` by the kinds, shapes, dtypes, devices and plain values of the arguments.

    Exceptions are not cached, and neither are calls with arguments that cannot be hashed.

    Args:
        decide: must not return None and must not read the values of an array.
    """
    decisions: dict[Any, Any] = {}

    def cached(*arguments: Any) -> Any:
        try:
            # Arrays and plain values are handled inline, because this runs at every call of an operation.
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
"""Classes of concrete arrays seen so far: calling `isinstance` for every argument is a third of a call's overhead."""


def _signature(x: Any) -> Any:
    """The part of an argument that a decision may depend on; hashing it raises TypeError if it is not hashable."""
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
        if is_symbolic(*x.shape):
            # Sizes of two exported programs cannot even be compared.
            raise TypeError("a symbolic shape is not cached")
        return kind, x.shape, x.dtype, platform(x)
    return type(x), x
