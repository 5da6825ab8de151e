"""Simple elements in place of those that were drawn, for a counterexample that can be read and computed by hand.

What a case's arrays hold comes from a regime and a seed, which have no simpler neighbours that a search could shrink
them to. A case can instead say that its elements are replaced, once they are drawn; its shapes, its infinities and its
zeros stay.
"""

from dataclasses import replace
from typing import Any

import numpy as np

AS_DRAWN = "as drawn"
SIMPLE = ("ones", "signs", "whole numbers")
"""What elements may be replaced by, the simplest first: 1, ±1, the nearest whole number."""


def replaced(x: np.ndarray, elements: str) -> np.ndarray:
    """An array with its finite elements other than 0 replaced, as one of `SIMPLE` says; the array itself as drawn."""
    if elements == AS_DRAWN:
        return x
    if elements == "whole numbers":
        return np.rint(x)
    return np.where(np.isfinite(x) & (x != 0), 1.0 if elements == "ones" else np.sign(x), x)


def simplicity(case: Any) -> int:
    """The place of a case's elements in `SIMPLE`, the lower the simpler; behind all of them as they were drawn."""
    elements = getattr(getattr(case, "inner", case), "elements", AS_DRAWN)
    return (*SIMPLE, AS_DRAWN).index(elements)


def simpler(case: Any) -> list[Any]:
    """The case with each kind of simple elements, the simplest first; none where its class does not know them."""
    if hasattr(case, "inner"):
        return [replace(case, inner=inner) for inner in simpler(case.inner)]
    return [replace(case, elements=elements) for elements in SIMPLE] if hasattr(case, "elements") else []
