"""Products with a small weight that are flushed to 0 while they are formed: right for a stranger, and no more is."""

import numpy as np
import pytest

from conformance import oracle
from conformance.cases import MLSTMCase
from conformance.tolerance.budget import Expected, Precision, allowed
from conformance.tolerance.designs import AnyDesign

SMALLEST = np.finfo(np.float32).tiny
FAR_BELOW = MLSTMCase(
    1, 65, 2, 5, 3, state="random", gates="large m", held=0.5, scale=0.01, cotangents="output only", seed=65535
)
"""The first half of the steps is written at i = −8 or so, and m is some 72 in the second half: weights of 1e-33."""


def gradient(case: MLSTMCase, precision: Precision, **changed: np.ndarray) -> Expected:
    arrays = {**oracle.values(case.arrays(precision.dtype)), **changed}
    return oracle.mlstm_gradient(arrays, {}, oracle.values(case.cotangent_arrays(precision.dtype)), precision)


def lost_by_the_parallel_form(case: MLSTMCase) -> np.ndarray:
    """The loss in dv where ``P_tj = (q̂_t·k_j) E_tj`` is 0 instead of less than the smallest normal number."""
    arrays = oracle.with_state(oracle.values(case.arrays("float32")))
    dh = oracle.values(case.cotangent_arrays("float32"))["h"]
    q, k, i, a = arrays["q"] / np.sqrt(case.K), arrays["k"], arrays["i"], -np.logaddexp(0.0, -arrays["f"])
    lost = np.zeros(arrays["v"].shape)
    for b, n in np.ndindex(case.B, case.N):
        m, held = arrays["m0"][b, n], arrays["n0"][b, n]
        log_weights = np.full(case.S, -np.inf)
        for t in range(case.S):
            before, m = m, max(a[b, t, n] + m, i[b, t, n])
            log_weights = log_weights + a[b, t, n]
            log_weights[t] = i[b, t, n]
            held = np.exp(a[b, t, n] + before - m) * held + np.exp(i[b, t, n] - m) * k[b, t, n]
            P = k[b, :, n] @ q[b, t, n] * np.exp(log_weights - m)
            gone = np.where(np.abs(P) < SMALLEST, P, 0.0)
            lost[b, :, n] += gone[:, None] * dh[b, t, n] / max(abs(held @ q[b, t, n]), np.exp(-min(m, 64.0)))
    return lost


def within(expected: Expected, precision: Precision) -> np.ndarray:
    return allowed(expected.values["v"], expected.slack["v"], precision, "float32")


def test_what_the_parallel_form_loses_is_allowed_and_only_to_strangers() -> None:
    own, others = Precision("float32", 65), AnyDesign("float32", 65)
    lost = np.abs(lost_by_the_parallel_form(FAR_BELOW))
    assert lost.max() == pytest.approx(1.387e-34, rel=1e-3)
    assert (lost / within(gradient(FAR_BELOW, own), own)).max() > 5
    assert 0 < (lost / within(gradient(FAR_BELOW, others), others)).max() < 0.1


@pytest.mark.parametrize("name", ["q", "k", "v", "i", "f", "C0", "n0", "m0"])
def test_it_hides_nothing_that_a_roundoff_would_not(name: str) -> None:
    for case in (FAR_BELOW, MLSTMCase(2, 33, 1, 4, 3, state="random", seed=1)):
        own, arrays = gradient(case, Precision("float32", case.S)), oracle.values(case.arrays("float32"))
        cotangents = oracle.values(case.cotangent_arrays("float32"))
        # Without the roundoff of cumulative sums, which is another matter too.
        others = oracle.widened(own, arrays, cotangents, AnyDesign("float32", case.S))
        more, largest = others.slack[name] - own.slack[name], np.abs(own.values[name]).max()
        if name != "f":  # Its running sums are a third: `test_running_sums`.
            assert more.max() < 1e-20 * largest
        assert (more >= 0).all()


def test_nothing_is_lost_of_what_a_reset_cuts_off_or_was_never_written() -> None:
    case = MLSTMCase(1, 12, 1, 4, 3, cotangents="output only", seed=3)
    arrays = oracle.values(case.arrays("float64"))
    f, i = arrays["f"].copy(), arrays["i"].copy()
    f[:, 6], i[:, 9] = -np.inf, -np.inf
    cotangents = oracle.values(case.cotangent_arrays("float64"))
    cotangents["h"][:, 6:] = 0
    arrays = {**arrays, "f": f, "i": i}
    own, others = (
        oracle.mlstm_gradient(arrays, {}, cotangents, kind("float64", 12)) for kind in (Precision, AnyDesign)
    )
    for name in "kvi":
        more = others.slack[name] - own.slack[name]
        assert (more[:, 6:] == 0).all(), name


@pytest.mark.parametrize("correctly", [True, False])
def test_a_sequence_without_steps_has_nothing_to_lose(correctly: bool) -> None:
    arrays = oracle.values(MLSTMCase(2, 0, 1, 3, 2, state="random").arrays("float32"))
    cotangents = oracle.values(MLSTMCase(2, 0, 1, 3, 2, state="random").cotangent_arrays("float32"))
    precision = AnyDesign("float32", 0)
    expected = oracle.mlstm_gradient(arrays, {}, cotangents, precision)
    wider = oracle.widened(expected, arrays, cotangents, precision, floor_is_one=not correctly)
    assert all(np.isfinite(x).all() for x in wider.slack.values())
