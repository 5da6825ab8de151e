"""States that an operation returns in units of exp of another one, and their comparison in the same units."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from conformance.base.dtypes import Array
from conformance.oracle._mlstm import rescaled

LOG_SCALE = {"C": "m", "n": "m"}
"""By state: the state that is the logarithm of its unit. It stands for itself times exp of that."""


def in_units_of(scale: np.ndarray, name: str, results: Mapping[str, Array]) -> Array:
    """A scaled state among the results of a call, in units of exp(scale); unchanged if the shapes do not fit."""
    part, own = results[name], results[LOG_SCALE[name]]
    if own.shape != scale.shape or part.shape[: scale.ndim] != scale.shape:
        return part
    return replace(part, values=rescaled(part.values, own.values, scale))


def in_expected_units(name: str, results: Mapping[str, Array], expected: Mapping[str, np.ndarray]) -> Array:
    """A result of a call; a scaled state in the units of the expected one."""
    scale = LOG_SCALE.get(name)
    if scale is None or scale not in results or scale not in expected:
        return results[name]
    return in_units_of(expected[scale], name, results)
