"""The command ``python -m tests.suite.calibration``: how often the tolerance refuses an implementation that is right.

It is the measurement behind `conformance.tolerance.budget`. A variant is a way in which a real kernel computes an
operation: one step after the other, in chunks, all steps at once, in another order of operations, with compensated
sums, with 16-bit operands. All of them are right, so each one that is refused is a false alarm. None shares code with
`reference`.
"""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from tests.suite.calibration import results
from tests.suite.calibration.scoring import Score, calibrate
from tests.suite.calibration.subjects import SUBJECTS, Subject


@click.command("calibration", context_settings={"show_default": True})
@click.option("--op", "ops", metavar="NAME", multiple=True, help="Only this operation; all of them by default.")
@click.option("--variant", "text", metavar="TEXT", default="", help="Only variants whose name contains this.")
@click.option("--cases", metavar="N", type=click.IntRange(min=1), help="Cases per variant.  [default: the subject's]")
@click.option("--seed", metavar="N", type=int, default=0, help="From which all cases are drawn.")
@click.option("--jobs", metavar="J", type=click.IntRange(min=1), default=1, help="Processes at the same time.")
@click.option(
    "--json",
    "json_path",
    metavar="PATH",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Results are kept here; a variant that was measured with the present tolerance is not measured again.",
)
def calibrate_command(
    ops: tuple[str, ...], text: str, cases: int | None, seed: int, jobs: int, json_path: Path | None
) -> None:
    """Count the false alarms of the tolerance.

    Every correct variant of an operation is judged on cases drawn from the laws' own strategies, value and gradient.

    Exit status: 0 no false alarm, 1 at least one, 2 the call was wrong.
    """
    known = dict.fromkeys(subject.op for subject in SUBJECTS.values())
    unknown = [op for op in ops if op not in known]
    if unknown:
        raise click.UsageError(f"there is nothing to calibrate in {unknown[0]!r}; name one of {', '.join(known)}")
    if json_path is not None and not json_path.parent.is_dir():
        raise click.UsageError(f"--json {json_path} cannot be written; make the directory {json_path.parent} first")
    kept = {} if json_path is None else results.load(json_path)
    wanted = [subject for subject in SUBJECTS.values() if not ops or subject.op in ops]
    missing = {
        subject.name: [name for name in results.missing(kept, subject, cases or subject.cases, seed) if text in name]
        for subject in wanted
    }
    console = Console()
    for name, scores in _measured({name: of for name, of in missing.items() if of}, cases, seed, jobs, console):
        _explain(console, scores)
        results.add(kept, SUBJECTS[name], scores, cases or SUBJECTS[name].cases, seed)
        if json_path is not None:
            results.save(json_path, {name: kept[name] for name in SUBJECTS if name in kept})
    shown = {subject.name: kept[subject.name] for subject in wanted if subject.name in kept}
    for name, of in shown.items():
        console.print(_table(name, of))
    alarms = sum(of["false_alarms"] for subject in shown.values() for of in subject["variants"].values())
    console.print(f"{alarms} false alarms; constants {results.constants()}")
    raise SystemExit(1 if alarms else 0)


def _measured(
    missing: dict[str, list[str]], cases: int | None, seed: int, jobs: int, console: Console
) -> Iterator[tuple[str, list[Score]]]:
    """The scores of the named variants of each subject, as they become ready."""
    with Progress(console=console, transient=True) as progress:
        if jobs == 1:
            for name, variants in missing.items():
                task = progress.add_task(name, total=cases or SUBJECTS[name].cases)

                def tick(count: int, task: TaskID = task) -> None:
                    progress.advance(task, count)

                yield name, calibrate(_of_variants(name, variants), cases or SUBJECTS[name].cases, seed, tick)
            return
        task = progress.add_task("subjects", total=len(missing))
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            pending = {pool.submit(_calibrate, name, of, cases, seed): name for name, of in missing.items()}
            for done in as_completed(pending):
                progress.advance(task)
                yield pending[done], done.result()


def _of_variants(name: str, variants: list[str]) -> Subject:
    subject = SUBJECTS[name]
    return replace(subject, variants={variant: subject.variants[variant] for variant in variants})


def _calibrate(name: str, variants: list[str], cases: int | None, seed: int) -> list[Score]:
    return calibrate(_of_variants(name, variants), cases or SUBJECTS[name].cases, seed)


def _explain(console: Console, scores: list[Score]) -> None:
    """The first few alarms, with their cases: there ought to be none."""
    for score in scores:
        for where, (dtype, case) in score.refused[:3]:
            console.print(f"[red]refused[/red] {score.subject}, {score.variant}, {dtype}: {where} of {case.describe()}")


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
