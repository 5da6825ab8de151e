"""σ in a step that is stated, where 1 − σ(x) may also be σ(−x), which has a slope of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from conformance.specification import traced
from conformance.specification.traced import Node, Traced

_complements: ContextVar[list[Any] | None] = ContextVar("complements", default=None)


@contextmanager
def complements_apart() -> Iterator[list[Any]]:
    """On a tape, 1 − σ(x) is σ(−x) in this context; yields the list of x of which there is one."""
    found: list[Any] = []
    token = _complements.set(found)
    try:
        yield found
    finally:
        _complements.reset(token)


def sigmoid(x: Any) -> Any:
    """``σ(x)`` of any array, with the slope ``a·(1 − a)`` on the tape (`traced.sigmoid`)."""
    a, found = traced.sigmoid(x), _complements.get()
    return a if found is None or not isinstance(a, Traced) else _Sigmoid(a.value, a.node, x, found)


class _Sigmoid(Traced):
    """σ(x), which knows x as long as it is not written to."""

    __slots__ = ("found", "own", "x")

    def __init__(self, value: Any, node: Node, x: Any, found: list[Any]):
        super().__init__(value, node)
        self.own, self.x, self.found = node, x, found

    def __array_ufunc__(self, ufunc: Any, method: str, *xs: Any, **more: Any) -> Any:
        if ufunc is np.subtract and method == "__call__" and not more and xs[1] is self and self.node is self.own:
            if np.ndim(xs[0]) == 0 and not isinstance(xs[0], Traced) and xs[0] == 1:
                self.found.append(self.x)
                return traced.sigmoid(-self.x)
        return super().__array_ufunc__(ufunc, method, *xs, **more)
