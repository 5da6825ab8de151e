"""The table: operation × law down, target × dtype across; a row sums up each operation, and its laws fold away."""

from dataclasses import dataclass

from conformance.laws import Law
from conformance.outcome import LawResult
from conformance.report.html._columns import Column, operations
from conformance.report.html._words import SHORT, Mark, counted, gravest, mark, number, plural


@dataclass(frozen=True)
class Cell:
    """What one law, or the laws of one operation together, came to in one dtype on one target.

    Attributes:
        mark: the verdict; None where the law was not on the agenda.
        worst: the largest error over its tolerance, where a number was compared.
        fill: how much of the tolerance that is, in percent.
        title: all of it in words.
        link: the anchor of the failure, if there is one.
        first: whether a target's columns begin here.
    """

    mark: Mark | None = None
    worst: str = ""
    fill: int | None = None
    title: str = ""
    link: str = ""
    first: bool = False


@dataclass(frozen=True)
class Row:
    law: Law
    anchor: str
    cells: list[Cell]


@dataclass(frozen=True)
class Group:
    """One operation.

    Attributes:
        cells: its laws summed up.
        open: whether its laws are shown from the start: only where one is broken.
    """

    op: str
    cells: list[Cell]
    rows: list[Row]
    open: bool


def groups(targets: list[Column]) -> list[Group]:
    found = []
    numbers = anchors(targets)
    for op, laws in operations(targets).items():
        rows = [Row(law, numbers[law.id], [_cell(*at, law) for at in _places(targets)]) for law in laws]
        cells = [_summary(*at, laws) for at in _places(targets)]
        broken = any(cell.mark is not None and cell.mark.kind == "failed" for cell in cells)
        found.append(Group(op, cells, rows, broken))
    return found


def anchors(targets: list[Column]) -> dict[str, str]:
    """Where the page explains each law."""
    laws = [law.id for group in operations(targets).values() for law in group]
    return {law: f"law-{at}" for at, law in enumerate(laws)}


def heads(targets: list[Column]) -> list[tuple[str, str, bool]]:
    """The dtypes across: short, in full, and whether a target's columns begin there."""
    return [(SHORT.get(dtype, dtype), dtype, first) for _, dtype, first in _places(targets)]


def _places(targets: list[Column]) -> list[tuple[Column, str, bool]]:
    return [(target, dtype, at == 0) for target in targets for at, dtype in enumerate(target.dtypes)]


def _cell(target: Column, dtype: str, first: bool, law: Law) -> Cell:
    result = target.cells.get((law.id, dtype))
    if result is None:
        return Cell(first=first)
    status = target.statuses[law.id, dtype]
    told = mark(status)
    link = f"#{target.anchor(law.id)}" if status in ("failed", "differs", "known", "fixed") else ""
    title = f"{target.name}, {law.id} in {dtype}: {summed(result, told)}"
    return Cell(told, number(result.worst), _fill(result.worst), title, link, first)


def _summary(target: Column, dtype: str, first: bool, laws: list[Law]) -> Cell:
    keys = [(law.id, dtype) for law in laws if (law.id, dtype) in target.cells]
    if not keys:
        return Cell(first=first)
    statuses = [target.statuses[key] for key in keys]
    told = mark(gravest(statuses))
    counts = ", ".join(counted(statuses, status) for status in dict.fromkeys(statuses))
    worst = [w for w in (target.cells[key].worst for key in keys) if w is not None]
    title = f"{target.name}, {laws[0].op} in {dtype}: {counts}"
    # NaN is worse than any number, and max would lose it.
    most = next((each for each in worst if each != each), max(worst, default=None))
    return Cell(told, number(most), _fill(most), title, "", first)


def _fill(worst: float | None) -> int | None:
    return None if worst is None else round(100 * worst) if 0 <= worst < 1 else 100


def summed(result: LawResult, told: Mark) -> str:
    """A result in one sentence: for whoever hovers over a cell, and for whoever cannot."""
    parts = [told.word]
    if result.examples:
        parts.append(plural(result.examples, "example"))
    if result.worst is not None:
        parts.append(f"worst error {number(result.worst)} of its tolerance")
    if result.kinks:
        parts.append(f"{result.kinks} of {plural(result.elements, 'element')} at a kink")
    if result.seconds >= 0.05:
        parts.append(f"{result.seconds:.1f} s")
    return ", ".join(parts) + (f": {result.reason}" if result.reason else "")
