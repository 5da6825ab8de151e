"""The terminal: a live bar while a target runs, then its table, then the failures in at most fifteen lines each."""

import re
from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from conformance.base.dtypes import FLOATING
from conformance.cases import CHUNK_STEPS
from conformance.diagnosis.cause import LEADING, Cell, Row
from conformance.diagnosis.causes import array_line
from conformance.judge.outcome import LawResult
from conformance.laws import Law, all_laws
from conformance.report import TargetReport
from conformance.report.lines import (
    MOST_KINKS,
    branches,
    counted,
    headline,
    how_to_refuse,
    lines,
    lines_of_cause,
    shown_cell,
)
from conformance.tolerance.compared import ArrayOutcome

SHOWN = 6
"""Number of failures that are shown in detail where no causes were found."""

REASONS = 4
"""Number of reasons that are named why checks were left out; `--verbose` shows all."""


HANG = 4
"""Columns by which the lines that continue a line are indented."""

NARROWEST = 20
"""Columns that a text has in the narrowest terminal."""


def say(console: Console, text: str, start: str = "", hang: int = HANG) -> None:
    """Print marked up text: wrapped in a terminal; in a file or a pipe as one line, which can be searched.

    Args:
        start: what precedes the first line of it.
        hang: columns by which the other lines are indented.
    """
    if not console.is_terminal:
        console.print(f"{start}{text}", highlight=False, soft_wrap=True)
        return
    while text.startswith("\n"):
        console.print()
        text = text[1:]
    for number, line in enumerate(Text.from_markup(text).wrap(console, max(console.width - hang, NARROWEST))):
        line.rstrip()
        console.print(Text(start if number == 0 else " " * hang) + line, highlight=False, soft_wrap=True)


def _say_all(console: Console, told: list[tuple[str, str]]) -> None:
    for word, said in told:
        start = f"    {word:<9} "
        if word == "again" and console.is_terminal:
            said = _command(said, max(console.width - len(start), NARROWEST))
        say(console, escape(said), start, hang=len(start))


def _command(command: str, width: int) -> str:
    """A command in lines that a shell takes as one; a quoted argument stays whole."""
    lines = [""]
    for word in re.findall(r"(?:'[^']*'|[^\s'])+", command):
        if lines[-1] and len(lines[-1]) + len(word) + 3 > width:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)


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


def show(console: Console, report: TargetReport, *, verbose: bool = False) -> None:
    """Show a report: of a target that passes one screen, of others the causes first.

    Args:
        verbose: whether every law, every reason and the branches of gradients are shown, too.
    """
    if report.diagnosis.causes:
        _show_causes(console, report)
        _show_envelopes(console, report)
    failures = report.failures
    # Where there are causes, one failure is shown in detail; the others differ in the law and the dtype.
    shown = [_foremost(report)] if report.diagnosis.causes and failures else failures[:SHOWN]
    for result in shown:
        say(console, f"\n[red bold]✗[/red bold] {escape(headline(result))}")
        _say_all(console, lines(report, result))
    if len(failures) > len(shown) and not report.diagnosis.causes:
        ids = ", ".join(dict.fromkeys(f"{result.law.id} ({result.dtype})" for result in failures[SHOWN:]))
        say(console, f"[red]… and {len(failures) - SHOWN} more:[/red] {escape(ids)}")
    if refusing := how_to_refuse(report):
        say(console, f"\n[yellow]{escape(refusing)}[/yellow]")
    if failures:
        console.print()
    console.print(_table_of_laws(report) if verbose else _table_of_operations(report))
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    counts = ", ".join(f"{report.count(status)} {status}" for status in ("passed", "failed", "not served", "skipped"))
    counts += "".join(
        f", {report.count(status)} {status}"
        for status in ("differs", "known", "fixed", "suite failed")
        if report.count(status)
    )
    say(
        console,
        f"[bold]{escape(report.target)}[/bold]: {counts} in {report.seconds:.0f} s "
        f"({versions}, {report.device}, seed {report.options.seed})",
    )
    for result in report.results:
        if result.status == "suite failed":
            told = f"{result.law.id} ({result.dtype}): {result.reason}; please report it"
            say(console, f"[red]{escape(told)}[/red]")
    _show_differences(console, report)
    _show_left_out(console, report, verbose)
    _show_notes(console, report, verbose)
    if report.options.quick:
        say(console, f"[dim]{escape(_not_judged(report))}[/dim]")
    console.print()


ABSENT = "absent: "

SOME_LAWS = 6
"""Number of laws that the line about a quick run names."""


