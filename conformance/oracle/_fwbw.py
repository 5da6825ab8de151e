"""The fwbw interface: the mLSTM with one head, and with a floor of 1 unless the configuration says otherwise."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.oracle._common import Values
from conformance.oracle._mlstm import MLSTM, STATES, Definition, mlstm, mlstm_gradient
from conformance.rows.row import changes
from conformance.tolerance.budget import Expected, Precision

FLOOR_1 = changes("""
    @ mlstm _mlstm.py normaliser_floor

    a floor of 1, whatever m
    - np.exp(-np.minimum(m, LARGEST_M))
    + np.ones_like(m)
""")
HELD_AT_1 = changes("""
    @ mlstm _mlstm.py normaliser_floor

    a floor of 1, whatever m, with m a constant
    - np.exp(-np.minimum(m, LARGEST_M))
    + np.held(m)
""")
OF_FLOOR_1 = Definition(FLOOR_1, HELD_AT_1, np.ones_like)


def fwbw(arrays: Values, config: Mapping[str, Any], precision: Precision) -> Expected:
    """Value of the fwbw functions."""
    return _without_head(mlstm(_headed(arrays), {}, precision, _definition(config)))


def fwbw_gradient(arrays: Values, config: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    """Gradient of the fwbw functions, that of the initial state included."""
    expected = mlstm_gradient(_headed(arrays), {}, _headed(cotangents), precision, _definition(config))
    return _without_head(expected, {name: arrays[name].shape for name in "if"})


def _definition(config: Mapping[str, Any]) -> Definition:
    return MLSTM if config.get("stabilize_correctly") else OF_FLOOR_1


AXES = {**dict.fromkeys("qkvifh", 2), **dict.fromkeys((*"Cnm", *STATES), 1)}
"""Where the axis of heads is in a call of `mlstm`."""


def _headed(arrays: Values) -> Values:
    """The arrays of a call of `mlstm` with one head."""
    flat = {name: x.reshape(x.shape[:2]) if name in "if" else x for name, x in arrays.items()}
    return {name: np.expand_dims(x, AXES[name]) for name, x in flat.items()}


def _without_head(expected: Expected, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Expected:
    """The answer in the layout of the fwbw functions, the gates in shapes of their own."""

    def change(name: str, x: np.ndarray) -> np.ndarray:
        x = x.squeeze(AXES[name])
        return x.reshape((shapes or {}).get(name, x.shape))

    return expected.mapped(change)
