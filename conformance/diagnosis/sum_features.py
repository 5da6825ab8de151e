"""Features of calls of the scans and the decay matrices."""

from dataclasses import replace

from conformance.cases import SumCase
from conformance.diagnosis.features import Feature

SHARED = (
    Feature(
        name="S = 0",
        promise="S > 0",
        sentence="there are no steps",
        phrase="where there are no steps (S = 0)",
        present=lambda case: case.S == 0,
        without=lambda case: replace(case, S=3),
        added=lambda case: replace(case, S=0),
    ),
    Feature(
        name="no rows",
        sentence="a leading axis is 0",
        phrase="where a leading axis is 0",
        present=lambda case: 0 in case.lead,
        without=lambda case: replace(case, lead=tuple(n or 1 for n in case.lead)),
        added=lambda case: replace(case, lead=(0,)),
    ),
    Feature(
        name="leading axes",
        sentence="there are axes before that of the steps",
        phrase="where there are leading axes",
        present=lambda case: bool(case.lead),
        without=lambda case: replace(case, lead=()),
        added=lambda case: replace(case, lead=(2, 3)),
    ),
    Feature(
        name="several steps",
        promise="S <= 1",
        sentence="there is more than one step",
        phrase="where there is more than one step",
        present=lambda case: case.S > 1,
        without=lambda case: replace(case, S=min(case.S, 1)),
        added=lambda case: replace(case, S=max(case.S, 2)),
    ),
    Feature(
        name="S above 64",
        promise="S <= 64",
        sentence="there are more than 64 steps",
        phrase="where S is above 64",
        present=lambda case: case.S > 64,
        without=lambda case: replace(case, S=case.S % 64 or 64),
        added=lambda case: replace(case, S=97),
    ),
    Feature(
        name="scaled values",
        sentence="values differ by orders of magnitude",
        phrase="where values differ by orders of magnitude",
        present=lambda case: case.values in ("wide", "small"),
        without=lambda case: replace(case, values="ordinary"),
        added=lambda case: replace(case, values="wide"),
    ),
    Feature(
        name="layout",
        sentence="arrays are not contiguous in memory",
        phrase="where arrays are not contiguous in memory",
        present=lambda case: case.layout != "contiguous",
        without=lambda case: replace(case, layout="contiguous"),
        added=lambda case: replace(case, layout="strided"),
    ),
)

SCANS = SHARED

DECAY = (
    *SHARED,
    Feature(
        name="infinite gates",
        promise="f finite",
        sentence="some gate is −∞ or +∞",
        phrase="where a gate is infinite",
        present=lambda case: case.values in ("resets", "extreme"),
        without=lambda case: replace(case, values="ordinary"),
        added=lambda case: replace(case, values="resets"),
    ),
)


def plain_sum(seed: int) -> SumCase:
    """The plainest call: one row of 16 ordinary values."""
    return SumCase((), 16, seed=seed)
