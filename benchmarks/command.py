"""The command line: ``python -m benchmarks run`` and ``python -m benchmarks report``."""

from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.aot import aot_command
from benchmarks.cases import BYTES, DIRECTIONS, OPS, SHAPES, Case, parse
from benchmarks.contenders import PEERS
from benchmarks.tune import tune_command

RESULTS = Path(__file__).parent / "results"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def main() -> None:
    """What is fast, by how much, beside which peers, and how far from the machine's own limits."""


@main.command("run")
@click.option("--op", "ops", type=click.Choice(OPS), multiple=True, help="Only this operation.")
@click.option("--device", type=click.Choice(("cpu", "cuda")), default="cpu", help="Where it runs.")
@click.option("--peers", metavar="NAMES", default="all", help=f"all, none, or some of {', '.join(PEERS)} with commas.")
@click.option("--shapes", metavar="SHAPES", multiple=True, help=f"{', '.join(SHAPES)}, or op:BxSxNx…:dtype:direction.")
@click.option("--dtype", "dtypes", type=click.Choice(tuple(BYTES)), multiple=True, help="Only cases of this dtype.")
@click.option("--direction", type=click.Choice(DIRECTIONS), help="Only this direction.")
@click.option("--backend", "backends", metavar="NAME", multiple=True, help="Only this one of our own backends.")
@click.option("--rounds", type=click.IntRange(min=3), default=15, help="Of interleaved timing.")
@click.option("--threads", type=click.IntRange(min=1), help="Of PyTorch on a CPU; else its own choice.")
@click.option("--memory/--no-memory", default=False, help="Peak memory on a CPU too: two processes a contender.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Where results go.")
@click.option("--plot", "plot_path", type=click.Path(dir_okay=False, path_type=Path), help="An SVG or PNG of them.")
def run_command(
    ops: tuple[str, ...],
    device: str,
    peers: str,
    shapes: tuple[str, ...],
    dtypes: tuple[str, ...],
    direction: str | None,
    backends: tuple[str, ...],
    rounds: int,
    threads: int | None,
    memory: bool,
    json_path: Path | None,
    plot_path: Path | None,
) -> None:
    """Judge every contender of every case, then time those that conform, interleaved."""
    from benchmarks import memory as processes
    from benchmarks import results, table
    from benchmarks.measure import Bench

    cases = _cases(shapes or ("gpu" if device == "cuda" else "laptop",), ops, dtypes, direction)
    named = _peers(peers)
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    bench, console, measurements = Bench(device, named, rounds, backends), Console(), []
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=len(cases))
        for case in cases:
            progress.update(task, description=case.id)
            measurement = bench.measure(case)
            if memory and device == "cpu":
                for entry in measurement.entries:
                    if entry.timing is not None:
                        entry.peak_bytes = processes.of_process(case, entry, named)
            measurements.append(measurement)
            table.show(console, measurement)
            progress.advance(task)
            if json_path is not None:
                results.write(json_path, device, bench.versions(), measurements)
    console.print(f"[dim]{table.LEGEND}[/dim]", highlight=False)
    if plot_path is not None:
        from benchmarks import plots

        plots.draw(plot_path, [row for each in measurements for row in results.rows(each)])
    if not any(entry.timing for each in measurements for entry in each.entries):
        click.echo("Error: nothing was timed; see the reasons above.", err=True)
        raise SystemExit(2)
    if any(entry.reason and entry.reason.startswith("wrong") for each in measurements for entry in each.entries):
        raise SystemExit(1)


@main.command("report")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--html", "html_path", type=click.Path(dir_okay=False, path_type=Path), default="reports/benchmarks.html")
def report_command(files: tuple[Path, ...], html_path: Path) -> None:
    """Draw committed results, or those of FILES, as one page."""
    from benchmarks import page, results

    chosen = files or tuple(sorted(RESULTS.glob("*.json")))
    documents = {}
    for path in chosen:
        try:
            documents[path.stem] = results.read(path)
        except ValueError as error:
            if files:
                raise click.UsageError(str(error)) from error
    if not documents:
        raise click.UsageError("there are no results yet; make some: python -m benchmarks run --json results.json")
    html_path.parent.mkdir(parents=True, exist_ok=True)
    html_path.write_text(page.render(documents), encoding="utf-8")
    click.echo(f"{html_path}: {', '.join(documents)}")


def _cases(shapes: tuple[str, ...], ops: tuple[str, ...], dtypes: tuple[str, ...], direction: str | None) -> list[Case]:
    try:
        drawn = [case for text in shapes for case in parse(text)]
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    kept = [
        case
        for case in drawn
        if (not ops or case.op in ops)
        and (not dtypes or case.dtype in dtypes)
        and (direction is None or case.direction == direction)
    ]
    if not kept:
        raise click.UsageError("no case is left; take away --op, --dtype or --direction, or name other --shapes")
    return kept


def _peers(text: str) -> tuple[str, ...]:
    if text in ("all", "none"):
        return PEERS if text == "all" else ()
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise click.UsageError(f"there is no peer {unknown[0]!r}; name some of {', '.join(PEERS)}, or all, or none")
    return names


main.add_command(aot_command)
main.add_command(tune_command)
