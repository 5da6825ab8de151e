"""The command line of the cost of packed sequences: ``python -m benchmarks packing``."""

from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks import results
from benchmarks.packing import DENSE, FRAMEWORKS, OPS, Cost, costs


@click.command("packing")
@click.option("--framework", "frameworks", type=click.Choice(FRAMEWORKS), multiple=True, help="Only this one.")
@click.option("--op", "ops", type=click.Choice(OPS), multiple=True, help="Only this operation.")
@click.option("--tokens", type=click.IntRange(min=1000), default=30000, help="Of all sequences together.")
@click.option("--heads", type=click.IntRange(min=1), default=2)
@click.option("--dim", type=click.IntRange(min=1), default=16, help="K and V of the mLSTM, H of the GRU.")
@click.option("--states/--no-states", default=False, help="Request the final states, which have a cotangent.")
@click.option("--rounds", type=click.IntRange(min=3), default=5, help="Of interleaved timing.")
@click.option("--threads", type=click.IntRange(min=1), help="Of PyTorch; else its own choice.")
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results to this file."
)
def packing_command(
    frameworks: tuple[str, ...],
    ops: tuple[str, ...],
    tokens: int,
    heads: int,
    dim: int,
    states: bool,
    rounds: int,
    threads: int | None,
    json_path: Path | None,
) -> None:
    """Measure time and memory of both passes over the same tokens, split into sequences in eleven ways, and dense."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    console, rows = Console(), []
    for framework in frameworks or FRAMEWORKS:
        for op in ops or OPS:
            found = costs(framework, op, tokens, heads, dim, rounds, states)
            console.print(_table(f"{op}, {framework}: {tokens} tokens, {heads} heads of {dim}", found))
            rows += [{"framework": framework, "op": op, **asdict(cost)} for cost in found]
    if json_path is not None:
        versions = {name: version(name) for name in frameworks or FRAMEWORKS}
        sizes = {"tokens": tokens, "heads": heads, "dim": dim, "states": states, "rounds": rounds, "threads": threads}
        results.write(json_path, {"machine": results.machine("cpu", versions), **sizes, "rows": rows})


def _table(title: str, found: list[Cost]) -> Table:
    splits = [cost for cost in found if cost.split != DENSE]
    least, smallest = min(cost.seconds for cost in splits), min(cost.peak_bytes for cost in splits)
    table = Table(title=title, title_justify="left", caption="Ratios to the cheapest split.")
    table.add_column("split")
    for name in ("sequences", "longest", "ms", "ratio", "MiB", "ratio"):
        table.add_column(name, justify="right")
    for cost in found:
        table.add_row(
            cost.split,
            str(cost.sequences),
            str(cost.longest),
            f"{cost.seconds * 1e3:.1f}",
            f"{cost.seconds / (least + cost.alone):.2f}",
            f"{cost.peak_bytes / 2**20:.0f}",
            f"{cost.peak_bytes / smallest:.2f}",
        )
    return table
