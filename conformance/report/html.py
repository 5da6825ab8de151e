"""The HTML report: one file that needs no other, readable on a phone and in the dark."""

from html import escape

from conformance.dtypes import FLOATING
from conformance.report import TargetReport
from conformance.runner import Result

_STYLE = """
:root { color-scheme: light dark; --line: #8885; --good: #18794e; --bad: #cd2b31; --dim: #888; }
@media (prefers-color-scheme: dark) { :root { --good: #4cc38a; --bad: #ff6369; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .5rem; text-align: left; }
td.cell { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.passed { color: var(--good); } .failed { color: var(--bad); font-weight: 600; } .skipped { color: var(--dim); }
.failure { border-left: 3px solid var(--bad); margin: 1rem 0; padding: .25rem .75rem; }
code { overflow-wrap: anywhere; }
"""
_MARKS = {"passed": "✓", "failed": "✗", "skipped": "–"}


def render(reports: list[TargetReport]) -> str:
    body = "\n".join(_target(report) for report in reports)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>gatespec conformance</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>gatespec conformance</h1>\n{body}\n</body></html>\n"
    )


def _target(report: TargetReport) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    counts = ", ".join(
        f'<span class="{status}">{report.count(status)} {status}</span>' for status in ("passed", "failed", "skipped")
    )
    laws = list(dict.fromkeys(result.law.id for result in report.results))
    cells = {(result.law.id, result.dtype): result for result in report.results}
    rows = "\n".join(_row(law, cells) for law in laws)
    failures = "\n".join(_failure(report, result) for result in report.failures)
    head = "".join(f"<th>{dtype}</th>" for dtype in FLOATING)
    return (
        f"<section><h2>{escape(report.target)}</h2>"
        f"<p>{counts}; {escape(versions)}; {escape(report.device)}; seed {report.settings.seed}; "
        f"{report.seconds:.0f} s. Numbers are the worst error over its budget.</p>\n{failures}\n"
        f'<div class="scroll"><table><thead><tr><th>law</th>{head}</tr></thead><tbody>\n{rows}\n'
        "</tbody></table></div></section>"
    )


def _row(law: str, cells: dict[tuple[str, str], Result]) -> str:
    found = [cells.get((law, dtype)) for dtype in FLOATING]
    sentence = next(result.law.sentence for result in found if result is not None)
    return f'<tr><td title="{escape(sentence, quote=True)}">{escape(law)}</td>{"".join(map(_cell, found))}</tr>'


def _cell(result: Result | None) -> str:
    if result is None:
        return "<td></td>"
    worst = "" if result.worst is None else f" {result.worst:.2g}"
    title = escape(result.reason or "", quote=True)
    return f'<td class="cell {result.status}" title="{title}">{_MARKS[result.status]}{worst}</td>'


def _failure(report: TargetReport, result: Result) -> str:
    found = result.counterexample
    case = f"<br>case: {escape(found.case)}" if found else ""
    return (
        f'<div class="failure"><strong>{escape(result.law.id)}</strong> in {result.dtype}: '
        f"{escape(result.law.sentence)} <br><code>{escape(result.law.equation)}</code>{case}"
        f"<br>{escape(result.reason or '')}<br><code>{escape(report.reproduce(result))}</code></div>"
    )
