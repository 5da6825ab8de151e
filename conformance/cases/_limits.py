"""The common parts of every case: its length and width, its seed, its description, its cotangents.

Shapes come in strata: ``small`` (S from 0 to 7), ``chunk`` (around the lengths at which chunks end) and ``long`` (over
a thousand steps, unless set otherwise), and every law sees all of its strata. For a framework that compiles per shape,
shapes come from short tables, so that laws share compiled functions. In each stratum the first cases are pinned to
values that no law may miss (`PINS`); the others are drawn freely.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.base.options import MAX_STEPS

STRATA = ("small", "chunk", "long")
SMALL_STEPS = (0, 1, 2, 3, 5, 7)
CHUNK_STEPS = (13, 31, 32, 33, 63, 64, 65, 97, 130)
LONG_STEPS = MAX_STEPS
PINS = {
    "small": ("well-conditioned", "small magnitude", "held"),
    "chunk": ("small magnitude", "well-conditioned"),
    "long": ("well-conditioned",),
}
COTANGENTS = ("dense", "output only", "state only", "one step")
SEEDS = st.integers(0, 2**16 - 1)


@dataclass(frozen=True)
class Limits:
    """The limits within which a strategy draws cases; the docstring of this module explains them.

    Attributes:
        stratum: one of `STRATA`.
        eager: whether a new shape is cheap; otherwise shapes come from the tables.
        dtype: the dtype of the values; some tables are shorter for some dtypes.
        max_steps: the number of steps of the longest sequence.
        layouts: the memory layouts that arrays may have.
        pin: one of `PINS`, to which the regimes of values are pinned; "" for none.
        quick: whether one row of a table is enough, and the few cases without a pin have extreme values.
    """

    stratum: str
    eager: bool
    dtype: str
    max_steps: int
    layouts: tuple[str, ...] = ("contiguous",)
    pin: str = ""
    quick: bool = False

    def steps(self) -> tuple[int, ...]:
        choice = {"small": SMALL_STEPS, "chunk": CHUNK_STEPS, "long": (min(LONG_STEPS, self.max_steps),)}[self.stratum]
        if self.pin:
            # These are enough steps for every branch of a law that has hardly any other case.
            choice = (65,) if (self.stratum, self.pin) == ("chunk", "well-conditioned") else choice
            choice = tuple(S for S in choice if S > 2)
        return tuple(S for S in choice if self.max_steps >= S) or (self.max_steps,)


def pinned(limits: Limits, count: int) -> list[tuple[Limits, int]]:
    """Distribute ``count`` examples: one for each pin of the stratum, as far as they reach, then the others.

    A single example of a pinned part is the simplest case of its pin, the same in every run.
    """
    pins = PINS[limits.stratum][:count]
    parts = [(replace(limits, pin=pin), 1) for pin in pins]
    return [*parts, (limits, count - len(pins))] if count > len(pins) else parts


class Sequences:
    """The sizes that follow from ``B``, ``S`` and ``lengths``, the fields of a case that may be packed."""

    B: int
    S: int
    lengths: tuple[int, ...] | None

    @property
    def packed(self) -> bool:
        return self.lengths is not None

    @property
    def sequences(self) -> int:
        return self.B if self.lengths is None else len(self.lengths)

    @property
    def steps(self) -> int:
        """The steps of the longest sequence."""
        return self.S if self.lengths is None else max(self.lengths, default=0)

    @property
    def tokens(self) -> tuple[int, int]:
        """The leading axes of arrays with steps; packed sequences lie along the second one."""
        return (self.B, self.S) if self.lengths is None else (1, sum(self.lengths))

    def describe(self) -> str:
        return words(self, told=("gates", "seed"), untold=("B", "S") if self.packed else ())


def generator(seed: int, *salt: int) -> np.random.Generator:
    return np.random.default_rng([seed, *salt])


def words(case: Any, told: tuple[str, ...], untold: tuple[str, ...] = ()) -> str:
    """The fields of a case that do not have their default value, and those that are always told, as words."""
    said = []
    for field in fields(case):
        value = getattr(case, field.name)
        if field.name in told or (field.name not in untold and value != field.default):
            said.append(_said(field.name, value))
    return ", ".join(said)


def _said(name: str, value: Any) -> str:
    if isinstance(value, tuple) and value and all(isinstance(each, str) for each in value):
        value = " and ".join(value)
    return f"{name.replace('_', ' ')} {value}" if isinstance(value, str) else f"{name}={value}"


def cotangent(rng: np.random.Generator, name: str, shape: tuple[int, ...], pattern: str, output: str) -> np.ndarray:
    """A random cotangent: dense, or zero where ``pattern`` requires it."""
    d = rng.normal(size=shape)
    if (pattern == "output only" and name != output) or (pattern == "state only" and name == output):
        return 0 * d
    if pattern == "one step" and name == output and d.size:
        keep = int(rng.integers(shape[1]))
        d[:, :keep] = 0
        d[:, keep + 1 :] = 0
    return d


def rows(table: Mapping[str, tuple], limits: Limits) -> st.SearchStrategy:
    rows = table[limits.stratum]
    return st.sampled_from(rows if limits.dtype == "float32" and not limits.quick else rows[:1])


def limited(S: int, limits: Limits) -> int:
    return min(S, limits.max_steps)


def lengths_of(draw: Any, B: int, T: int, limits: Limits) -> tuple[int, ...]:
    """``B`` lengths with sum ``T``, often with empty sequences, from cut points that shrink to 0.

    For a pinned case, which is the simplest one, they are as equal as possible: if one sequence held all tokens,
    nothing could be learnt about the others.
    """
    if B == 0:
        return ()
    if limits.pin:
        return tuple((T * (b + 1)) // B - (T * b) // B for b in range(B))
    cuts = sorted(draw(st.lists(st.integers(0, T), min_size=B - 1, max_size=B - 1)))
    if B >= 3 and draw(st.booleans()):
        cuts[-1] = cuts[-2]
    return tuple(int(n) for n in np.diff([0, *cuts, T]))
