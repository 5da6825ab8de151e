"""The table: operation × law down, target × dtype across; one row sums up each operation, and its laws fold away."""

from dataclasses import dataclass

from conformance.laws import Law
from conformance.outcome import LawResult
from conformance.report.html._columns import Column, operations
from conformance.report.html._formatting import Mark, counted, gravest, mark, number, plural


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The result of one law, or of all laws of one operation, in one dtype on one target.

    Attributes:
        mark: the verdict; None if the law was not on the agenda.
        worst: the largest error over its budget, if a number was compared.
        fill: that share of the budget, in percent.
        title: the whole result in words.
        link: the anchor of the failure, if there is one.
        first: whether this is the first column of a target.
    """

    mark: Mark | None = None
    worst: str = ""
    fill: int | None = None
    title: str = ""
    link: str = ""
    first: bool = False

    @property
    def kind(self) -> str:
        return "" if self.mark is None else self.mark.kind


def cells(targets: list[Column], law: Law) -> list[Cell]:
    """The results of a law."""
    return [_cell(*at, law) for at in places(targets)]


def summaries(targets: list[Column], laws: list[Law]) -> list[Cell]:
    """The results of all laws of an operation, summed up."""
    return [_summary(*at, laws) for at in places(targets)]


def anchors(targets: list[Column]) -> dict[str, str]:
    """The anchors of the explanation of each law."""
    laws = [law.id for group in operations(targets).values() for law in group]
    return {law: f"law-{at}" for at, law in enumerate(laws)}


def places(targets: list[Column]) -> list[tuple[Column, str, bool]]:
    """The columns: a target, a dtype, and whether the column is the first one of the target."""
    return [(target, dtype, at == 0) for target in targets for at, dtype in enumerate(target.dtypes)]


def _cell(target: Column, dtype: str, first: bool, law: Law) -> Cell:
    result = target.cells.get((law.id, dtype))
    if result is None:
        return Cell(first=first)
    status = target.statuses[law.id, dtype]
    told = mark(status)
    link = f"#{target.anchor(law.id)}" if status in ("failed", "differs", "known", "fixed") else ""
    title = f"{target.name}, {law.id} in {dtype}: {summed(result, told)}"
    worst = result.worst
    return Cell(mark=told, worst=number(worst), fill=_fill(worst), title=title, link=link, first=first)


def _summary(target: Column, dtype: str, first: bool, laws: list[Law]) -> Cell:
    keys = [(law.id, dtype) for law in laws if (law.id, dtype) in target.cells]
    if not keys:
        return Cell(first=first)
    statuses = [target.statuses[key] for key in keys]
    told = mark(gravest(statuses))
    counts = ", ".join(counted(statuses, status) for status in dict.fromkeys(statuses))
    worst = [w for w in (target.cells[key].worst for key in keys) if w is not None]
    title = f"{target.name}, {laws[0].op} in {dtype}: {counts}"
    # NaN is worse than any number, but max would ignore it.
    most = next((each for each in worst if each != each), max(worst, default=None))
    return Cell(mark=told, worst=number(most), fill=_fill(most), title=title, first=first)


def _fill(worst: float | None) -> int | None:
    return None if worst is None else round(100 * worst) if 0 <= worst < 1 else 100


def summed(result: LawResult, told: Mark) -> str:
    """A result in one sentence, for readers who hover over a cell and for those who cannot."""
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
