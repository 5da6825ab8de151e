"""The extra tolerance of an mLSTM's gradients for targets that may compute them in any correct way."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from conformance.oracle import _fwbw
from conformance.oracle._common import Values, without_warnings
from conformance.oracle._flushed import flushed
from conformance.oracle._gate_sums import roundoff_of_sums
from conformance.oracle._magnitudes import magnitudes_of
from conformance.oracle._mlstm import with_state
from conformance.tolerance.budget import Expected, Precision
from conformance.tolerance.designs import AnyDesign


@without_warnings
def widened(
    expected: Expected,
    arrays: Values,
    cotangents: Values,
    precision: Precision,
    *,
    eps: float = 0.0,
    floor_is_one: bool = False,
) -> Expected:
    """The gradients of a dense call of `mlstm`, with their tolerance widened if ``precision`` is `AnyDesign`."""
    if not isinstance(precision, AnyDesign):
        return expected
    arrays = with_state(arrays)
    found = magnitudes_of(arrays, eps, cotangents, floor_is_one)
    more = flushed(arrays, cotangents, found, eps, precision)
    more["f"] = more["f"] + roundoff_of_sums(arrays, cotangents, found, precision)
    slack = {name: own + more[name].reshape(own.shape) for name, own in expected.slack.items()}
    return replace(expected, slack=slack)


def fwbw_gradient(arrays: Values, config: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    """Gradients of the fwbw functions, widened in the same way."""
    expected = _fwbw.fwbw_gradient(arrays, config, cotangents, precision)
    full = _fwbw._zero_cotangents(arrays, cotangents)
    headed, dheaded = ({name: _fwbw._add_head(name, x) for name, x in of.items()} for of in (arrays, full))
    return widened(expected, headed, dheaded, precision, floor_is_one=not config.get("stabilize_correctly"))
