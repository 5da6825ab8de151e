"""Simple elements instead of drawn ones, for a counterexample that can be read and computed by hand.

The values of a case's arrays come from a regime and a seed, which have no simpler neighbours that a search could shrink
them to. A case can instead request that its elements are replaced after they are drawn; its shapes, infinities and
zeros are kept.
"""

from dataclasses import replace
from typing import Any

import numpy as np

AS_DRAWN = "as drawn"
SIMPLE = ("ones", "signs", "whole numbers")
"""The kinds of simple elements, the simplest first: 1, ±1, the nearest whole number."""


def replaced(x: np.ndarray, elements: str) -> np.ndarray:
    """The array with its finite elements other than 0 replaced by a kind of `SIMPLE`; unchanged for drawn elements."""
    if elements == AS_DRAWN:
        return x
    if elements == "whole numbers":
        return np.rint(x)
    return np.where(np.isfinite(x) & (x != 0), 1.0 if elements == "ones" else np.sign(x), x)


def simplicity(case: Any) -> int:
    """The position of a case's elements in `SIMPLE`, lower if simpler; drawn elements come after all of them."""
    elements = getattr(getattr(case, "inner", case), "elements", AS_DRAWN)
    return (*SIMPLE, AS_DRAWN).index(elements)


def simpler(case: Any) -> list[Any]:
    """The case with each kind of simple elements, the simplest first; none if its class does not have them."""
    if hasattr(case, "inner"):
        return [replace(case, inner=inner) for inner in simpler(case.inner)]
    return [replace(case, elements=elements) for elements in SIMPLE] if hasattr(case, "elements") else []


def as_drawn(case: Any) -> Any:
    """The case with its elements as they are drawn."""
    if hasattr(case, "inner"):
        return replace(case, inner=as_drawn(case.inner))
    return replace(case, elements=AS_DRAWN) if hasattr(case, "elements") else case