def _not_judged(report: TargetReport) -> str:
    """The laws, dtypes and lengths that a quick run left out, of the operations that the target has, on one line."""
    ops = {result.law.op for result in report.results if not (result.reason or "").startswith(ABSENT)}
    tried = {result.law.id for result in report.results}
    laws = dict.fromkeys(law.name for law in all_laws() if law.op in ops and law.id not in tried)
    dtypes = [dtype for dtype in FLOATING if all(result.dtype != dtype for result in report.results)]
    some = f"{len(laws)} laws, such as {', '.join([*laws][:SOME_LAWS])}"
    said = [some] * bool(laws) + [", ".join(dtypes)] * bool(dtypes)
    said.append(f"sequences of more than {min(report.options.max_steps, max(CHUNK_STEPS))} steps")
    return f"not judged by --quick: {'; '.join(said)}"


def _show_causes(console: Console, report: TargetReport) -> None:
    """The first causes in a few lines each; the others in one line."""
    diagnosis = report.diagnosis
    first, rest = diagnosis.causes[:LEADING], diagnosis.causes[LEADING:]
    checks = {check for cause in diagnosis.causes for check in cause.explains}
    said = f"{counted(len(diagnosis.causes), 'cause')} of {counted(len(checks), 'failed check')}"
    said = f"{said}; the first {LEADING}" if rest else said
    say(console, f"\n[red bold]{said}[/red bold]")
    for number, cause in enumerate(first, 1):
        say(console, f"\n[red bold]{number}.[/red bold] {escape(cause.sentence)}")
        _say_all(console, lines_of_cause(cause))
    if rest:
        told = "; ".join(f"{cause.sentence} ({len(cause.explains)})" for cause in rest)
        say(console, f"\n[red]… and {len(rest)} more:[/red] {escape(told)}")
    if diagnosis.note:
        say(console, f"[yellow]{escape(diagnosis.note)}[/yellow]")


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
        say(console, f"\n[bold]{envelope.op}[/bold]: {escape(envelope.summary)}")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 4))
        table.add_column("a call with")
        for dtype in envelope.dtypes:
            table.add_column(dtype)
        shown = wrong if len(wrong) < len(envelope.rows) / 2 else [row for row in envelope.rows if row not in wrong]
        for row in shown:
            table.add_row(
                row.feature,
                *(shown_cell(row.cells[dtype].value, row.cells[dtype].gradient) for dtype in envelope.dtypes),
            )
        if shown:
            console.print(table)
        if len(shown) < len(envelope.rows):
            others = [row for row in envelope.rows if row not in shown]
            said = f"of {len(others)} other kinds of call, {_counted(others)}; --json shows all of them"
            say(console, f"[dim]{said}[/dim]", " " * HANG, hang=2 * HANG)


def _counted(rows: list[Row]) -> str:
    """The numbers of features that are wrong, right, refused, …: each by its first such word in any dtype."""
    words = {"wrong": "wrong", "right": "right", "not served": "refused"}
    counts: Counter[str] = Counter()
    for row in rows:
        statuses = {status for each in row.cells.values() for status in (each.value, each.gradient)}
        counts[next((said for status, said in words.items() if status in statuses), "not tried")] += 1
    return ", ".join(f"{counts[said]} {said}" for said in (*words.values(), "not tried") if counts[said])


def _is_wrong(cell: Cell) -> bool:
    return "wrong" in (cell.value, cell.gradient)


def _table_of_operations(report: TargetReport) -> Table:
    """A row for each operation: its laws, dtypes and cases, and the worst error of those that held."""
    table = Table(title=escape(report.target), title_justify="left", box=None)
    table.add_column("operation")
    for name in ("laws", "dtypes", "cases", "worst error / tolerance"):
        table.add_column(name, justify="right")
    judged: dict[str, list[LawResult]] = {}
    for result in report.results:
        if result.judged:
            judged.setdefault(result.law.op, []).append(result)
    for op, results in judged.items():
        laws, dtypes = ({of(each) for each in results} for of in (lambda r: r.law.id, lambda r: r.dtype))
        worst = max((each.worst for each in results if each.worst is not None), default=None)
        broken = any(each.status == "failed" for each in results)
        others = {"differs": "[yellow]≠[/yellow]", "known": "[yellow]k[/yellow]"}
        said = (others[each.status] for each in results if each.status in others)
        sign = "[red]✗[/red]" if broken else next(said, "[green]✓[/green]")
        cases = sum(each.examples for each in results)
        table.add_row(op, *map(str, (len(laws), len(dtypes), cases)), f"{_short(worst)}{sign}")
    return table


def _table_of_laws(report: TargetReport) -> Table:
    table = Table(title=escape(report.target), title_justify="left", caption="worst error / tolerance", box=None)
    table.add_column("law")
    dtypes = [dtype for dtype in FLOATING if any(result.dtype == dtype for result in report.results)]
    for dtype in dtypes:
        table.add_column(dtype, justify="right")
    cells = {(result.law.id, result.dtype): result for result in report.results}
    for law in dict.fromkeys(each.law.id for each in report.results if not (each.reason or "").startswith(ABSENT)):
        table.add_row(law, *(_cell(cells.get((law, dtype))) for dtype in dtypes))
    return table


