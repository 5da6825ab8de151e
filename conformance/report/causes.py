"""Causes and envelopes as lines of text, as the terminal shows them."""

from conformance.diagnosis.cause import LEADING, Cause, Diagnosis
from conformance.diagnosis.causes import array_line
from conformance.report import TargetReport
from conformance.tolerance.compared import ArrayOutcome

NAMED = 4
"""Maximum number of checks that are named as explained by a cause; the others are counted."""


def leading(report: TargetReport) -> tuple[Cause, ...]:
    """The causes that a report shows first."""
    return report.diagnosis.causes[:LEADING]


def headline(diagnosis: Diagnosis) -> str:
    """The number of causes, and the number of failed checks that they explain."""
    checks = {check for cause in diagnosis.causes for check in cause.explains}
    causes = len(diagnosis.causes)
    said = f"{causes} cause{'s' if causes != 1 else ''} of {len(checks)} failed check{'s' if len(checks) != 1 else ''}"
    return said if causes <= LEADING else f"{said}; the first {LEADING}"


def explained(cause: Cause) -> str:
    """The checks that a cause explains."""
    if not cause.explains:
        return "found by experiment; no case of a law shows it"
    named = ", ".join(str(check) for check in cause.explains[:NAMED])
    more = len(cause.explains) - NAMED
    count = f"{len(cause.explains)} check{'s' if len(cause.explains) != 1 else ''}"
    return f"{count}: {named}{f' and {more} more' if more > 0 else ''}"


def lines(cause: Cause) -> list[tuple[str, str]]:
    """The details of a cause as pairs of a word and its text; the cause's sentence comes before them."""
    told = [("explains", explained(cause)), ("case", f"{cause.case} ({cause.dtype})")]
    if cause.problem:
        told.append(("problem", cause.problem))
    if cause.arrays:
        told.append(("arrays", array_line(cause.arrays)))
    told += [("pattern", f"{name} {said}") for name, said in cause.patterns.items()]
    if cause.script or cause.script_note:
        told.append(("script", ", ".join(filter(None, (cause.script, cause.script_note)))))
    return told


def differences(report: TargetReport) -> str:
    """The laws about gatespec's own decisions that the target breaks, and by how much; empty if it breaks none."""
    dtypes: dict[str, list[str]] = {}
    errors: dict[str, list[ArrayOutcome]] = {}
    for result in report.results:
        if result.status == "differs":
            dtypes.setdefault(result.law.id, []).append(result.dtype)
            found = (array for each in result.counterexamples for array in each.arrays if array.nature is not None)
            errors.setdefault(result.law.id, []).extend(found)
    said = []
    for law, names in dtypes.items():
        worst = max(errors[law], key=lambda array: array.error, default=None)
        size = "" if worst is None else f", {array_line([worst])}"
        said.append(f"{law} ({', '.join(names)}){size}")
    return "; ".join(said)


SIGNS = {"right": "✓", "wrong": "✗", "not served": "refused", "not promised": "not promised", "not tried": "·"}


def shown_cell(value: str, gradient: str) -> str:
    """A cell in a few characters: one sign if value and gradient agree, else both."""
    if not gradient or gradient == value:
        return SIGNS[value]
    return f"value {SIGNS[value]} gradient {SIGNS[gradient]}"
