"""The HTML report: one page that loads nothing and runs nothing, drawn by a template from the JSON report."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from conformance.diagnosis.causes import array_line
from conformance.report import SUITE_FAILED, TargetReport, exit_status
from conformance.report.json import document
from conformance.report.lines import SIGNS, counted, shown_cell

MARKS = {
    "passed": ("✓", "holds"),
    "failed": ("✗", "broken"),
    "differs": ("≠", "differs from gatespec's contract"),
    "known": ("⊘", "known failure"),
    "fixed": ("✓!", "known failure that holds now"),
    "not served": ("∅", "not served"),
    "skipped": ("–", "not tried"),
    "suite failed": ("?", "the suite itself failed"),
}
"""The sign and the word for each status of a law."""


def render(reports: list[TargetReport]) -> str:
    """The report of all targets as one page."""
    targets = document(reports, with_scripts=True)
    for target, report in zip(targets, reports, strict=True):
        target["laws_tried"] = [law for law in target["laws"] if _tried(law)]
        for cause, found in zip(target["causes"], report.diagnosis.causes, strict=True):
            cause["array_line"] = array_line(found.arrays)
    page = _template().render(targets=targets, headline=_headline(targets, exit_status(reports)), marks=MARKS)
    # A name from a file system may contain characters that no encoding has.
    return page.encode("utf-8", "backslashreplace").decode("utf-8")


UNTRIED = ("skipped", "not served", "suite failed")
"""Statuses of laws of which no call was judged."""


def _tried(law: dict[str, Any]) -> bool:
    """Whether a law counts; one that was not tried does where ``--strict`` calls it broken."""
    return law["broken"] or law["status"] not in UNTRIED


def _was_tried(row: dict[str, Any]) -> bool:
    """Whether any cell of a row of the envelope was tried."""
    return any((cell["value"], cell["gradient"] or "not tried") != ("not tried",) * 2 for cell in row["cells"].values())


def _headline(targets: list[dict[str, Any]], status: int) -> tuple[str, str]:
    """The status and the sentence that the page begins with."""
    laws = [law for target in targets for law in target["laws"]]
    broken = sum(law["broken"] for law in laws)
    if broken:
        return "failed", f"{broken} of {counted(sum(map(_tried, laws)), 'check')} broken"
    if status == SUITE_FAILED:
        return "failed", "The suite itself failed"
    if status == 2:
        return "failed", "For some target, no law was judged"
    statuses = {law["status"] for law in laws}
    differing = sum(law["status"] == "differs" for law in laws)
    if differing:
        checks = "1 check differs" if differing == 1 else f"{differing} checks differ"
        return "differs", f"All laws hold; {checks} from gatespec's contract"
    if "known" in statuses:
        return "known", "All laws hold but the known failures"
    return "passed", "All laws that were tried hold" if statuses - {"passed", "skipped"} else "All laws hold"


@cache
def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("conformance", "report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.globals.update(signs=SIGNS, shown_cell=shown_cell)
    environment.tests["tried"] = _was_tried
    environment.filters.update(worst=_worst, counted=counted)
    return environment.get_template("page.html")


def _worst(worst: float | str | None) -> str:
    return "" if worst is None else f"{float(worst):.2g}"
