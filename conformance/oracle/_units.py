"""The results of an mLSTM in the units of another stabiliser."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from conformance.base.dtypes import Array
from conformance.oracle._mlstm import rescaled


def in_units_of(m: np.ndarray, name: str, results: Mapping[str, Array]) -> Array:
    """C or n among the results of a call, ``part·exp(its own m − m)``; unchanged if the shapes do not fit."""
    part, own = results[name], results["m"]
    if own.shape != m.shape or part.shape[: m.ndim] != m.shape:
        return part
    return replace(part, values=rescaled(part.values, own.values, m))
