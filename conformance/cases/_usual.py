"""The sizes that people use: the values of each, and rows of sizes in which every value occurs.

Other strata try small sizes, which shrink well and cost nothing. They cannot show a fault that begins with a size: a
tile that is dropped beyond 64 features, a grid that ends at 8 heads. The stratum ``usual`` tries every value of these
tables. A row has as many large values at once as the specification computes in a fraction of a second.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.cases._case import Limits

WORK = 600_000
"""Largest `Sizes.work` of a row, unless one value alone needs more; about 0.2 s of the oracle."""

LARGE = 1 << 24
"""Work beyond which the heads of a call are copies of two; only sizes that were asked for have so much."""

HEAD_DIMS = ((256, 256), (128, 64), (64, 128), (127, 65), (65, 127), (96, 32), (32, 96), (16, 16))
CHUNKS = (
    (512, 1031),
    (256, 600),
    (512, 511),
    (128, 300),
    (256, 255),
    (None, 200),
    (128, 127),
    (64, 130),
    (64, 63),
    (16, 40),
    (16, 17),
    (16, 15),
)
"""Chunk sizes with numbers of steps on either side of them; None is the default of the target."""
HEADS = (16, 8, 4, 2, 1)
STEPS = (257, 130, 65, 40, 5)
BATCHES = (9, 5, 2, 1)
PACKED = (33, 17, 9, 2)
"""Numbers of packed sequences, some of them empty, some of one step; the longest has S steps."""
LEADS = ((9, 16), (33,), ())
"""Leading axes of the scans and the decay matrices."""


@dataclass(frozen=True, eq=False)
class Sizes:
    """The usual sizes of an operation's calls.

    Attributes:
        values: the values of each size, the largest first; sizes whose values belong together under ``K, V``.
        work: the multiply-adds of the recurrence, given the sizes by name.
    """

    values: Mapping[str, tuple[Any, ...]]
    work: Callable[[Mapping[str, Any]], int]

    def drawn(self, limits: Limits) -> st.SearchStrategy[dict[str, Any]]:
        """The sizes of the row of the limits; without one, of any case, with small ones first.

        Sizes that the limits give replace those of the row.
        """
        given = dict(limits.sizes)
        if limits.row is not None:
            rows = rows_of(self, limits.seed)
            return st.just({**rows[limits.row], **given}) if limits.row < len(rows) else st.nothing()
        drawn = {names: st.sampled_from(values[::-1]) for names, values in self.values.items()}
        fitting = st.fixed_dictionaries(drawn).map(_apart).filter(lambda sizes: self.work(sizes) <= WORK)
        return fitting.map(lambda sizes: {**sizes, **given})

    def fits(self, row: Mapping[str, Any]) -> bool:
        return self.work(_apart(row)) <= WORK


@cache
def rows_of(sizes: Sizes, seed: int) -> tuple[dict[str, Any], ...]:
    """Rows in which each value occurs; the first ones have the largest values, one size after the other."""
    rng = np.random.default_rng(seed)
    left = {names: list(values) for names, values in sizes.values.items()}
    order, found = list(sizes.values), []
    for number, first in enumerate(cycle(order)):
        if not any(left.values()):
            return tuple(found)
        if not left[first]:
            continue
        row = {names: values[-1] for names, values in sizes.values.items()}
        start = number % len(order)
        for names in (*order[start:], *order[:start]):
            fits = [each for each in left[names] if names == first or sizes.fits({**row, names: each})]
            if fits:
                row[names] = fits[0]
                left[names].remove(fits[0])
                continue
            # Its values that fit have all had their row: any of them may meet the values of the others again.
            fits = [each for each in sizes.values[names] if sizes.fits({**row, names: each})]
            row[names] = fits[int(rng.integers(len(fits)))] if fits else row[names]
        found.append(_apart(row))
    raise AssertionError("unreachable: every round removes a value")


def _apart(row: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of a row, each under its own name."""
    apart = {}
    for names, value in row.items():
        each = names.split(", ")
        apart |= dict(zip(each, value, strict=True)) if len(each) > 1 else {names: value}
    return apart


def lengths_of(B: int, S: int) -> tuple[int, ...]:
    """Lengths of ``B`` packed sequences: one of S steps, and short ones, empty ones and ones of 1 step among them."""
    short = cycle((0, 1, min(S, 5), 0, min(S, 2)))
    return (*(next(short) for _ in range(B - 1)), S)


def _work(of: Mapping[str, Any], features: int) -> int:
    return of["B"] * of["S"] * of.get("N", 1) * features


def _packed_work(of: Mapping[str, Any], features: int) -> int:
    return sum(lengths_of(of["B"], of["S"])) * of.get("N", 1) * features


_MLSTM = {"K, V": HEAD_DIMS, "N": HEADS}
MLSTM_SIZES = Sizes({**_MLSTM, "B": BATCHES, "chunk_size, S": CHUNKS}, lambda of: _work(of, of["K"] * of["V"]))
PACKED_MLSTM_SIZES = Sizes(
    {"B": PACKED, **_MLSTM, "chunk_size, S": CHUNKS}, lambda of: _packed_work(of, of["K"] * of["V"])
)
SCAN_SIZES = Sizes({"S": (5000, 2049, 1024, 257, 128), "lead": LEADS}, lambda of: math.prod(of["lead"]) * of["S"])
DECAY_SIZES = Sizes({"S": (300, 257, 256, 129, 64), "lead": LEADS}, lambda of: math.prod(of["lead"]) * of["S"] ** 2)
