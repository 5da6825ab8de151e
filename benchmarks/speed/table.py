"""A measurement as a table in the terminal."""

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from benchmarks.speed.measure import Entry, Measurement

MARKS = {"conforms": "[green]✓[/green]", "same function": "[yellow]~[/yellow]", "wrong": "[red]✗[/red]"}
LEGEND = "✓ within the suite's tolerances, ~ the same function beyond, ✗ wrong; ± half the quartile range of the time"


def show(console: Console, measurement: Measurement) -> None:
    console.print(of(measurement), highlight=False)
    console.print()


def of(measurement: Measurement) -> RenderableType:
    """Timed contenders, fastest first; below them, notes on them, and the contenders without a time with the reason."""
    floor = f"floor {seconds(measurement.floor)}" if measurement.floor else "no floor measured"
    table = Table(title=f"{measurement.case.id}: {floor}", title_justify="left", box=None)
    timed = [entry for entry in measurement.entries if entry.timing is not None]
    memory = ("memory",) if any(entry.peak_bytes is not None for entry in timed) else ()
    for heading in ("contender", "", "time", "±", "× ours (95 %)", "of floor", *memory):
        table.add_column(heading, justify="left" if heading == "contender" else "right", no_wrap=heading != "contender")
    for entry in sorted(timed, key=lambda entry: entry.timing.median if entry.timing else 0.0):
        table.add_row(*_timed(entry), *([_memory(entry)] if memory else []))
    notes = [line for entry in timed for line in _notes(entry)]
    return Group(table, *(f"[dim]  {escape(line)}[/dim]" for line in notes), *_untimed(measurement.entries))


def of_goals(goals: list[dict[str, Any]]) -> RenderableType:
    """The goals, the measured figures, and whether each goal is met."""
    table = Table(title="goals", title_justify="left", box=None)
    for heading in ("", "goal", "where", "measured", "wanted"):
        table.add_column(heading, justify="right" if heading in ("measured", "wanted") else "left")
    for row in goals:
        mark = "[green]✓[/green]" if row["met"] else "[red]✗[/red]"
        table.add_row(mark, row["goal"], escape(row["where"]), measured(row), wanted(row))
    return table


def measured(row: dict[str, Any]) -> str:
    value = f"{row['measured']:.2f}"
    return value if row["interval"] is None else f"{value} ({row['interval'][0]:.2f}–{row['interval'][1]:.2f})"


def wanted(row: dict[str, Any]) -> str:
    least, most = row["least"], row["most"]
    if least is not None and most is not None:
        return f"{least:g} to {most:g}"
    return f"≥ {least:g}" if least is not None else f"≤ {most:g}"


def _untimed(entries: list[Entry]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for entry in entries:
        if entry.timing is None:
            reasons.setdefault(entry.reason or "", []).append(entry.contender.name)
    return [
        f"[{'red' if reason.startswith('wrong') else 'dim'}]  "
        f"{MARKS['wrong'] + ' ' if reason.startswith('wrong') else ''}no time for {escape(', '.join(names))}: "
        f"{escape(reason)}[/]"
        for reason, names in reasons.items()
    ]


def _notes(entry: Entry) -> list[str]:
    assert entry.conformity is not None
    said = []
    if entry.choice is not None and len(entry.contender.choices) > 1:
        said.append(f"fastest with {entry.choice}")
    if entry.conformity.verdict != "conforms":
        said.append(f"{entry.conformity.where} is off by {entry.conformity.worst:.2g} tolerances")
    if entry.contender.differs is not None:
        said.append(entry.contender.differs[0])
    if entry.contender.restriction is not None:
        said.append(entry.contender.restriction.text)
    return [f"{entry.contender.name}: {'; '.join(said)}"] if said else []


def _timed(entry: Entry) -> tuple[str, ...]:
    assert entry.timing is not None and entry.conformity is not None
    ratio = entry.ratio
    name = escape(entry.contender.name)
    return (
        f"[bold]{name}[/bold]" if entry.contender.own else name,
        MARKS[entry.conformity.verdict],
        seconds(entry.timing.median),
        f"{entry.timing.spread:.0%}",
        "" if ratio is None else f"{ratio[0]:.2f} ({ratio[1]:.2f}–{ratio[2]:.2f})",
        "" if entry.fraction is None else f"{entry.fraction:.1%}",
    )


def _memory(entry: Entry) -> str:
    return "" if entry.peak_bytes is None else f"{entry.peak_bytes / 2**20:.0f} MiB"


def seconds(value: float) -> str:
    if value >= 1:
        return f"{value:.2f} s"
    return f"{1e3 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} µs"
