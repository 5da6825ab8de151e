"""The terminal: a live bar while a target runs, then its table, then the failures in at most fifteen lines each."""

from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from conformance.base.dtypes import FLOATING
from conformance.diagnosis.cause import Cell
from conformance.judge.outcome import LawResult
from conformance.laws import Law
from conformance.report import TargetReport, causes
from conformance.report.failure import MOST_KINKS, branches, headline, lines

SHOWN = 6


def with_progress(
    console: Console, target: str, total: int, results: Iterator[LawResult], collected: list[LawResult]
) -> None:
    """Collect results while a bar shows the target's progress."""
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


def show(console: Console, report: TargetReport) -> None:
    console.print(_table(report))
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    counts = ", ".join(f"{report.count(status)} {status}" for status in ("passed", "failed", "not served", "skipped"))
    counts += "".join(
        f", {report.count(status)} {status}" for status in ("differs", "known", "fixed") if report.count(status)
    )
    console.print(
        f"[bold]{escape(report.target)}[/bold]: {counts} in {report.seconds:.0f} s "
        f"({versions}, {report.device}, seed {report.options.seed})",
        highlight=False,
    )
    _show_differences(console, report)
    if report.options.promises:
        told = "; ".join(report.options.promises)
        console.print(f"judged only on calls that keep these promises: {escape(told)}", highlight=False, soft_wrap=True)
    _show_skips(console, report)
    _show_notes(console, report)
    _show_envelopes(console, report)
    shown, rest = report.failures[:SHOWN], report.failures[SHOWN:]
    if report.diagnosis.causes:
        _show_causes(console, report)
        # One failure is shown in detail; the others differ in the law and the dtype, and are in the reports.
        shown, rest = [_foremost(report)], []
    for result in shown:
        _show_failure(console, report, result)
    if rest:
        ids = ", ".join(dict.fromkeys(f"{result.law.id} ({result.dtype})" for result in rest))
        console.print(f"[red]… and {len(rest)} more:[/red] {escape(ids)}", highlight=False)
    console.print()


def _show_causes(console: Console, report: TargetReport) -> None:
    """At most five causes in a few lines each; the number of the others in one line."""
    diagnosis = report.diagnosis
    console.print(f"\n[red bold]{causes.headline(diagnosis)}[/red bold]", highlight=False)
    for number, cause in enumerate(causes.leading(report), 1):
        console.print(f"\n[red bold]{number}.[/red bold] {escape(cause.sentence)}", highlight=False, soft_wrap=True)
        for word, said in causes.lines(cause):
            console.print(f"    {word:<9} {escape(said)}", highlight=False, soft_wrap=True)
    rest = diagnosis.causes[len(causes.leading(report)) :]
    if rest:
        told = "; ".join(f"{cause.sentence} ({len(cause.explains)})" for cause in rest)
        console.print(f"\n[red]… and {len(rest)} more:[/red] {escape(told)}", highlight=False, soft_wrap=True)
    if diagnosis.note:
        console.print(f"[yellow]{escape(diagnosis.note)}[/yellow]", highlight=False)


def _foremost(report: TargetReport) -> LawResult:
    """The first failure among those that the first cause explains."""
    checks = {(check.law, check.dtype) for check in report.diagnosis.causes[0].explains}
    failures = report.failures
    return next((each for each in failures if (each.law.id, each.dtype) in checks), failures[0])


def _show_envelopes(console: Console, report: TargetReport) -> None:
    """A sentence on where each operation is right, with a table of the exceptions if there are any."""
    for envelope in report.diagnosis.envelopes:
        wrong = [row for row in envelope.rows if any(_is_wrong(each) for each in row.cells.values())]
        if not wrong:
            continue
        console.print(f"\n[bold]{envelope.op}[/bold]: {escape(envelope.summary)}", highlight=False, soft_wrap=True)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 4))
        table.add_column("a call with")
        for dtype in envelope.dtypes:
            table.add_column(dtype)
        shown = wrong if len(wrong) < len(envelope.rows) / 2 else [row for row in envelope.rows if row not in wrong]
        for row in shown:
            table.add_row(
                row.feature,
                *(causes.shown_cell(row.cells[dtype].value, row.cells[dtype].gradient) for dtype in envelope.dtypes),
            )
        if len(shown) < len(envelope.rows):
            others = len(envelope.rows) - len(shown)
            what = "right, refused or not tried" if shown is wrong else "wrong"
            table.caption = f"{others} other features are {what}; --html and --json show all of them"
            table.caption_justify = "left"
        if shown:
            console.print(table)


def _is_wrong(cell: Cell) -> bool:
    return "wrong" in (cell.value, cell.gradient)


