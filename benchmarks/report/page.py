"""Results as one self-contained HTML page: the machine, a picture, and every row."""

import base64
import tempfile
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.report import plots
from benchmarks.speed.table import measured, seconds, wanted

_STYLE = """
:root { color-scheme: light dark; --line: #8885; --good: #18794e; --bad: #b3261e; --dim: #666; }
@media (prefers-color-scheme: dark) { :root { --good: #4cc38a; --bad: #ff8b85; --dim: #aaa; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 64rem; padding: 1rem; }
.scroll { overflow-x: auto; } img { background: #fff; max-width: 100%; }
table { border-collapse: collapse; } th, td { border-bottom: 1px solid var(--line); padding: .2rem .6rem; }
th, td { text-align: left; } td.number { font-variant-numeric: tabular-nums; text-align: right; white-space: nowrap; }
.own { font-weight: 600; } .good { color: var(--good); } .bad { color: var(--bad); } .dim { color: var(--dim); }
"""


def render(documents: dict[str, dict[str, Any]]) -> str:
    body = "\n".join(_section(name, document) for name, document in documents.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>gatespec benchmarks</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>gatespec benchmarks</h1>\n{body}\n</body></html>\n"
    )


def _section(name: str, document: dict[str, Any]) -> str:
    machine, rows = document["machine"], document["rows"]
    versions = ", ".join(f"{package} {version}" for package, version in machine["versions"].items())
    picture = _picture(rows)
    cases = dict.fromkeys(row["case"] for row in rows)
    tables = "\n".join(_table(case, [row for row in rows if row["case"] == case]) for case in cases)
    return (
        f"<section><h2>{escape(name)}</h2><p>{escape(machine['device'])}, {machine['cores']} cores; "
        f"{escape(versions)}.</p>{_goals(document.get('goals', []))}{_calls(document.get('calls', []))}"
        f"{picture}{tables}</section>"
    )


def _goals(goals: list[dict[str, Any]]) -> str:
    if not goals:
        return ""
    lines = [
        f"<tr class='{'good' if row['met'] else 'bad'}'><td>{'met' if row['met'] else 'not met'}</td>"
        f"<td>{escape(row['goal'])}</td><td>{escape(row['where'])}</td>"
        f"<td class='number'>{measured(row)}</td><td class='number'>{wanted(row)}</td></tr>"
        for row in goals
    ]
    head = "".join(f"<th>{heading}</th>" for heading in ("", "goal", "where", "measured (95 %)", "wanted"))
    met = sum(row["met"] for row in goals)
    body = "\n".join(lines)
    return f"<h3>goals: {met} of {len(goals)}</h3><div class='scroll'><table><tr>{head}</tr>\n{body}</table></div>"


def _calls(calls: list[dict[str, Any]]) -> str:
    if not calls:
        return ""
    lines = []
    for row in calls:
        if row["reason"] is not None:
            lines.append(
                f"<tr class='dim'><td>{escape(row['framework'])}</td><td colspan='4'>{escape(row['reason'])}</td></tr>"
            )
            continue
        cells = [
            seconds(row["seconds"][name]) if name in row["seconds"] else "" for name in ("public", "compiled", "empty")
        ]
        numbers = "".join(f"<td class='number'>{cell}</td>" for cell in (*cells, f"{row['times_empty']['ratio']:.2f}"))
        name = f"{row['framework']} {row['function']} {row['direction']}"
        lines.append(f"<tr><td>{escape(name)}</td>{numbers}</tr>")
    heads = ("public call", "without work, or in all", "compiled", "empty", "fixed cost in empty calls")
    head, body = "".join(f"<th>{heading}</th>" for heading in heads), "\n".join(lines)
    return f"<h3>fixed cost of a call</h3><div class='scroll'><table><tr>{head}</tr>\n{body}</table></div>"


def _picture(rows: list[dict[str, Any]]) -> str:
    if not any(row["seconds"] is not None for row in rows):
        return ""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "picture.svg"
        plots.draw(path, rows)
        drawn = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="times of all contenders" src="data:image/svg+xml;base64,{drawn}"></p>'


def _table(case: str, rows: list[dict[str, Any]]) -> str:
    timed = sorted((row for row in rows if row["seconds"] is not None), key=lambda row: row["seconds"])
    untimed = [row for row in rows if row["seconds"] is None]
    body = "\n".join([*map(_timed, timed), *map(_untimed, untimed)])
    floor = f" <span class='dim'>floor {seconds(rows[0]['floor_seconds'])}</span>"
    heads = ("contender", "conformity", "time", "±", "× ours (95 %)", "of floor", "memory", "notes")
    head = "".join(f"<th>{heading}</th>" for heading in heads)
    return f"<h3>{escape(case)}{floor}</h3><div class='scroll'><table><tr>{head}</tr>\n{body}</table></div>"


def _timed(row: dict[str, Any]) -> str:
    ratio, conformity = row["times_ours"], row["conformity"]
    notes = [row["differs"]["how"]] if row["differs"] else []
    notes += [f"setting {row['setting']}"] if row["setting"] is not None else []
    cells = [
        seconds(row["seconds"]),
        f"{row['spread']:.0%}",
        "" if ratio is None else f"{ratio['ratio']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f})",
        "" if row["fraction_of_floor"] is None else f"{row['fraction_of_floor']:.1%}",
        "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:.0f} MiB",
    ]
    numbers = "".join(f"<td class='number'>{cell}</td>" for cell in cells)
    colour = "good" if conformity["verdict"] == "conforms" else "bad"
    return (
        f"<tr class='{'own' if row['own'] else ''}'><td>{escape(row['contender'])}</td>"
        f"<td class='{colour}'>{escape(conformity['verdict'])}</td>{numbers}<td>{escape('; '.join(notes))}</td></tr>"
    )


def _untimed(row: dict[str, Any]) -> str:
    reason = row["reason"] or ""
    colour = "bad" if reason.startswith("wrong") else "dim"
    return f"<tr class='{colour}'><td>{escape(row['contender'])}</td><td colspan='7'>{escape(reason)}</td></tr>"
