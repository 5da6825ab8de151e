"""Features of calls of the moving average."""

from dataclasses import replace

from conformance.cases._ema import EMACase
from conformance.features.feature import Feature

EMA = (
    Feature(
        name="initial state",
        sentence="the call is given an initial state",
        phrase="where a call has an initial state",
        present=lambda case: case.state,
        without=lambda case: replace(case, state=False),
        added=lambda case: replace(case, state=True),
    ),
)


def plain_ema(seed: int) -> EMACase:
    """One sequence of one head, without a state."""
    return EMACase(1, 7, 1, seed=seed)
