"""The error of a forget gate's gradient when it is computed from running sums of terms that cancel.

Two correct ways to compute it do so. The parallel form under automatic differentiation takes its weights from
differences of cumulative sums, ``D_tj = B_t − B_j + i_j`` with ``B = cumsum(log σ(f))``. f_s enters B_t for all t ≥ s,
so that

    df_s = σ(−f_s) Σ_{t≥s} (Σ_{j≤t} dD_tj − Σ_{u≥t} dD_ut)

and every entry after step s is added once and subtracted once. The closed form sums the same two parts, over channels:

    df_s = σ(−f_s) (Σ_{t≥s} (q_t·dq_t − k_t·dk_t) + ⟨C_T, dC_T⟩ + ⟨n_T, dn_T⟩ + what the final m adds)

The exact gradient may be 0, before the first write or across a hard reset, where these terms are not 0. Their
magnitudes are those that `oracle._magnitudes` gives for dq and dk, times q and k. These have not been summed over the
channels or the steps, so they also bound Σ|dD_tj| over rows and columns.
"""

import numpy as np

from conformance.oracle._common import Values
from conformance.oracle._magnitudes import Magnitudes
from conformance.tolerance.budget import Precision


def roundoff_of_sums(arrays: Values, cotangents: Values, found: Magnitudes, precision: Precision) -> np.ndarray:
    """The roundoff of such sums for each forget gate of a dense call, ``(B, S, N)``."""
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


def _later(add: np.ufunc, x: np.ndarray) -> np.ndarray:
    """``Σ_{t≥s} x_t``, or the root of the sum of squares if ``add`` is `numpy.hypot`."""
    return np.flip(add.accumulate(np.flip(x, 1), axis=1), 1)