def _table(report: TargetReport) -> Table:
    table = Table(title=escape(report.target), title_justify="left", caption="worst error / tolerance", box=None)
    table.add_column("law")
    dtypes = [dtype for dtype in FLOATING if any(result.dtype == dtype for result in report.results)]
    for dtype in dtypes:
        table.add_column(dtype, justify="right")
    cells = {(result.law.id, result.dtype): result for result in report.results}
    for law in dict.fromkeys(result.law.id for result in report.results):
        table.add_row(law, *(_cell(cells.get((law, dtype))) for dtype in dtypes))
    return table


def _cell(result: LawResult | None) -> str:
    if result is None:
        return ""
    if not result.judged:
        return "[dim]–[/dim]" if result.status == "skipped" else f"[yellow]{result.status}[/yellow]"
    worst = "" if result.worst is None else f"{result.worst:.2f} " if result.worst < 100 else f"{result.worst:.0e} "
    marks = {
        "passed": "[green]✓[/green]",
        "differs": "[yellow]≠[/yellow]",
        "known": "[yellow]k[/yellow]",
        "fixed": "[bold yellow]![/bold yellow]",
    }
    return f"{worst}{marks[result.status]}" if result.status in marks else f"[red]{worst}✗[/red]"


def _show_differences(console: Console, report: TargetReport) -> None:
    dtypes: dict[str, list[str]] = {}
    for result in report.results:
        if result.status == "differs":
            dtypes.setdefault(result.law.id, []).append(result.dtype)
    if dtypes:
        told = ", ".join(f"{law} ({', '.join(names)})" for law, names in dtypes.items())
        console.print(f"[yellow]differs from gatespec's contract in: {escape(told)}[/yellow]", highlight=False)


def _show_skips(console: Console, report: TargetReport) -> None:
    reasons: dict[tuple[str, str], list[str]] = {}
    for result in report.results:
        if not result.judged:
            reasons.setdefault((result.status, result.reason or ""), []).append(result.law.id)
    for (status, reason), laws in reasons.items():
        names = ", ".join(dict.fromkeys(laws))
        console.print(f"[dim]{status} {escape(names)}: {escape(reason)}[/dim]", highlight=False)
    partly = [result for result in report.results if result.judged and result.refused.cases]
    for features, results in _by_features(partly).items():
        names = ", ".join(dict.fromkeys(result.law.id for result in results))
        served = sum(result.examples for result in results)
        tried = served + sum(result.refused.cases for result in results)
        without = f"; the others were judged without {features}" if features else ""
        reason = results[0].refused.reason
        console.print(
            f"[yellow]{served} of {tried} cases served[/yellow] [dim]of {names}: {escape(reason)}{without}[/dim]",
            highlight=False,
        )


def _by_features(results: list[LawResult]) -> dict[str, list[LawResult]]:
    groups: dict[str, list[LawResult]] = {}
    for result in results:
        groups.setdefault(", ".join(sorted(result.refused.features)), []).append(result)
    return groups


def _show_failure(console: Console, report: TargetReport, result: LawResult) -> None:
    console.print(f"\n[red bold]✗[/red bold] {escape(headline(result))}", highlight=False, soft_wrap=True)
    for word, said in lines(report, result):
        console.print(f"    {word:<9} {escape(said)}", highlight=False, soft_wrap=True)


def _show_notes(console: Console, report: TargetReport) -> None:
    """The suite's notes about its own data, and about known failures."""
    for result in report.results:
        if result.elements and result.kinks > MOST_KINKS * result.elements:
            console.print(
                f"[yellow]note on the suite itself: {result.law.id} ({result.dtype}) had "
                f"{100 * result.kinks / result.elements:.1f} % of its elements at a kink, where the gradient of either "
                "side passes; more than 1 % is too many[/yellow]",
                highlight=False,
            )
    spreads: dict[str, Counter[str]] = {}
    for result in report.results:
        if result.branches:
            spreads.setdefault(result.law.id, Counter()).update(result.branches)
    for law, spread in spreads.items():
        if said := branches(spread):
            console.print(f"[dim]branches of {law}: {said}[/dim]", highlight=False)
    for result in report.results:
        for outcome in result.expected_failures:
            colour = "dim" if outcome.fails else "bold yellow"
            console.print(
                f"[{colour}]{result.law.id} ({result.dtype}) {escape(outcome.said)}[/{colour}]", highlight=False
            )


def show_laws(console: Console, laws: list[Law]) -> None:
    """Every law with its kind, its sentence and its equation."""
    for law in laws:
        console.print(f"[bold]{law.id}[/bold] [dim]({law.kind})[/dim]  {escape(law.sentence)}", highlight=False)
        console.print(f"    {escape(law.equation)}", style="dim", highlight=False)
