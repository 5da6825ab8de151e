"""Error against tolerance: a drawing per target, a row per operation and dtype, and a line that no error may cross."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from conformance.report.html._chart import Box, Chart, Label, Marker, Trace, line, series, shape
from conformance.report.html._columns import Column, operations
from conformance.report.html._formatting import number
from conformance.report.html._scale import LogScale, Tick, scale

WIDTH = 340.0
LEFT, RIGHT, TOP = 10.0, 330.0, 16.0
LANE, NAME, GAP, FOOT = 11.0, 16.0, 7.0, 22.0
BIN = 5.0
"""Width of a histogram's bar."""

Ratio = tuple[str, str, float]
"""Law, dtype, error over tolerance."""


@dataclass(frozen=True)
class Ratios:
    """The drawing for one target.

    Attributes:
        chart: the drawing; None if there is no error to draw.
        exact: the operations whose answers were all exact; they are named instead of drawn.
    """

    target: str
    chart: Chart | None
    exact: list[str]


def ratios(targets: list[Column]) -> list[Ratios]:
    """The drawings, with a common axis; none for a target on which no numbers were compared."""
    found = [(target, {op: list(_ratios(target, op)) for op in operations([target])}) for target in targets]
    everything = [ratio for _, by in found for each in by.values() for _, _, ratio in each]
    # From a thousandth of the tolerance to a hundred times: there is nothing to distinguish beyond.
    x = scale([1e-3, 10.0, *everything], 1e-3, 100, LEFT + 30, RIGHT - 16, zero=LEFT + 4)
    told = []
    for target, by in found:
        drawn = {op: each for op, each in by.items() if any(ratio != 0 for _, _, ratio in each)}
        exact = [op for op, each in by.items() if each and op not in drawn]
        if drawn or exact:
            told.append(Ratios(target.name, _chart(target, drawn, x) if drawn else None, exact))
    return told


def _ratios(target: Column, op: str) -> Iterator[Ratio]:
    """The largest ratio of each example; for a law that kept no examples, its largest ratio."""
    for (law, dtype), result in target.cells.items():
        if result.law.op != op:
            continue
        kept = [point.budget_ratio for point in result.points]
        # A broken law's largest ratio is kept as its worst, whether or not the example has a point.
        if result.worst is not None and result.worst not in kept:
            kept.append(result.worst)
        yield from ((law, dtype, ratio) for ratio in kept)


def _chart(target: Column, by: dict[str, list[Ratio]], x: LogScale) -> Chart:
    traces: list[Trace] = []
    markers: list[Marker] = []
    labels: list[Label] = []
    y = TOP
    worst: Ratio | None = None
    for op, every in by.items():
        labels.append(Label(LEFT, y + NAME - 5, op, "name"))
        y += NAME
        for dtype in (d for d in target.dtypes if any(each[1] == d for each in every)):
            own = [each for each in every if each[1] == dtype]
            y += LANE
            traces += _histogram([ratio for _, _, ratio in own], series(dtype), x, y)
            most = max(own, key=_size)
            worst = most if worst is None or _size(most) > _size(worst) else worst
            title = f"{op}, {dtype}: at worst {number(most[2])} of its tolerance ({most[0]}); {len(own)} measured"
            markers.append(Marker(x(most[2]), y - LANE / 2 + 1, series(dtype), shape(dtype), title))
        y += GAP
    assert worst is not None
    over = sum(_size(each) > 1 for every in by.values() for each in every)
    ticks = [Tick(x.zero, "0"), *(Tick(t.at, "limit" if t.label == "1" else t.label) for t in x.ticks(most=8))]
    traces.insert(0, Trace("limit", "", f"M{x(1):g} {TOP:g}V{y:g}"))
    return Chart(
        id=f"ratios-{target.index}",
        heading=target.name,
        title=f"{target.name}: error against tolerance",
        text="How errors over their tolerances are distributed, by operation and dtype: "
        f"the worst is {number(worst[2])} ({worst[0]}, {worst[1]}), {over} are beyond the tolerance.",
        box=Box(width=WIDTH, height=y + FOOT, left=LEFT, right=RIGHT, top=TOP, bottom=y),
        x=ticks,
        y=[],
        traces=traces,
        markers=markers,
        labels=labels,
        above=True,
    )


def _size(ratio: Ratio) -> float:
    return math.inf if math.isnan(ratio[2]) else ratio[2]


def _histogram(values: list[float], name: str, x: LogScale, base: float) -> list[Trace]:
    """Bars on ``base``: what is within the tolerance in the series' colour, the rest in the colour of failure."""
    counts: dict[int, int] = {}
    limit = x(1)
    for value in values:
        # A bar ends at the limit, so that none holds values from both sides of it.
        at = x(value) - limit
        bar = math.ceil(at / BIN) - 1 if value <= 1 else max(0, math.ceil(at / BIN) - 1)
        counts[bar] = counts.get(bar, 0) + 1
    most = max(counts.values())
    bars = {True: "", False: ""}
    for bar, count in sorted(counts.items()):
        # Square roots, so that one example next to hundreds is still visible.
        height = round(max(1.5, (LANE - 2) * math.sqrt(count / most)), 1)
        bars[bar >= 0] += f"M{limit + bar * BIN + 0.5:g} {base:g}v{-height:g}h{BIN - 1:g}v{height:g}Z"
    whole = [Trace("floor", "", line([(LEFT, base), (RIGHT, base)]))]
    whole += [Trace("bars", name, bars[False])] if bars[False] else []
    return whole + ([Trace("bars", "over", bars[True])] if bars[True] else [])
