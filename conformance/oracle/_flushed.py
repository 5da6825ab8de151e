"""The loss in an mLSTM's gradients when products with a small weight are below the smallest normal number.

Every gradient of an mLSTM is a sum of products whose last factor is a weight ``E_tj = exp(−Λ)``, of step j at step t:

    dv_j = Σ_{t≥j} (q̂_t·k_j) E_tj δ_t,    δ_t = dh_t / Y_t    (and dC_T in place of q̂ δᵀ at the end)

The factors may be multiplied in any order. The parallel form starts with P_tj = (q̂_t·k_j) E_tj and divides by Y_t
last; the recurrent form first computes k_j v_jᵀ E_tj. A product below τ, the smallest normal number, is flushed to 0 by
XLA and by GPUs (and has lost digits elsewhere), so it is off by up to τ. It is then multiplied by the remaining
factors, so that the term is off by no more than

    τ · Π max(1, |factor|)

If all weights of a step are small (written with i = −5 into a memory whose m becomes 72), dv_j is no larger than that:
the exact value is −7.8107e-34, but the parallel form in float32 gives −6.4237e-34. There 1/Y is about 4e4, and values
of P of 1.2e-39 and less are flushed, in terms that add up to −1.3870e-34. Sums with a term of weight 1, such as h and
C, are not affected: their loss is far below their rounding.
"""

import numpy as np

from conformance.base.dtypes import SMALLEST, accumulation
from conformance.oracle._common import Values
from conformance.oracle._magnitudes import Magnitudes
from conformance.tolerance.budget import NEAR_FLOOR, Precision


def flushed(arrays: Values, cotangents: Values, found: Magnitudes, eps: float, precision: Precision) -> Values:
    """The possible loss in each gradient of a dense call.

    Args:
        arrays: arrays as returned by `with_state`.
        cotangents: the cotangents of the call.
        found: the magnitudes of the call.
        eps: added to the normaliser.
        precision: the dtypes of the computation.
    """
    smallest = SMALLEST["float64" if precision.upcasts else accumulation(precision.dtype)]
    lost = _products(arrays, cotangents, found, eps)
    return {name: smallest * np.where(np.isfinite(x), x, 0.0) for name, x in lost.items()}


def _products(arrays: Values, cotangents: Values, found: Magnitudes, eps: float) -> Values:
    """``Σ Π max(1, |factor|)`` over the terms of each gradient; a term without a weight (−∞) does not count."""
    steps = {name: np.moveaxis(arrays[name], 1, 0) for name in "qkvif"}
    S, K = len(steps["i"]), arrays["q"].shape[-1]
    q, k = _at_least_one(steps["q"] / np.sqrt(K)), _at_least_one(steps["k"])
    v = _at_least_one(_beside(steps["v"], 1.0))
    delta = _at_least_one(np.moveaxis(_of_reads(cotangents, found, eps), 1, 0))
    writes = np.isfinite(steps["i"])[..., None]
    carries = ~np.isneginf(steps["f"])[..., None, None]
    begins = np.isfinite(arrays["m0"])[..., None]
    held = np.zeros((S + 1, *arrays["C0"].shape[:-1], v.shape[-1]))
    held[0] = begins[..., None] * _at_least_one(_joined(arrays["C0"], arrays["n0"]))
    for t in range(S):
        held[t + 1] = carries[t] * held[t] + (writes[t] * k[t])[..., None] * v[t][..., None, :]
    read, carried = np.zeros(held[1:].shape), np.zeros(held[1:].shape)
    d = _at_least_one(_joined(cotangents["C"], cotangents["n"]))
    for t in reversed(range(S)):
        read[t] = d + q[t][..., None] * delta[t][..., None, :]
        carried[t] = d = carries[t] * read[t]
    dk = writes * np.einsum("tbnkv,tbnv->tbnk", read, v)
    of_steps = {
        "q": np.einsum("tbnkv,tbnv->tbnk", held[1:], delta) / np.sqrt(K),
        "k": dk,
        "v": writes * np.einsum("tbnkv,tbnk->tbnv", read[..., :-1], k),
        "i": np.einsum("tbnk,tbnk->tbn", k, dk),
    }
    lost = {name: np.moveaxis(x, 0, 1) for name, x in of_steps.items()}
    lost["f"] = np.moveaxis(np.einsum("tbnkv,tbnkv->tbn", held[:-1], carried), 0, 1) * found.gradients["gate"]
    lost |= {"C0": begins[..., None] * d[..., :-1], "n0": begins * d[..., -1]}
    lost["m0"] = np.einsum("bnkv,bnkv->bn", held[0], d)
    return lost


def _of_reads(cotangents: Values, found: Magnitudes, eps: float) -> np.ndarray:
    """Cotangents of the results of each read, with that of n·q̂ in the last column, ``(B, S, N, V+1)``."""
    nu, floor = found.nu[:2]
    delta = np.abs(cotangents["h"]) / (np.maximum(nu, floor) + eps)[..., None]
    of_nu = np.where(nu >= floor * (1 - NEAR_FLOOR), (delta * found.outputs["h"]).sum(axis=-1), 0.0)
    return _joined(delta, of_nu)


def _at_least_one(x: np.ndarray) -> np.ndarray:
    """``max(1, |x|)``; 0 where x is 0, because a product with 0 is exact."""
    return np.where(x == 0, 0.0, np.maximum(1.0, np.abs(x)))


def _joined(x: np.ndarray, column: np.ndarray) -> np.ndarray:
    return np.concatenate([x, column[..., None]], axis=-1)


def _beside(x: np.ndarray, column: float) -> np.ndarray:
    return _joined(x, np.full(x.shape[:-1], column))
