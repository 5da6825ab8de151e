"""Decay matrices: how much of what step j wrote is left when step t reads.

Source: Beck et al., xLSTM, arXiv:2405.04517, appendix A (the matrices F and D̃ of the mLSTM's parallel form).
"""

import numpy as np

from reference._arrays import NUMPY, float64
from reference._gates import log_sigmoid, sigmoid
from reference.arguments import check_dtilde_matrix, check_scan


def causal_forget_matrix(forget_gates: np.ndarray) -> np.ndarray:
    """Log decay between every two steps: ``F[t,j] = Σ_{j<s≤t} a_s`` for t ≥ j, 0 on the diagonal, −∞ above it.

    Each column is a running sum of its own, never a difference of two: an ``a_s = −∞`` (a hard reset) is legal, and
    nothing cancels.

    Args:
        forget_gates: log gates a, ``(..., S)``, in [−∞, 0] where they come from a sigmoid.

    Returns:
        F, ``(..., S, S)``, float64.

    Raises:
        TypeError: `forget_gates` is no floating array.
        ValueError: `forget_gates` has no axis.
    """
    check_scan(NUMPY, forget_gates, "causal_forget_matrix", "forget_gates")
    a = float64(forget_gates)
    S = a.shape[-1]
    F = np.full((*a.shape, S), -np.inf)
    for j in range(S):
        F[..., j, j] = 0.0
        F[..., j + 1 :, j] = np.cumsum(a[..., j + 1 :], axis=-1)
    return F


def causal_forget_matrix_backward(forget_gates: np.ndarray, *, dF: np.ndarray) -> dict[str, np.ndarray]:
    """Gradient of `causal_forget_matrix`: ``da_s = Σ_{t≥s} Σ_{j<s} dF[t,j]``; the masked part of dF has no effect."""
    da = np.zeros(forget_gates.shape)
    dF = np.tril(float64(dF), -1)
    for s in range(1, forget_gates.shape[-1]):
        da[..., s] = dF[..., s:, :s].sum(axis=(-2, -1))
    return {"forget_gates": da}


def dtilde_matrix(igate: np.ndarray, fgate: np.ndarray) -> np.ndarray:
    """Log weight of what step j wrote, as step t reads it: ``D̃[t,j] = Σ_{j<s≤t} log σ(fgate_s) + igate_j``.

    Args:
        igate: input gate preactivations, ``(..., S, 1)``.
        fgate: forget gate preactivations, ``(..., S, 1)``.

    Returns:
        D̃, ``(..., S, S)``, float64, −∞ above the diagonal.

    Raises:
        TypeError: an argument is no floating array, or their dtypes differ.
        ValueError: the shapes differ or do not end in 1.
    """
    check_dtilde_matrix(NUMPY, igate, fgate)
    F = causal_forget_matrix(log_sigmoid(float64(fgate)[..., 0]))
    i_j = float64(igate)[..., None, :, 0]
    return np.where(np.isneginf(F), -np.inf, F + i_j)


def dtilde_matrix_backward(igate: np.ndarray, fgate: np.ndarray, *, dD: np.ndarray) -> dict[str, np.ndarray]:
    """Gradient of `dtilde_matrix` by the rule of its own that the contract gives it.

    ``digate_j = Σ_t dD[t,j]`` over *all* rows t, the masked ones too, so that the gradient of ``D̃.sum()`` is S for
    every input gate; ``dfgate_s = σ(−fgate_s) Σ_{t≥s} Σ_{j<s} dD[t,j]``, in which the masked ones have no part.
    """
    da = causal_forget_matrix_backward(fgate[..., 0], dF=dD)["forget_gates"]
    return {
        "igate": float64(dD).sum(axis=-2)[..., None],
        "fgate": sigmoid(-float64(fgate)) * da[..., None],
    }
