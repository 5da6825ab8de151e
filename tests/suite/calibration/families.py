"""Cases for a calibration, many at once: drawn from the laws' own strategies, in families of one shape.

A case has a shape (sizes, packing, which arguments there are) and contents (gates, magnitudes, cotangents, seed). Both
are drawn by Hypothesis as the laws draw them; cases that were drawn one after the other (`SIZES`) then take the shape
of the first of them, so that they can be computed in one call. Cases without a sequence hold nothing to judge and are
drawn again.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from hypothesis import strategies as st

from conformance.cases import LONG_STEPS, Limits
from conformance.judge.draws import SHARES, sampled

SIZES = {"small": 40, "chunk": 80, "long": 100}
CONTENTS = ("gates", "held", "scale", "cotangents", "seed", "values")


@dataclass(frozen=True)
class Family:
    """Cases of one shape in one dtype."""

    dtype: str
    stratum: str
    cases: tuple[Any, ...]


def shaped(case: Any, like: Any) -> Any:
    """``case`` in the shape of another: every field but the contents."""
    if hasattr(case, "inner"):
        return replace(like, inner=shaped(case.inner, like.inner))
    return replace(like, **{f.name: getattr(case, f.name) for f in fields(case) if f.name in CONTENTS})


def _holds(case: Any) -> bool:
    inner = getattr(case, "inner", case)
    lead = getattr(inner, "lead", None)
    if lead is not None:
        return 0 not in lead
    return inner.B > 0


def families(
    strategy: Callable[[Limits], st.SearchStrategy],
    name: str,
    strata: tuple[str, ...],
    dtypes: tuple[str, ...],
    count: int,
    seed: int,
    eager: bool = True,
) -> Iterator[Family]:
    """``count`` cases, spread over dtypes and strata.

    Args:
        name: tells this strategy's draws from another's.
        eager: whether shapes are drawn freely. Otherwise they come from the short tables for compiled targets, and
            all families of a stratum have the same number of cases, at least ``count`` together.
    """
    total = sum(SHARES[stratum] for stratum in strata)
    for dtype in dtypes:
        for stratum in strata:
            wanted = max(1, round(count * SHARES[stratum] / total / len(dtypes)))
            if not eager:
                wanted += -wanted % SIZES[stratum]
            limits = Limits(stratum, eager, dtype, LONG_STEPS)
            key = zlib.crc32(f"{seed}/calibrate/{name}/{stratum}/{dtype}".encode())
            cases = sampled(strategy(limits).filter(_holds), key, wanted)
            while len(cases) < wanted:
                key += 1
                cases += sampled(strategy(limits).filter(_holds), key, wanted - len(cases))
            for start in range(0, wanted, SIZES[stratum]):
                part = cases[start : min(start + SIZES[stratum], wanted)]
                yield Family(dtype, stratum, tuple(shaped(case, part[0]) for case in part))