def _cell(result: LawResult | None) -> str:
    if result is None:
        return ""
    if not result.judged:
        return "[dim]–[/dim]" if result.status == "skipped" else f"[yellow]{result.status}[/yellow]"
    worst = _short(result.worst)
    marks = {
        "passed": "[green]✓[/green]",
        "differs": "[yellow]≠[/yellow]",
        "known": "[yellow]k[/yellow]",
        "fixed": "[bold yellow]![/bold yellow]",
    }
    return f"{worst}{marks[result.status]}" if result.status in marks else f"[red]{worst}✗[/red]"


def _short(worst: float | None) -> str:
    return "" if worst is None else f"{worst:.2f} " if worst < 100 else f"{worst:.0e} "


def _show_differences(console: Console, report: TargetReport) -> None:
    """The laws about gatespec's own decisions that the target breaks, and by how much."""
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
    if said:
        say(console, f"[yellow]differs from gatespec's contract in: {escape('; '.join(said))}[/yellow]")


def _show_left_out(console: Console, report: TargetReport, verbose: bool) -> None:
    reasons: dict[tuple[str, str], list[str]] = {}
    absent: dict[str, None] = {}
    for result in report.results:
        if result.judged:
            continue
        reason = result.reason or ""
        if reason.startswith(ABSENT):
            absent |= dict.fromkeys(reason.removeprefix(ABSENT).split(", "))
        else:
            reasons.setdefault((result.status, reason), []).append(result.law.id)
    if absent:
        say(console, f"[dim]{ABSENT}{escape(', '.join(absent))}[/dim]")
    if verbose:
        for (status, reason), laws in reasons.items():
            names = ", ".join(dict.fromkeys(laws))
            say(console, f"[dim]{status} {escape(names)}: {escape(reason)}[/dim]")
    elif reasons:
        ordered = sorted(reasons.items(), key=lambda each: -len(each[1]))
        told = [f"{reason} ({len(laws)} {status})" for (status, reason), laws in ordered[:REASONS]]
        more = f"; {len(ordered) - REASONS} more reasons, with --verbose" if len(ordered) > REASONS else ""
        checks = sum(map(len, reasons.values()))
        say(console, f"[dim]{checks} checks left out: {escape('; '.join(told))}{more}[/dim]")
    partly = [result for result in report.results if result.judged and result.refused.cases]
    for features, results in _by_features(partly).items():
        names = ", ".join(dict.fromkeys(result.law.id for result in results))
        served = sum(result.examples for result in results)
        tried = served + sum(result.refused.cases for result in results)
        without = f"; the others were judged without {features}" if features else ""
        reason = results[0].refused.reason
        say(
            console,
            f"[yellow]{served} of {tried} cases served[/yellow] [dim]of {names}: {escape(reason)}{without}[/dim]",
        )


def _by_features(results: list[LawResult]) -> dict[str, list[LawResult]]:
    groups: dict[str, list[LawResult]] = {}
    for result in results:
        groups.setdefault(", ".join(sorted(result.refused.features)), []).append(result)
    return groups


def _show_notes(console: Console, report: TargetReport, verbose: bool) -> None:
    """The suite's notes about its own data, and about known failures."""
    for result in report.results:
        # A failed law was tried on cases that are chosen for being small, or simple, and perhaps on few of its own.
        if result.status != "failed" and result.elements and result.kinks > MOST_KINKS * result.elements:
            share = 100 * result.kinks / result.elements
            say(
                console,
                f"[yellow]{share:.1f} % of the elements of {result.law.id} ({result.dtype}) are at a kink, where the "
                "gradient of either side passes: a fault of the suite's own cases, not of the target, which needs no "
                "change; please report it with the seed[/yellow]",
            )
    spreads: dict[str, Counter[str]] = {}
    for result in report.results:
        if result.branches and verbose:
            spreads.setdefault(result.law.id, Counter()).update(result.branches)
    for law, spread in spreads.items():
        if said := branches(spread):
            say(console, f"[dim]branches of {law}: {said}[/dim]")
    for result in report.results:
        if result.status in ("known", "fixed"):
            colour = "dim" if result.status == "known" else "bold yellow"
            said = f"{result.law.id} ({result.dtype}) {result.reason}"
            say(console, f"[{colour}]{escape(said)}[/{colour}]")
    for said in report.unmatched:
        say(console, f"[bold yellow]{escape(said)}[/bold yellow]")


def show_laws(console: Console, laws: list[Law]) -> None:
    """Every law with its kind, its sentence and its equation."""
    for law in laws:
        say(console, f"[bold]{law.id}[/bold] [dim]({law.kind})[/dim]  {escape(law.sentence)}")
        say(console, f"[dim]{escape(law.equation)}[/dim]", " " * HANG, hang=2 * HANG)
