"""The targets next to each other: one column each, and the laws that were tried on them in a common order."""

from dataclasses import dataclass, field

from conformance.dtypes import FLOATING
from conformance.laws import Law
from conformance.outcome import LawResult
from conformance.report import TargetReport
from conformance.report.html._formatting import names


@dataclass(frozen=True, kw_only=True)
class Column:
    """One target.

    Attributes:
        index: its position, from which the anchors of its failures are made.
        name: the heading.
        dtypes: the dtypes in which any law was to be tried, in the usual order.
        cells: its results by id of the law and dtype.
        statuses: their statuses under the same keys; also ``failed`` for whatever ``--strict`` counts as broken.
    """

    report: TargetReport
    index: int
    name: str
    dtypes: tuple[str, ...]
    cells: dict[tuple[str, str], LawResult]
    statuses: dict[tuple[str, str], str] = field(default_factory=dict)

    def of(self, law: str) -> list[tuple[LawResult, str]]:
        """The results of a law, with their statuses, in the order of the dtypes."""
        keys = [(law, dtype) for dtype in self.dtypes]
        return [(self.cells[key], self.statuses[key]) for key in keys if key in self.cells]

    def count(self, status: str) -> int:
        return list(self.statuses.values()).count(status)

    def anchor(self, law: str) -> str:
        """The anchor of the text on what broke a law; it is made of numbers, because a name may contain anything."""
        return f"failure-{self.index}-{list(dict.fromkeys(id for id, _ in self.cells)).index(law)}"


def columns(reports: list[TargetReport]) -> list[Column]:
    return [_column(at, name, report) for at, (name, report) in enumerate(zip(names(reports), reports, strict=True))]


def _column(index: int, name: str, report: TargetReport) -> Column:
    present = {result.dtype for result in report.results}
    dtypes = (*(d for d in FLOATING if d in present), *sorted(present - set(FLOATING)))
    cells = {(result.law.id, result.dtype): result for result in report.results}
    broken = {id(result) for result in report.failures}
    statuses = {key: "failed" if id(result) in broken else result.status for key, result in cells.items()}
    return Column(report=report, index=index, name=name, dtypes=dtypes, cells=cells, statuses=statuses)


def operations(targets: list[Column]) -> dict[str, list[Law]]:
    """Every law that was tried on any target, by operation, in the order in which it was first tried."""
    laws = {result.law.id: result.law for target in targets for result in target.report.results}
    grouped: dict[str, list[Law]] = {}
    for law in laws.values():
        grouped.setdefault(law.op, []).append(law)
    return grouped
