"""Error against S: one drawing per operation and target, with the same axes for all targets of an operation."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from conformance.report.html._chart import Box, Chart, Label, Marker, Trace, cloud, line, series, shape
from conformance.report.html._columns import Column, operations
from conformance.report.html._formatting import number
from conformance.report.html._scale import LogScale, Tick, scale

BOX = Box(width=340.0, height=200.0, left=42.0, right=328.0, top=12.0, bottom=170.0)
ZERO = 12.0
"""Distance of 0 below the axis: exact answers are common, but a logarithmic axis has no 0."""


@dataclass(frozen=True)
class Sample:
    """One example: its length and its largest error.

    Attributes:
        error: the error in roundoffs.
    """

    law: str
    dtype: str
    steps: int
    error: float


@dataclass(frozen=True)
class Growth:
    """The drawings of one operation.

    Attributes:
        exact: the targets whose answers were all exact to the last bit; they are named instead of drawn.
        broken: whether one of its laws is broken.
    """

    op: str
    charts: list[Chart]
    exact: list[str]
    broken: bool


def growths(targets: list[Column]) -> list[Growth]:
    """A drawing for every operation and target with at least one measured example."""
    found = []
    for at, op in enumerate(operations(targets)):
        samples = [(target, list(_samples(target, op))) for target in targets]
        samples = [(target, each) for target, each in samples if each]
        if not samples:
            continue
        everything = [sample for _, each in samples for sample in each]
        x = scale([s.steps for s in everything], 1, 2**20, BOX.left + 6, BOX.right - 6, base=2)
        errors = [s.error for s in everything]
        y = scale(errors, 1e-3, 1e9, BOX.bottom - ZERO, BOX.top + 4, zero=BOX.bottom, least=2)
        charts, exact = [], []
        for target, each in samples:
            if any(s.error != 0 for s in each) or _broken(target, op):
                charts.append(_chart(f"growth-{at}-{target.index}", op, target, each, x, y))
            else:
                exact.append(target.name)
        broken = any(_broken(target, op) for target in targets)
        found.append(Growth(op, charts, exact, broken))
    return found


def _keys(target: Column, op: str) -> list[tuple[str, str]]:
    return [key for key, result in target.cells.items() if result.law.op == op]


def _broken(target: Column, op: str) -> bool:
    return any(target.statuses[key] == "failed" for key in _keys(target, op))


def _samples(target: Column, op: str) -> Iterator[Sample]:
    for law, dtype in _keys(target, op):
        for point in target.cells[law, dtype].points:
            yield Sample(law, dtype, max(point.steps, 1), point.roundoffs)


def _chart(id: str, op: str, target: Column, samples: list[Sample], x: LogScale, y: LogScale) -> Chart:
    traces, markers, told = [], [], []
    for dtype in target.dtypes:
        own = [sample for sample in samples if sample.dtype == dtype]
        if not own:
            continue
        traces.append(Trace("cloud", series(dtype), cloud((x(s.steps), y(s.error)) for s in own)))
        worst = _worst_by_length(own)
        traces.append(Trace("line", series(dtype), line((x(s.steps), y(s.error)) for s in worst)))
        for s in worst:
            title = f"{dtype}, S = {s.steps}: {number(s.error)} roundoffs ({s.law})"
            markers.append(Marker(x(s.steps), y(s.error), series(dtype), shape(dtype), title))
        most = max(own, key=_size)
        told.append(f"{dtype} up to {number(most.error)} at S = {most.steps}")
    guide, label = _guide(x, y)
    return Chart(
        id=id,
        heading=target.name,
        title=f"{op} on {target.name}: error against S",
        text=f"Error in roundoffs against the number of steps, both logarithmic: {'; '.join(told)}.",
        box=BOX,
        x=x.ticks(base=2, most=8),
        y=[*y.ticks(most=6), Tick(y.zero, "0")],
        traces=[*guide, *traces],
        markers=markers,
        labels=label,
    )


def _size(sample: Sample) -> float:
    return math.inf if math.isnan(sample.error) else sample.error


def _worst_by_length(samples: list[Sample]) -> list[Sample]:
    """The largest error in every half octave of S, in the order of S."""
    worst: dict[int, Sample] = {}
    for sample in samples:
        octave = round(2 * math.log2(sample.steps))
        if octave not in worst or _size(sample) > _size(worst[octave]):
            worst[octave] = sample
    return sorted(worst.values(), key=lambda sample: sample.steps)


def _guide(x: LogScale, y: LogScale) -> tuple[list[Trace], list[Label]]:
    """√S, the growth of a sum of S roundings of random sign."""
    start = max(x.low, y.low**2)
    end = min(x.high, y.high**2)
    if start >= end:
        return [], []
    ends = [(x(start), y(math.sqrt(start))), (x(end), y(math.sqrt(end)))]
    # The label is next to the end of the line if the line leaves at the top, else above it.
    beside = Label(ends[1][0] + 5, ends[1][1] + 10, "√S")
    above = Label(ends[1][0], ends[1][1] - 5, "√S", "end")
    return [Trace("guide", "", line(ends))], [beside if end < x.high else above]
