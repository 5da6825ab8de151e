"""The command ``python -m tests.suite.calibration``: how often the tolerance refuses an implementation that is right.

It is the measurement behind `conformance.budget`. A variant is a way in which a real kernel computes an operation: one
step after the other, in chunks, all steps at once, in another order of operations, with compensated sums, with 16-bit
operands. All of them are right, so each one that is refused is a false alarm. None shares code with `reference`.
"""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.suite.calibration import results
from tests.suite.calibration.scoring import Score, calibrate
from tests.suite.calibration.subjects import SUBJECTS

CASES = 10_000


@click.command("calibration", context_settings={"show_default": True})
@click.option("--op", "ops", metavar="NAME", multiple=True, help="Only this operation; all of them by default.")
@click.option("--cases", metavar="N", type=click.IntRange(min=1), default=CASES, help="Cases per operation.")
@click.option("--seed", metavar="N", type=int, default=0, help="From which all cases are drawn.")
@click.option("--jobs", metavar="J", type=click.IntRange(min=1), default=1, help="Operations at a time.")
@click.option(
    "--json",
    "json_path",
    metavar="PATH",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Kept here, operation by operation; what already stands there for the budget of now is not measured again.",
)
def calibrate_command(ops: tuple[str, ...], cases: int, seed: int, jobs: int, json_path: Path | None) -> None:
    """Count the false alarms of the error budget.

    Every correct variant of an operation is judged on cases drawn from the laws' own strategies, value and gradient.

    Exit status: 0 no false alarm, 1 at least one, 2 the call was wrong.
    """
    unknown = [op for op in ops if op not in SUBJECTS]
    if unknown:
        raise click.UsageError(f"there is nothing to calibrate in {unknown[0]!r}; name one of {', '.join(SUBJECTS)}")
    if json_path is not None and not json_path.parent.is_dir():
        raise click.UsageError(f"--json {json_path} cannot be written; make the directory {json_path.parent} first")
    kept = {} if json_path is None else results.load(json_path)
    wanted = list(dict.fromkeys(ops)) or list(SUBJECTS)
    missing = [op for op in wanted if not results.holds(kept, op, cases, seed)]
    console = Console()
    for op, scores in _measured(missing, cases, seed, jobs, console):
        _explain(console, scores)
        kept[op] = results.as_json(op, scores, cases, seed)
        if json_path is not None:
            results.save(json_path, {name: kept[name] for name in SUBJECTS if name in kept})
    shown = {op: kept[op] for op in wanted}
    for op, of in shown.items():
        console.print(_table(op, of))
    alarms = sum(of["false_alarms"] for op in shown.values() for of in op["variants"].values())
    console.print(f"{alarms} false alarms; constants {results.constants()}")
    raise SystemExit(1 if alarms else 0)


def _measured(ops: list[str], cases: int, seed: int, jobs: int, console: Console) -> Iterator[tuple[str, list[Score]]]:
    with Progress(console=console, transient=True) as progress:
        if jobs == 1:
            for op in ops:
                task = progress.add_task(op, total=cases)
                yield op, calibrate(SUBJECTS[op], cases, seed, lambda count, task=task: progress.advance(task, count))
            return
        task = progress.add_task("operations", total=len(ops))
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            pending = {pool.submit(_calibrate, op, cases, seed): op for op in ops}
            for done in as_completed(pending):
                progress.advance(task)
                yield pending[done], done.result()


def _calibrate(op: str, cases: int, seed: int) -> list[Score]:
    return calibrate(SUBJECTS[op], cases, seed)


def _explain(console: Console, scores: list[Score]) -> None:
    """The first few alarms, with their cases: there ought to be none."""
    for score in scores:
        for where, (dtype, case) in score.refused[:3]:
            console.print(f"[red]refused[/red] {score.op}, {score.variant}, {dtype}: {where} of {case.describe()}")


def _table(op: str, of: dict) -> Table:
    table = Table(title=f"{op}: correct variants, error over budget", title_justify="left")
    table.add_column("variant", overflow="fold")
    for heading in ("cases", "false alarms", "worst", "before rounding", "median", "99 %", "99.9 %"):
        table.add_column(heading, justify="right")
    for variant, found in of["variants"].items():
        quantiles = (f"{found['quantiles'][q]:.2f}" for q in ("0.5", "0.99", "0.999"))
        ratios = (f"{found[name]:.2f}" for name in ("worst", "unrounded"))
        table.add_row(variant, str(found["cases"]), str(found["false_alarms"]), *ratios, *quantiles)
    return table


if __name__ == "__main__":
    calibrate_command()
