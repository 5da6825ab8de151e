"""The command line: ``python -m benchmarks run`` and ``python -m benchmarks report``."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.costs.busy import busy_command
from benchmarks.costs.packing import packing_command
from benchmarks.costs.scaling import scaling_command
from benchmarks.gpu.aot import aot_command
from benchmarks.gpu.baked import bake_command
from benchmarks.gpu.proofs import prove_command
from benchmarks.gpu.tune import tune_command
from benchmarks.judged.command import peers_command
from benchmarks.speed.cases import SHAPES, SUITES, Part, parse
from benchmarks.speed.operations import BYTES, DIRECTIONS, OPS, Case
from benchmarks.speed.rows.all_rows import PEERS, YARDSTICKS

if TYPE_CHECKING:
    from benchmarks.speed.measure import Bench, Measurement

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def main() -> None:
    """Measure the speed of each operation, and compare it with other packages and with the limits of this machine."""


@main.command("run")
@click.option("--suite", type=click.Choice(tuple(SUITES)), help="Run a suite: its shapes, peers, rounds and goals.")
@click.option("--op", "ops", type=click.Choice(OPS), multiple=True, help="Only this operation.")
@click.option("--device", type=click.Choice(("cpu", "cuda")), default="cpu", help="Device to run on.")
@click.option(
    "--peers",
    metavar="NAMES",
    default="all",
    help=f"Packages to compare with: all, none, or a comma-separated list of {', '.join(PEERS + YARDSTICKS)}.",
)
@click.option(
    "--shapes", metavar="SHAPES", multiple=True, help=f"Cases: {', '.join(SHAPES)}, or op:BxSxNx…:dtype:direction."
)
@click.option("--dtype", "dtypes", type=click.Choice(tuple(BYTES)), multiple=True, help="Only cases of this dtype.")
@click.option("--direction", type=click.Choice(DIRECTIONS), help="Only this direction.")
@click.option("--backend", "backends", metavar="NAME", multiple=True, help="Only this backend of gatespec's.")
@click.option(
    "--rounds", type=click.IntRange(min=3), help="Rounds of interleaved timing.  [default: 15, or the suite's number]"
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads of PyTorch on a CPU.  [default: PyTorch's choice]")
@click.option("--memory/--no-memory", default=False, help="Measure peak memory on a CPU too.")
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results to this file."
)
@click.option("--update", is_flag=True, help="Keep the other cases that the file of --json has, of the same machine.")
@click.option(
    "--plot", "plot_path", type=click.Path(dir_okay=False, path_type=Path), help="Draw the results as SVG or PNG."
)
def run_command(
    suite: str | None,
    ops: tuple[str, ...],
    device: str,
    peers: str,
    shapes: tuple[str, ...],
    dtypes: tuple[str, ...],
    direction: str | None,
    backends: tuple[str, ...],
    rounds: int | None,
    threads: int | None,
    memory: bool,
    json_path: Path | None,
    update: bool,
    plot_path: Path | None,
) -> None:
    """Judge every contender of every case, then time those that conform, interleaved."""
    from benchmarks.speed import results, table
    from benchmarks.speed.measure import Bench, use_best_rates

    if suite is not None and (shapes or backends or memory or device != "cpu"):
        raise click.UsageError(
            "a suite has its own shapes, backends and device; leave out --suite, or leave out these options"
        )
    before = _to_update(json_path) if update else None
    named = _peers(peers)
    if suite is None:
        parts = [Part(text, named, rounds or 15, memory, backends) for text in shapes or (_usual(device),)]
    else:
        parts = [_within(part, named if peers != "all" else None, rounds) for part in SUITES[suite]]
    kept = [(part, _cases((part.shapes,), ops, dtypes, direction)) for part in parts]
    if not any(cases for _, cases in kept):
        raise click.UsageError("no case is left; leave out --op, --dtype or --direction, or name other --shapes")
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    console, measurements, versions, calls = Console(), [], {}, None
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=sum(len(cases) for _, cases in kept) + (suite is not None))
        if suite is not None:
            from benchmarks.costs import calls as public_calls

            progress.update(task, description="public calls")
            calls = public_calls.rows(max(9, rounds or 0))
            progress.advance(task)
        for part, cases in kept:
            bench = Bench(device, part.peers, part.rounds, part.backends, part.memory)
            for case in cases:
                progress.update(task, description=case.id)
                measurements.append(_measured(bench, case))
                use_best_rates(measurements)
                table.show(console, measurements[-1])
                progress.advance(task)
                versions |= bench.versions()
                if json_path is not None:
                    document = results.document(device, versions, measurements, calls, suite)
                    try:
                        results.write(json_path, document if before is None else results.merged(before, document))
                    except ValueError as error:
                        raise click.ClickException(str(error)) from error
    console.print(f"[dim]{table.LEGEND}[/dim]", highlight=False)
    document = results.document(device, versions, measurements, calls, suite)
    if suite is not None:
        console.print(table.of_goals(document["goals"]), highlight=False)
    if plot_path is not None:
        from benchmarks.report import plots

        plots.draw(plot_path, document["rows"])
    if not any(row["seconds"] for row in document["rows"]):
        click.echo("Error: nothing was timed; see the reasons above.", err=True)
        raise SystemExit(2)
    if any(row["reason"] and row["reason"].startswith("wrong") for row in document["rows"]):
        raise SystemExit(1)


@main.command("report")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--html", "html_path", type=click.Path(dir_okay=False, path_type=Path), default="reports/benchmarks.html")
@click.option("--readme", is_flag=True, help="Update README.md and its pictures from FILE (cpu.json).")
def report_command(files: tuple[Path, ...], html_path: Path, readme: bool) -> None:
    """Draw the committed results, or those in FILES, as one page."""
    from benchmarks.report import page
    from benchmarks.speed import results

    chosen = files or tuple(sorted(RESULTS.glob("*.json")))
    documents = {}
    for path in chosen:
        try:
            documents[path.stem] = results.read(path)
        except ValueError as error:
            if files:
                raise click.UsageError(str(error)) from error
    if not documents:
        raise click.UsageError("there are no results yet; to make some: python -m benchmarks run --json results.json")
    html_path.parent.mkdir(parents=True, exist_ok=True)
    html_path.write_text(page.render(documents), encoding="utf-8")
    click.echo(f"{html_path}: {', '.join(documents)}")
    if readme:
        name = next(iter(documents)) if files else "cpu"
        if name not in documents:
            raise click.UsageError("there is no benchmarks/results/cpu.json; run the suite cpu, or name a FILE")
        _write_readme(name, documents[name])


def _write_readme(name: str, document: dict[str, Any]) -> None:
    from benchmarks.report import plots
    from benchmarks.report import readme as section

    rows, machine = document["rows"], document["machine"]
    where = f"{machine['device']}, {machine['cores']} cores"
    plots.draw_ratios(ROOT / section.BARS, section.without_yardsticks(section.of_goals(rows)), where)
    if section.grows(rows):
        plots.draw_lengths(ROOT / section.LENGTHS, [row for row in rows if row["own"]], where)
    section.rewrite(ROOT / "README.md", name, document)
    click.echo(f"README.md and its pictures: {where}")


def _to_update(path: Path | None) -> dict[str, Any]:
    """The results that a run is to update."""
    from benchmarks.speed import results

    if path is None or not path.exists():
        raise click.UsageError("--update needs --json with a file of earlier results")
    try:
        return results.read(path)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _usual(device: str) -> str:
    return "gpu" if device == "cuda" else "laptop"


def _within(part: Part, peers: tuple[str, ...] | None, rounds: int | None) -> Part:
    """The part of a suite with fewer peers or other rounds, if requested; its yardsticks are not removed."""
    named = part.peers if peers is None else tuple(name for name in part.peers if name in (*peers, *YARDSTICKS))
    return replace(part, peers=named, rounds=rounds or part.rounds)


def _measured(bench: "Bench", case: Case) -> "Measurement":
    from benchmarks.speed import memory

    measurement = bench.measure(case)
    if bench.memory and bench.device == "cpu":
        for entry in measurement.entries:
            if entry.timing is not None and entry.peak_bytes is None:
                try:
                    entry.peak_bytes = memory.of_process(case, entry, bench.peers)
                except RuntimeError as error:
                    click.echo(f"no peak memory of {entry.contender.name} in {case.id}: {error}", err=True)
    return measurement


def _cases(shapes: tuple[str, ...], ops: tuple[str, ...], dtypes: tuple[str, ...], direction: str | None) -> list[Case]:
    try:
        drawn = [case for text in shapes for case in parse(text)]
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return [
        case
        for case in drawn
        if (not ops or case.op in ops)
        and (not dtypes or case.dtype in dtypes)
        and (direction is None or case.direction == direction)
    ]


def _peers(text: str) -> tuple[str, ...]:
    if text in ("all", "none"):
        return PEERS if text == "all" else ()
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in PEERS + YARDSTICKS]
    if unknown:
        known = ", ".join(PEERS + YARDSTICKS)
        raise click.UsageError(f"there is no peer {unknown[0]!r}; name some of {known}, or all, or none")
    return names


main.add_command(aot_command)
main.add_command(busy_command)
main.add_command(scaling_command)
main.add_command(packing_command)
main.add_command(peers_command)
main.add_command(bake_command)
main.add_command(prove_command)
main.add_command(tune_command)
