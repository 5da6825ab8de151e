"""The branches that the data of each gradient law reached: a law that never saw a branch says nothing about it."""

from collections import Counter
from dataclasses import dataclass

from conformance.laws import Law
from conformance.report.failure import MOST_KINKS
from conformance.report.html._columns import Column, operations
from conformance.report.html._formatting import percent

LEAST = 0.1
"""The share that every branch should have; the page marks a branch with less."""


@dataclass(frozen=True)
class Part:
    """One branch.

    Attributes:
        kind: the CSS class of its colour.
        start, width: position and width of its part of the bar, in percent.
        wanted: whether it should have its share.
    """

    kind: str
    label: str
    start: float
    width: float
    wanted: bool

    @property
    def few(self) -> bool:
        """Whether it should have its share but does not."""
        return self.wanted and self.width < 100 * LEAST

    @property
    def share(self) -> str:
        return percent(self.width / 100)


@dataclass(frozen=True)
class Spread:
    """One law on one target, all dtypes together: a bar for the normaliser, one for the stabiliser."""

    target: str
    bars: list[list[Part]]
    kinks: str
    many_kinks: bool


@dataclass(frozen=True)
class Branches:
    """One law on every target.

    Attributes:
        least: the smallest share of a branch that should have one.
        marked: whether some target has too little of a branch or too many kinks.
    """

    law: Law
    spreads: list[Spread]
    least: str
    marked: bool


def branches(targets: list[Column]) -> list[Branches]:
    """The laws for which at least one target counted branches."""
    found = []
    for law in (law for laws in operations(targets).values() for law in laws):
        spreads = [spread for spread in (_spread(target, law.id) for target in targets) if spread is not None]
        if spreads:
            parts = [part for spread in spreads for bar in spread.bars for part in bar if part.wanted]
            marked = any(part.few for part in parts) or any(spread.many_kinks for spread in spreads)
            least = min(parts, key=lambda part: part.width)
            found.append(Branches(law, spreads, f"{least.label} {least.share}", marked))
    return found


def _spread(target: Column, law: str) -> Spread | None:
    results = [result for result, _ in target.of(law)]
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.branches)
    above, floor = counts.get("above", 0.0), counts.get("floor", 0.0)
    carry, write, m0 = (counts.get(name, 0.0) for name in ("carry", "write", "m0"))
    bars = [
        _bar([("above", "|n·q̂| above its floor", above, True), ("floor", "on its floor", floor, False)]),
        # Among the carried ones, those that no write has attained yet still come from m₀: they count as both.
        _bar(
            [
                ("m0", "m from m₀", m0, True),
                ("carry", "from a write", carry - m0, False),
                ("write", "written", write, True),
            ]
        ),
    ]
    bars = [bar for bar in bars if bar]
    if not bars:
        return None
    elements = sum(result.elements for result in results)
    kinks = sum(result.kinks for result in results) / elements if elements else 0.0
    return Spread(target.name, bars, percent(kinks), kinks > MOST_KINKS)


def _bar(counts: list[tuple[str, str, float, bool]]) -> list[Part]:
    whole = sum(count for _, _, count, _ in counts)
    if not whole > 0:
        return []
    parts, start = [], 0.0
    for kind, label, count, wanted in counts:
        width = 100 * count / whole
        parts.append(Part(kind, label, round(start, 2), round(width, 2), wanted))
        start += width
    return parts
