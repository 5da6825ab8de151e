"""The terminal: a live bar while a target runs, then its table, then what failed in about ten lines each."""

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from conformance.dtypes import FLOATING
from conformance.laws import Law
from conformance.report import TargetReport
from conformance.runner import Result

SHOWN = 6


def with_progress(console: Console, target: str, total: int, results: Iterator[Result]) -> list[Result]:
    """Collect results while a bar shows how far the target is."""
    collected = []
    columns = (
        TextColumn("[bold]{task.fields[target]}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[broken]}{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=total, target=escape(target), broken="")
        for result in results:
            collected.append(result)
            broken = sum(each.status == "failed" for each in collected)
            progress.update(
                task,
                advance=1,
                description=f"{result.law.id} {result.dtype}",
                broken=f"[red]{broken} broken [/red]" if broken else "",
            )
    return collected


def show(console: Console, report: TargetReport) -> None:
    console.print(_table(report))
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    counts = f"{report.count('passed')} passed, {report.count('failed')} failed, {report.count('skipped')} skipped"
    console.print(
        f"[bold]{escape(report.target)}[/bold]: {counts} in {report.seconds:.0f} s "
        f"({versions}, {report.device}, seed {report.settings.seed})",
        highlight=False,
    )
    _show_skips(console, report)
    for result in report.failures[:SHOWN]:
        _show_failure(console, report, result)
    rest = report.failures[SHOWN:]
    if rest:
        ids = ", ".join(dict.fromkeys(f"{result.law.id} ({result.dtype})" for result in rest))
        console.print(f"[red]… and {len(rest)} more:[/red] {escape(ids)}", highlight=False)
    console.print()


def _table(report: TargetReport) -> Table:
    table = Table(title=escape(report.target), title_justify="left", caption="worst error over its budget", box=None)
    table.add_column("law")
    dtypes = [dtype for dtype in FLOATING if any(result.dtype == dtype for result in report.results)]
    for dtype in dtypes:
        table.add_column(dtype, justify="right")
    cells = {(result.law.id, result.dtype): result for result in report.results}
    for law in dict.fromkeys(result.law.id for result in report.results):
        table.add_row(law, *(_cell(cells.get((law, dtype))) for dtype in dtypes))
    return table


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    if result.status == "skipped":
        return "[dim]–[/dim]"
    worst = "" if result.worst is None else f"{result.worst:.2f} " if result.worst < 100 else f"{result.worst:.0e} "
    return f"{worst}[green]✓[/green]" if result.status == "passed" else f"[red]{worst}✗[/red]"


def _show_skips(console: Console, report: TargetReport) -> None:
    reasons: dict[str, list[str]] = {}
    for result in report.results:
        if result.status == "skipped":
            reasons.setdefault(result.reason or "", []).append(result.law.id)
    for reason, laws in reasons.items():
        names = ", ".join(dict.fromkeys(laws))
        console.print(f"[dim]skipped {escape(names)}: {escape(reason)}[/dim]", highlight=False)


def _show_failure(console: Console, report: TargetReport, result: Result) -> None:
    law, found = result.law, result.counterexample
    console.print(f"\n[red bold]✗ {law.id}[/red bold] in {result.dtype}: {escape(law.sentence)}", highlight=False)
    console.print(f"    law       {escape(law.equation)}", highlight=False)
    if found is None:
        console.print(f"    skipped   {escape(result.reason or '')}", highlight=False)
    else:
        console.print(f"    case      {escape(found.case)}", highlight=False)
        console.print(f"    problem   {escape(found.problem)}", highlight=False)
    console.print(f"    again     {escape(report.reproduce(result))}", highlight=False, soft_wrap=True)


def show_laws(console: Console, laws: list[Law]) -> None:
    """Every law with its sentence and equation."""
    for law in laws:
        console.print(f"[bold]{law.id}[/bold]  {escape(law.sentence)}", highlight=False)
        console.print(f"    {escape(law.equation)}", style="dim", highlight=False)
