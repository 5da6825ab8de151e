"""``python -m benchmarks busy``: the cost of a call while other processes compute, as a data loader does.

A library that opens a parallel region for each small piece of work waits at its end for a thread that the system has
put aside. Every contender is judged and timed as in a suite, first alone, then with each busy process on a core.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.speed import results
from benchmarks.speed.cases import SHAPES
from benchmarks.speed.measure import Bench, Measurement
from benchmarks.speed.operations import Case
from benchmarks.speed.table import seconds

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cpu-speed.md"
BEGIN, END = "<!-- busy: made by `python -m benchmarks busy` -->", "<!-- /busy -->"
PEERS, BACKENDS = ("mlstm_kernels", "torch_gru"), ("torch", "xla")
WORK = """
import numpy, os, sys
a, parent = numpy.ones((256, 256)) / 256, int(sys.argv[1])
print(flush=True)
while os.getppid() == parent:
    a = a @ a
"""
"""One thread that multiplies small matrices until it is ended or its parent, whose process number is the argument, has
ended; it prints a line when it begins."""


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Inside this context, so many other processes compute.

    Raises:
        RuntimeError: one of them ended before the context did.
    """
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    words, environment = [sys.executable, "-c", WORK, str(os.getpid())], {**os.environ, **one_thread}
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, env=environment) for _ in range(processes)]
    try:
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        yield
        if any(process.poll() is not None for process in running):
            raise RuntimeError("a busy process ended too early, so that the times are not those next to it")
    finally:
        for process in running:
            process.kill()
            process.communicate()


@dataclass(frozen=True)
class Busy:
    """One contender in one case: seconds a call, the median over rounds.

    Attributes:
        reason: why there is no time; None if there is one.
        slowest: seconds a call in the slowest round next to busy processes.
    """

    case: str
    contender: str
    reason: str | None
    alone: float | None = None
    busy: float | None = None
    slowest: float | None = None


def measured(case: Case, rounds: int, processes: int) -> list[Busy]:
    """Every contender of a case, alone and next to busy processes."""
    alone = Bench("cpu", PEERS, rounds, BACKENDS).measure(case)
    with busy(processes):
        loaded = Bench("cpu", PEERS, rounds, BACKENDS).measure(case)
    return [_row(case, *pair) for pair in zip(_own_and_peers(alone), _own_and_peers(loaded), strict=True)]


def _own_and_peers(measurement: Measurement) -> list[Any]:
    return [entry for entry in measurement.entries if "cpu" in entry.contender.devices]


def _row(case: Case, alone: Any, loaded: Any) -> Busy:
    reason = alone.reason or loaded.reason
    if reason is not None:
        return Busy(case.id, alone.contender.name, reason)
    times = alone.timing.median, loaded.timing.median, max(loaded.timing.rounds)
    return Busy(case.id, alone.contender.name, None, *times)


def section(document: dict[str, Any]) -> str:
    """The part of ``docs/cpu-speed.md`` between its marks."""
    found = document.get("busy")
    if found is None:
        return "Not measured yet; `python -m benchmarks busy` measures it."
    machine = found["machine"]
    threads = machine["versions"].get("torch threads")
    where = f"{machine['cores']} cores of an {machine['device']}, {threads} threads of PyTorch"
    lines = [
        f"{where}, {found['processes']} busy processes; medians of {found['rounds']} rounds, and the slowest round.",
        "",
        "| case | contender | alone | next to busy processes | slowest round | busy over alone |",
        "|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        if row["reason"] is None:
            times = " | ".join(seconds(row[name]) for name in ("alone", "busy", "slowest"))
            lines.append(f"| {row['case']} | {row['contender']} | {times} | {row['busy'] / row['alone']:.2f} |")
    return "\n".join(lines)


def rewrite(page: Path, document: dict[str, Any]) -> None:
    """Replace the part of ``page`` between its marks.

    Raises:
        ValueError: the file has no such part.
    """
    before, found, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"{page} has no lines {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{section(document)}\n{END}{after}", encoding="utf-8")


@click.command("busy")
@click.option("--shapes", type=click.Choice(tuple(SHAPES)), default="busy", help="Group of cases.")
@click.option("--processes", type=click.IntRange(min=1), default=2, help="Number of busy processes.")
@click.option("--rounds", type=click.IntRange(min=3), default=9, help="Rounds of interleaved timing.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=ROOT / "benchmarks" / "results" / "cpu.json",
    help="Results of a suite, to which these are added.",
)
@click.option("--page", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=PAGE)
def busy_command(shapes: str, processes: int, rounds: int, json_path: Path, page: Path) -> None:
    """Time calls alone and next to busy processes; add the results to a suite's, and draw the table of cpu-speed.md."""
    import torch

    try:
        document = results.read(json_path)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    rows: list[Busy] = []
    for case in SHAPES[shapes]:
        rows += (found := measured(case, rounds, processes))
        for row in found:
            said = row.reason or f"{seconds(row.alone or 0.0)} alone, {seconds(row.busy or 0.0)} next to busy processes"
            click.echo(f"{row.case}, {row.contender}: {said}")
    versions = {"torch": str(torch.__version__), "torch threads": str(torch.get_num_threads())}
    document["busy"] = {
        "machine": results.machine("cpu", versions),
        "processes": processes,
        "rounds": rounds,
        "rows": [vars(row) for row in rows],
    }
    results.write(json_path, document)
    rewrite(page, document)
    click.echo(f"{json_path}, {page}")
