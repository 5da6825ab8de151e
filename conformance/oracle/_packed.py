"""The mLSTM's oracle for dense and packed calls; a packed call is computed sequence by sequence."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.oracle import _mlstm
from conformance.oracle._any_design import widened
from conformance.oracle._common import Values
from conformance.oracle._long import in_parts, is_large
from conformance.oracle._weight_sums import widened_gradient, widened_value
from conformance.tolerance.budget import Expected, Precision


def mlstm(arrays: Values, options: Mapping[str, Any], precision: Precision) -> Expected:
    """Value of `mlstm`, dense or packed. States are in the units of their own m (see `rescaled`)."""
    if "cu_seqlens" not in arrays:
        return _dense_value(arrays, options, precision)
    return _of_sequences(arrays, {}, lambda x, _: _dense_value(x, options, precision))


def _dense_value(arrays: Values, options: Mapping[str, Any], precision: Precision) -> Expected:
    if is_large(arrays):
        return in_parts(lambda x, _: _dense_value(x, options, precision), arrays, {})
    expected = _mlstm.mlstm(arrays, options, precision)
    return widened_value(expected, arrays, precision, eps=options.get("eps", 0.0))


def mlstm_gradient(arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    """Gradient of `mlstm`, dense or packed, states included."""
    if "cu_seqlens" not in arrays:
        return _dense_gradient(arrays, options, cotangents, precision)
    return _of_sequences(arrays, cotangents, lambda x, dx: _dense_gradient(x, options, dx, precision))


def _dense_gradient(arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    arrays = _mlstm.with_state(arrays)
    # If a call does not return the final state, the cotangents of the state are zero.
    zeros = {name: np.zeros(arrays[f"{name}0"].shape) for name in "Cnm" if name not in cotangents}
    cotangents = {**cotangents, **zeros}
    if is_large(arrays):
        return in_parts(lambda x, dx: _dense_gradient(x, options, dx, precision), arrays, cotangents)
    expected, eps = _mlstm.mlstm_gradient(arrays, options, cotangents, precision), options.get("eps", 0.0)
    expected = widened(expected, arrays, cotangents, precision, eps=eps)
    return widened_gradient(expected, arrays, cotangents, precision, eps=eps)


def _of_sequences(arrays: Values, cotangents: Values, dense: Callable[[Values, Values], Expected]) -> Expected:
    """A packed answer from the dense ones of its sequences."""
    calls = _mlstm.each_sequence(arrays, cotangents, tuple(np.diff(arrays["cu_seqlens"]).tolist()))
    if calls:
        return _mlstm.joined([dense(*call) for call in calls])
    # Without a sequence, every array but those of states is `(0, …)`, like a dense batch of none with one step.
    own = {name: x for name, x in arrays.items() if name != "cu_seqlens"}
    none = dense(*({name: x if name[0] in "Cnm" else x[:, None] for name, x in of.items()} for of in (own, cotangents)))
    values, slack = (
        {name: x if name[0] in "Cnm" else x[:, 0] for name, x in of.items()} for of in (none.values, none.slack)
    )
    return replace(none, values=values, slack=slack)
