"""The rounding of a memory of the sLSTM that is held for many steps."""

import numpy as np

from conformance.oracle._slstm_rounding import Rounding

COPIES, STEPS, UNIT = 64, 400, 2.0**-24


def off_by(carries: bool) -> np.ndarray:
    """Errors of the copies of a memory of 1 after `STEPS` products, in roundoffs."""
    r = Rounding(COPIES, 4, UNIT, 0.0, seed=0)
    x = np.ones((1, COPIES, 1, 4))
    for _ in range(STEPS):
        x = r.held("c", x, np.full(x.shape, carries))
    return np.abs(x[0] - 1) / UNIT


def test_products_of_a_held_memory_are_off_in_one_direction() -> None:
    """A right computation in float32: its error is half a roundoff a step and not that of a random walk."""
    c, kept = np.float32(1.3), np.float32(1 - UNIT)
    for _ in range(STEPS):
        c = c * kept
    exact = np.float64(np.float32(1.3)) * np.float64(kept) ** STEPS
    assert 0.4 * STEPS < abs(c - exact) / exact / UNIT < off_by(carries=True)[: COPIES // 2].min()


def test_half_of_the_copies_err_in_one_direction_while_m_is_carried() -> None:
    held, written = off_by(carries=True), off_by(carries=False)
    assert (np.abs(held[: COPIES // 2] - STEPS) < 1).all()
    assert held[COPIES // 2 :].max() < 6 * STEPS**0.5 and written.max() < 6 * STEPS**0.5
