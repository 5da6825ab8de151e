"""The command ``python -m tests.suite.mutants``: the suite's own score."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from conformance.base.options import EXAMPLES
from conformance.rows import ROWS
from conformance.rows.row import Row
from tests.suite.mutants.planting import TENSOR_OPERATIONS, Setting
from tests.suite.mutants.score import SEEDS, Score, document, in_order, needed, sample, scores


@click.command("mutants", context_settings={"show_default": True})
@click.option("--op", "ops", metavar="NAME", multiple=True, help="Only mutants of this operation.")
@click.option("--mutant", "names", metavar="TEXT", multiple=True, help="Only mutants whose name contains this.")
@click.option(
    "--setting",
    type=click.Choice([each.value for each in Setting]),
    default=Setting.SPECIFICATION.value,
    help="How the suite gets to see the copy; in all but the first only what remains visible counts.",
)
@click.option("--seeds", metavar="N", type=click.IntRange(min=1), default=SEEDS, help="Try each with seeds 0 to N−1.")
@click.option(
    "--unmutated-seeds",
    "unmutated",
    metavar="N",
    type=click.IntRange(min=1),
    help="Copies without a fault: only N seeds.",
)
@click.option("--sample", "count", metavar="N", type=click.IntRange(min=1), help="Only N of them, spread evenly.")
@click.option("--jobs", metavar="J", type=click.IntRange(min=1), default=1, help="Processes at the same time.")
@click.option("--examples", metavar="N", type=click.IntRange(min=1), default=EXAMPLES, help="Cases per law and dtype.")
@click.option(
    "--json", "json_path", metavar="PATH", type=click.Path(dir_okay=False, path_type=Path), help="Write a report."
)
def mutants_command(
    ops: tuple[str, ...],
    names: tuple[str, ...],
    setting: str,
    seeds: int,
    unmutated: int | None,
    count: int | None,
    jobs: int,
    examples: int,
    json_path: Path | None,
) -> None:
    """Run the suite on copies of the reference that each hold a fault, and print how many it catches.

    A mutant counts as caught where a law breaks with all seeds but a tenth (rounded down): with 9 of 10. Laws that
    refuse a copy without a fault spoil every score.

    Exit status: 0 all mutants were caught and no copy without a fault refused, 1 not so, 2 the call was wrong.
    """
    seen = Setting(setting)
    chosen = select(ops, names)
    if seen is not Setting.SPECIFICATION:
        chosen = [mutant for mutant in chosen if mutant.op in TENSOR_OPERATIONS]
    if count is not None:
        chosen = sample(chosen, count)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
    console, start = Console(), time.monotonic()
    found = _collect(console, chosen, tuple(range(seeds)), examples, jobs, seen, unmutated)
    _show(console, found, time.monotonic() - start)
    if json_path is not None:
        whole = json.loads(json_path.read_text(encoding="utf-8")) if json_path.exists() else {}
        whole[seen.value] = document(found, tuple(range(seeds)), examples)
        json_path.write_text(f"{json.dumps(whole, indent=1, ensure_ascii=False)}\n", encoding="utf-8")
    raise SystemExit(0 if all(one.passes for one in found) else 1)


def select(ops: Sequence[str] = (), names: Sequence[str] = ()) -> list[Row]:
    """The mutants that the command line keeps.

    Raises:
        UsageError: there are none.
    """
    known = dict.fromkeys(mutant.op for mutant in ROWS)
    for op in ops:
        if op not in known:
            raise click.UsageError(f"there is no mutant of {op!r}; name one of {', '.join(known)} after --op")
    kept = [mutant for mutant in ROWS if not ops or mutant.op in ops]
    for name in names:
        if not any(name in mutant.name for mutant in kept):
            of = f" of {' or '.join(ops)}" if ops else ""
            raise click.UsageError(
                f"no mutant{of} has {name!r} in its name; `python -m tests.suite.mutants --seeds 1` shows all names"
            )
    return [mutant for mutant in kept if not names or any(name in mutant.name for name in names)]


def _collect(
    console: Console,
    chosen: Sequence[Row],
    seeds: tuple[int, ...],
    examples: int,
    jobs: int,
    setting: Setting,
    unmutated: int | None,
) -> list[Score]:
    found: list[Score] = []
    columns = (
        TextColumn("mutants"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    total = len(chosen) + len({mutant.op for mutant in chosen})
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=total)
        for one in scores(chosen, seeds, examples, jobs, setting, unmutated):
            found.append(one)
            slipped = sum(not each.passes for each in found)
            progress.update(task, advance=1, description=f"[red]{slipped} slipped[/red]" if slipped else "")
    return in_order(found)


def _show(console: Console, found: Sequence[Score], seconds: float) -> None:
    mutants = [one for one in found if one.mutant is not None and one.unseen is None]
    unseen = Counter(one.unseen for one in found if one.unseen is not None)
    if not mutants:
        console.print(f"none of {unseen.total()} mutants can be seen in this setting")
        return
    seeds = len(mutants[0].seeds)
    table = Table(caption=f"caught: with how many of {seeds} seeds a law broke; {needed(seeds)} are needed")
    for column in ("operation", "mutant", "caught", "by"):
        table.add_column(column, justify="right" if column == "caught" else "left", overflow="fold")
    for one in mutants:
        assert one.mutant is not None
        count = f"{one.caught}/{seeds}" if one.passes else f"[red]{one.caught}/{seeds}[/red]"
        by = ", ".join(dict.fromkeys(law.partition(" ")[0].removeprefix(f"{one.op}.") for law in one.laws))
        table.add_row(escape(one.op), escape(one.mutant.name), count, by)
    console.print(table)
    for one in found:
        if one.mutant is None and not one.passes:
            laws = ", ".join(one.laws)
            console.print(f"[red]a copy without a fault is refused:[/red] {escape(laws)}: {escape(one.problem or '')}")
    caught = sum(one.passes for one in mutants)
    console.print(
        f"[bold]{caught} of {len(mutants)} mutants caught[/bold] ({caught / len(mutants):.0%}), each with at least "
        f"{needed(seeds)} of {seeds} seeds, in {seconds:.0f} s",
        highlight=False,
    )
    for why, count in unseen.items():
        console.print(f"{count} more cannot be seen in this setting: {why}", highlight=False)


if __name__ == "__main__":
    mutants_command()
