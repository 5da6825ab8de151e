"""Fields of a case that do not affect shapes, for recurrences with a memory and gates: the mLSTM and the sLSTM."""

from typing import Any

from hypothesis import strategies as st

from conformance.cases._case import COTANGENTS, SEEDS, Limits
from conformance.cases._gates import GATES

_HELD = {"small": (0.0, 1.0, 0.0, 0.5), "chunk": (0.3, 0.5, 0.2, 0.7), "long": (0.3, 0.5)}
_PINS: dict[str, dict[str, Any]] = {
    "well-conditioned": {"gates": "ordinary", "scale": 1.0, "cotangents": "dense"},
    "small magnitude": {"gates": "small", "scale": 0.01, "cotangents": "dense"},
    # Gates that keep a memory matter only if there is one.
    "held": {"gates": "ordinary", "held": 1.0, "scale": 1.0, "cotangents": "dense", "state": "random"},
}


@st.composite
def dynamic(draw: Any, limits: Limits, state: bool, quick: tuple[str, ...], largest: float) -> dict[str, Any]:
    """Draw these fields.

    Args:
        state: whether an initial state is given.
        quick: regimes of the gates for a quick run.
        largest: the largest scale.
    """
    long = limits.stratum == "long"
    states = ("random",) if limits.pin or long else ("random", "random", "random", "empty")
    regimes = ("changing", "resets", "mixed") if long else quick if limits.quick else GATES
    fields = {
        "state": draw(st.sampled_from(states)) if state else "none",
        "gates": draw(st.sampled_from(regimes)),
        "held": draw(st.sampled_from(_HELD[limits.stratum])),
        "scale": draw(st.sampled_from((1.0, 1.0, 0.01, largest))),
        "cotangents": draw(st.sampled_from(COTANGENTS)),
        "layout": draw(st.sampled_from(limits.layouts)),
        "seed": draw(SEEDS),
    }
    return {**fields, **_PINS.get(limits.pin, {})}
