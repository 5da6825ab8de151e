"""Terms of the mLSTM's gradient that reach the gates through the stabiliser m and cancel.

h does not depend on m, so the paths through m contribute exactly 0 to its gradient. Automatic differentiation of the
definition computes them nevertheless. With ``x_t = a_t + m_{t−1} − m_t``, ``y_t = i_t − m_t`` and H for C together with
n, it sums the cotangents

    dx_t = exp(x_t) ⟨H_{t−1}, dH_t⟩        dy_t = exp(y_t) ⟨k_t (v_t, 1)ᵀ, dH_t⟩
    dm_t = dx_{t+1} + [carried at t+1] dm_{t+1} − dx_t − dy_t + (path through the normaliser's floor)

and passes ``dm_t`` on to whatever attained m_t: to a_t and m_{t−1} if the memory was carried, else to i_t. The exact
sum is 0 (except for the cotangent of the final m). The computed sum consists of roundings that are independent from
step to step; their squares add up along the steps at which m was carried. It is 0 only if each of these terms is 0.
"""

from dataclasses import dataclass

import numpy as np

NEAR_TIE = 1e-3
"""Relative difference of two candidates for m below which either may attain it in a rounded computation.

A value larger than rounding requires costs nothing: it only lets the *rounding* of these terms pass at both candidates.
"""


@dataclass(frozen=True)
class StabiliserPaths:
    """The sums of the paths through m that reach each gate, ``(S, B, N)``; those that reach m0, ``(B, N)``.

    Attributes:
        log_forget: sums that reach log σ(f).
        write: sums that reach i.
        m0: sums that reach the initial stabiliser.
    """

    log_forget: np.ndarray
    write: np.ndarray
    m0: np.ndarray


def candidates_for_m(a: np.ndarray, i: np.ndarray, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For every step, whether the carried stabiliser may attain m, and whether the write may.

    Args:
        a, i: log forget gates and input gates, ``(S, B, N)``.
        m: all stabilisers, the initial one first, ``(S+1, B, N)``.
    """
    carried = a + m[:-1]
    size = np.maximum(1.0, np.maximum(np.abs(carried), np.abs(i)))
    near = np.isfinite(size) & (np.abs(carried - i) <= NEAR_TIE * size)
    return (carried >= i) | near, (i >= carried) | near


def stabiliser_paths(
    terms: np.ndarray, final: np.ndarray, may_carry: np.ndarray, may_write: np.ndarray
) -> StabiliserPaths:
    """The root of the sum of squares of the terms that are added to dm and passed on, step by step from the last.

    Args:
        terms: Σ|terms| that each step adds to dm_t, ``(S, B, N)``.
        final: |cotangent of the final m|, ``(B, N)``.
        may_carry, may_write: the results of `candidates_for_m`.
    """
    terms = np.where(np.isfinite(terms), terms, 0.0)
    log_forget, write = np.zeros(terms.shape), np.zeros(terms.shape)
    arriving = np.abs(final)
    for t in reversed(range(len(terms))):
        of_m = np.hypot(arriving, terms[t])
        write[t] = np.where(may_write[t], of_m, 0.0)
        arriving = log_forget[t] = np.where(may_carry[t], of_m, 0.0)
    return StabiliserPaths(log_forget, write, arriving)
