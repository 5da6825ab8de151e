"""Helpers shared by the oracles of all operations."""

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from conformance.base.dtypes import Array
from conformance.tolerance.budget import Expected

Values = dict[str, np.ndarray]

_computed: OrderedDict[Hashable, Expected] = OrderedDict()


def remember(key: Hashable, make: Callable[[], Expected], most: int = 256) -> Expected:
    """``make()``, computed once per key, because value and gradient laws and several targets draw the same cases."""
    if key in _computed:
        _computed.move_to_end(key)
        return _computed[key]
    expected = _computed[key] = make()
    while len(_computed) > most:
        _computed.popitem(last=False)
    return expected


def values(arrays: Mapping[str, Array]) -> Values:
    return {name: array.values for name, array in arrays.items()}


def without_warnings(function: Callable) -> Callable:
    @functools.wraps(function)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return quiet
