"""The mLSTM's oracle for dense and packed calls; a packed call is computed sequence by sequence."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.oracle import _mlstm
from conformance.oracle._any_design import widened
from conformance.oracle._common import Values
from conformance.oracle._weight_sums import widened_gradient, widened_value
from conformance.tolerance.budget import Expected, Precision


def mlstm(arrays: Values, options: Mapping[str, Any], precision: Precision) -> Expected:
    """Value of `mlstm`, dense or packed. States are in the units of their own m (see `rescaled`)."""
    if "cu_seqlens" not in arrays:
        return _dense_value(arrays, options, precision)
    calls = _mlstm.each_sequence(arrays, {}, _lengths(arrays))
    return _mlstm.joined([_dense_value(x, options, precision) for x, _ in calls])


def _dense_value(arrays: Values, options: Mapping[str, Any], precision: Precision) -> Expected:
    expected = _mlstm.mlstm(arrays, options, precision)
    return widened_value(expected, arrays, precision, eps=options.get("eps", 0.0))


def mlstm_gradient(arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    """Gradient of `mlstm`, dense or packed, states included."""
    if "cu_seqlens" not in arrays:
        return _dense_gradient(arrays, options, cotangents, precision)
    calls = _mlstm.each_sequence(arrays, cotangents, _lengths(arrays))
    return _mlstm.joined([_dense_gradient(x, options, dx, precision) for x, dx in calls])


def _dense_gradient(arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    arrays = _mlstm.with_state(arrays)
    # If a call does not return the final state, the cotangents of the state are zero.
    zeros = {name: np.zeros(arrays[f"{name}0"].shape) for name in "Cnm" if name not in cotangents}
    cotangents = {**cotangents, **zeros}
    expected, eps = _mlstm.mlstm_gradient(arrays, options, cotangents, precision), options.get("eps", 0.0)
    expected = widened(expected, arrays, cotangents, precision, eps=eps)
    return widened_gradient(expected, arrays, cotangents, precision, eps=eps)


def _lengths(arrays: Values) -> tuple[int, ...]:
    return tuple(np.diff(arrays["cu_seqlens"]).tolist())
