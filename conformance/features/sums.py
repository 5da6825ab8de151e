"""Features of calls of the scans and the decay matrices."""

from dataclasses import replace

from conformance.cases import SumCase
from conformance.features.calls import (
    LAYOUT,
    NO_STEPS,
    SCALED_COTANGENTS,
    SEVERAL_STEPS,
    not_multiple,
    several_blocks,
)
from conformance.features.feature import Feature, of_field

SHARED = (
    NO_STEPS,
    Feature(
        name="no rows",
        sentence="a leading axis is 0",
        present=lambda case: 0 in case.lead,
        without=lambda case: replace(case, lead=tuple(n or 1 for n in case.lead)),
        added=lambda case: replace(case, lead=(0,)),
    ),
    of_field(
        "lead",
        (),
        (2, 3),
        name="leading axes",
        sentence="there are axes before that of the steps",
        phrase="where there are leading axes",
    ),
    SEVERAL_STEPS,
    not_multiple(4, "S not a multiple of 16"),
    not_multiple(16),
    several_blocks("S above 64", "there are more than 64 steps", "where S is above 64", lambda case: 64),
    Feature(
        name="scaled values",
        sentence="values differ by orders of magnitude",
        present=lambda case: case.values in ("wide", "small"),
        without=lambda case: replace(case, values="ordinary"),
        added=lambda case: replace(case, values="wide"),
    ),
    SCALED_COTANGENTS,
    replace(LAYOUT, added=lambda case: replace(case, layout="strided")),
)

SCANS = SHARED

DECAY = (
    *SHARED,
    Feature(
        name="infinite gates",
        sentence="some gate is −∞ or +∞",
        phrase="where a gate is infinite",
        present=lambda case: case.values in ("resets", "extreme"),
        without=lambda case: replace(case, values="ordinary"),
        added=lambda case: replace(case, values="resets"),
        of_values=True,
    ),
)

DTILDE = (
    *DECAY,
    of_field(
        "masked_cotangents",
        False,
        True,
        name="cotangents of masked elements",
        contract=True,
        sentence="elements of D̃ that are −∞ have cotangents",
    ),
)


def plain_sum(seed: int) -> SumCase:
    """The plainest call: one row of 16 ordinary values."""
    return SumCase((), 16, seed=seed)


def plain_dtilde(seed: int) -> SumCase:
    """The same for D̃, without cotangents of elements that are −∞."""
    return replace(plain_sum(seed), masked_cotangents=False)
