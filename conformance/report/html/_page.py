"""The page itself: every part is computed here and written by the templates, which escape everything."""

from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from conformance.dtypes import FLOATING
from conformance.report import TargetReport, causes, exit_status
from conformance.report.html._branches import branches
from conformance.report.html._chart import series, shape
from conformance.report.html._columns import Column, columns, operations
from conformance.report.html._failures import facts, failures, headline, note
from conformance.report.html._formatting import MARKS, SHORT, breakable, counted, mark, plural, seconds
from conformance.report.html._growth import growths
from conformance.report.html._matrix import anchors, cells, places, summaries, summed
from conformance.report.html._ratios import ratios


@dataclass(frozen=True)
class Verdict:
    """The result of the run in one line.

    Attributes:
        kind: the CSS class of its colour.
        sign, text: the result.
        detail: the numbers behind it.
    """

    kind: str
    sign: str
    text: str
    detail: str


def render(reports: list[TargetReport]) -> str:
    """The report of all targets as one HTML page that loads nothing and runs nothing."""
    targets = columns(reports)
    page = (
        _environment()
        .get_template("page.html")
        .render(
            targets=targets,
            verdict=verdict(reports, targets),
            operations=operations(targets),
            anchors=anchors(targets),
            diagnoses=[(target.name, target.report.diagnosis) for target in targets],
            has_causes=any(target.report.diagnosis.causes for target in targets),
            has_envelopes=any(target.report.diagnosis.envelopes for target in targets),
            broken=failures(targets, ("failed",)),
            known=failures(targets, ("differs", "known", "fixed")),
            ratios=ratios(targets),
            growths=growths(targets),
            branches=branches(targets),
            skips=skips(targets),
            legend=_legend(targets),
            present=[mark for status, mark in MARKS.items() if any(target.count(status) for target in targets)],
        )
    )
    # A name from a file system may contain characters that no encoding has.
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("conformance.report.html"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters.update(seconds=seconds, breakable=breakable, note=note)
    environment.globals.update(cells=cells, facts=facts, headline=headline, mark_of=mark, marks=MARKS)
    environment.globals.update(places=places, plural=plural, short=SHORT, summaries=summaries)
    environment.globals.update(summed=summed, told=causes)
    return environment


def verdict(reports: list[TargetReport], targets: list[Column]) -> Verdict:
    """Broken, held or never tried, by the exit status; the counts are those of the cards and the table."""
    statuses = [status for target in targets for status in target.statuses.values()]
    counts = ", ".join(counted(statuses, status) for status in MARKS if status in statuses)
    detail = f"{plural(len(statuses), 'check')} (a law in a dtype) on {plural(len(targets), 'target')}"
    detail = f"{detail}: {counts}" if counts else detail
    broken = statuses.count("failed")
    if broken:
        laws = {law for target in targets for (law, _), status in target.statuses.items() if status == "failed"}
        text = f"{plural(broken, 'check is', 'checks are')} broken, of {plural(len(laws), 'law')}"
        return Verdict("failed", "✗", text, detail)
    if exit_status(reports) == 2:
        idle = ", ".join(target.name for target in targets if not target.report.ran) or "any target"
        return Verdict("failed", "✗", f"No law ran on {idle}", detail)
    if "known" in statuses:
        return Verdict("known", "⊘", "All laws hold but the known failures", detail)
    left_out = {"not served", "not promised"}.intersection(statuses)
    return Verdict("passed", "✓", "All laws that were tried hold" if left_out else "All laws hold", detail)


def skips(targets: list[Column]) -> dict[tuple[str, str], dict[str, None]]:
    """The laws that were not tried, by target and reason."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for target in targets:
        for (law, _), result in target.cells.items():
            if not result.judged:
                found.setdefault((target.name, result.reason or "no reason was given"), {})[law] = None
    return found


def _legend(targets: list[Column]) -> list[tuple[str, str, str]]:
    present = {dtype for target in targets for dtype in target.dtypes}
    return [(dtype, series(dtype), shape(dtype)) for dtype in FLOATING if dtype in present]
