"""What a forget gate's gradient may be off by where it is formed from running sums of terms that cancel.

Two right ways to form it do so. The parallel form under automatic differentiation takes its weights from differences
of cumulative sums, ``D_tj = B_t − B_j + i_j`` with ``B = cumsum(log σ(f))``; f_s enters B_t for all t ≥ s, so that

    df_s = σ(−f_s) Σ_{t≥s} (Σ_{j≤t} dD_tj − Σ_{u≥t} dD_ut)

and every entry behind step s is added once and subtracted once. The closed form sums the same two, over channels:

    df_s = σ(−f_s) (Σ_{t≥s} (q_t·dq_t − k_t·dk_t) + ⟨C_T, dC_T⟩ + ⟨n_T, dn_T⟩ + what the final m adds)

The exact gradient may be 0, before the first write or across a hard reset, where these terms are not. Their magnitudes
are those that `oracle._magnitudes` states of dq and dk, times q and k: no sum over the channels or the steps has been
taken there, so they bound Σ|dD_tj| over rows and columns too.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.budget import Expected, Precision
from conformance.oracle import _fwbw
from conformance.oracle._common import Values, without_warnings
from conformance.oracle._magnitudes import magnitudes_of
from conformance.oracle._mlstm import with_state
from conformance.running_sums import RunningSums


def with_running_sums(
    expected: Expected, arrays: Values, options: Mapping[str, Any], cotangents: Values, precision: Precision
) -> Expected:
    """Gradients of a dense call of `mlstm`, their tolerance of f widened where ``precision`` is `RunningSums`."""
    if not isinstance(precision, RunningSums):
        return expected
    return _widened(expected, roundoff(arrays, cotangents, precision, eps=options.get("eps", 0.0)))


def fwbw_gradient(arrays: Values, config: Mapping[str, Any], cotangents: Values, precision: Precision) -> Expected:
    """Gradients of the fwbw functions, with the same."""
    expected = _fwbw.fwbw_gradient(arrays, config, cotangents, precision)
    if not isinstance(precision, RunningSums):
        return expected
    full = _fwbw._zero_cotangents(arrays, cotangents)
    headed, dheaded = ({name: _fwbw._add_head(name, x) for name, x in of.items()} for of in (arrays, full))
    return _widened(expected, roundoff(headed, dheaded, precision, floor_is_one=not config.get("stabilize_correctly")))


@without_warnings
def roundoff(
    arrays: Values, cotangents: Values, precision: Precision, *, eps: float = 0.0, floor_is_one: bool = False
) -> np.ndarray:
    """The roundoff of such sums at each forget gate of a dense call, ``(B, S, N)``."""
    arrays = with_state(arrays)
    found = magnitudes_of(arrays, eps, cotangents, floor_is_one)
    of, drift = found.gradients, found.gradient_drift
    terms, drifts = np.zeros(arrays["i"].shape), np.zeros(arrays["i"].shape)
    for name in "qk":
        size = np.abs(arrays[name])
        terms = terms + (size * of[name]).sum(axis=-1)
        drifts = np.hypot(drifts, np.hypot.reduce(size * drift[name], axis=-1))
    final = of["g"] + np.abs(cotangents["m"])
    sums = precision.cancellation * (_later(np.add, terms) + final[:, None])
    sums = sums + precision.drift * np.hypot(_later(np.hypot, drifts), drift["g"][:, None])
    return np.where(np.isfinite(sums), sums, 0.0) * of["gate"]


def _widened(expected: Expected, of_f: np.ndarray) -> Expected:
    own = expected.slack["f"]
    return replace(expected, slack={**expected.slack, "f": own + of_f.reshape(own.shape)})


def _later(add: np.ufunc, x: np.ndarray) -> np.ndarray:
    """``Σ_{t≥s} x_t``, or the root of the sum of squares where ``add`` is `numpy.hypot`."""
    return np.flip(add.accumulate(np.flip(x, 1), axis=1), 1)
