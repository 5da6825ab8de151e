"""Cost of packed sequences by split: the same number of tokens in one sequence, in many, and in very unequal ones.

Cost should follow the work, however it is divided. What a split costs is compared with the cheapest one of the same
tokens; the same tokens as one sequence in a dense call, without ``cu_seqlens``, are measured too. A GRU
computes the steps of a sequence one after another, so that for a GRU the cost of the split's longest sequence alone is
added to that of the cheapest split.
"""

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.speed import results
from benchmarks.speed.memory import forget_high_water_mark, resident
from benchmarks.speed.timing import Run, interleaved, wall_clock

FRAMEWORKS, OPS = ("torch", "jax"), ("mlstm", "gru")


def _equal(length: int, tokens: int) -> list[int]:
    whole, rest = divmod(tokens, length)
    return [length] * whole + [rest] * bool(rest)


def _any_scale(tokens: int) -> list[int]:
    """Lengths of every order of magnitude up to an eighth of the tokens."""
    rng, found = np.random.default_rng(0), []
    while (left := tokens - sum(found)) > 0:
        found.append(min(left, int((tokens / 8) ** rng.uniform())))
    return found


SPLITS: dict[str, Callable[[int], list[int]]] = {
    "one sequence": lambda T: [T],
    "one and many empty": lambda T: [0] * (T // 6) + [T] + [0] * (T // 6),
    "one of 2T/3, then of 1": lambda T: [T - T // 3] + [1] * (T // 3),
    "one of T/2, then of 3": lambda T: [T - T // 2, *_equal(3, T // 2)],
    "of 300": partial(_equal, 300),
    "of 65": partial(_equal, 65),
    "of 64": partial(_equal, 64),
    "of 17": partial(_equal, 17),
    "of 3": partial(_equal, 3),
    "of 1": partial(_equal, 1),
    "of any scale": _any_scale,
}
"""Lengths of the sequences for a number of tokens, by name."""

DENSE = "dense"
"""Name of the call with all tokens as one sequence, and without ``cu_seqlens``."""


@dataclass(frozen=True)
class Cost:
    """Cost of both passes over one split.

    Attributes:
        split: a name of `SPLITS`, or `DENSE`.
        sequences, longest: their number, and the steps of the longest.
        seconds: the median over rounds.
        alone: seconds of the longest sequence alone; 0 for an mLSTM, whose chunks are computed together.
        peak_bytes: maximum memory of a call, not counting its inputs: of PyTorch as measured, of JAX as XLA plans it.
    """

    split: str
    sequences: int
    longest: int
    seconds: float
    alone: float
    peak_bytes: int


def call(framework: str, op: str, lengths: list[int], heads: int, dim: int, states: bool, dense: bool = False) -> Run:
    """Both passes over packed sequences of random numbers, as a function without arguments.

    Args:
        dense: instead, one sequence with all these steps, which is not packed.
        states: whether the final states are requested, and have a cotangent.
    """
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, dtype=np.float32) for shape in _shapes(op, sum(lengths), heads, dim)]
    if op == "gru":
        arrays = [x if number % 2 == 0 else x * dim**-0.5 for number, x in enumerate(arrays)]
    if dense:
        arrays = [x if op == "gru" and number % 2 else x[None] for number, x in enumerate(arrays)]
    return (_torch if framework == "torch" else _jax)(op, arrays, None if dense else np.cumsum([0, *lengths]), states)


def _shapes(op: str, tokens: int, heads: int, dim: int) -> list[tuple[int, ...]]:
    """The shapes of all arguments but ``cu_seqlens``."""
    if op == "gru":
        return [(tokens, heads, dim), (heads, dim, dim)] * 3
    return [(tokens, heads, dim)] * 3 + [(tokens, heads)] * 2


def _torch(op: str, arrays: list[np.ndarray], bounds: np.ndarray | None, states: bool) -> Run:
    import torch

    import torch_impl

    leaves = [torch.from_numpy(x).requires_grad_() for x in arrays]
    cu_seqlens = None if bounds is None else torch.from_numpy(bounds)

    def run() -> None:
        outputs = _outputs(torch_impl, op, leaves, cu_seqlens, states)
        torch.autograd.grad(outputs, leaves, [torch.ones_like(y) for y in outputs])

    return run


def _jax(op: str, arrays: list[np.ndarray], bounds: np.ndarray | None, states: bool) -> Run:
    import jax
    import jax.numpy as jnp

    natives = [jnp.asarray(x) for x in arrays]
    cu_seqlens = None if bounds is None else jnp.asarray(bounds, "int32")
    gradients = _jax_gradients(op, states)
    return lambda: jax.block_until_ready(gradients(cu_seqlens, *natives))


def _jax_gradients(op: str, states: bool) -> Any:
    """Both passes as a function to be compiled, of ``cu_seqlens`` and the other arrays."""
    import jax
    import jax.numpy as jnp

    import jax_impl

    @jax.jit
    def gradients(cu_seqlens: Any, *arrays: Any) -> Any:
        outputs, pull_back = jax.vjp(lambda *x: _outputs(jax_impl, op, x, cu_seqlens, states), *arrays)
        return pull_back(jax.tree.map(jnp.ones_like, outputs))

    return gradients


def planned_bytes(op: str, tokens: int, sequences: int | None, heads: int, dim: int, states: bool = False) -> int:
    """The memory that XLA plans for both passes over packed sequences, not counting inputs; nothing is run.

    Args:
        sequences: their number; None for a single one that is not packed.
    """
    import jax

    shapes, cu_seqlens = _shapes(op, tokens, heads, dim), None
    if sequences is None:
        shapes = [shape if op == "gru" and number % 2 else (1, *shape) for number, shape in enumerate(shapes)]
    else:
        cu_seqlens = jax.ShapeDtypeStruct((sequences + 1,), "int32")
    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    plan = _jax_gradients(op, states).lower(cu_seqlens, *shapes).compile().memory_analysis()
    return plan.temp_size_in_bytes + plan.output_size_in_bytes


def _outputs(package: Any, op: str, x: Any, cu_seqlens: Any, states: bool) -> list[Any]:
    if op == "gru":
        y, last = package.gru(*x, cu_seqlens=cu_seqlens)
        return [y, last] if states else [y]
    if not states:
        return [package.mlstm(*x, cu_seqlens=cu_seqlens)]
    h, last = package.mlstm(*x, cu_seqlens=cu_seqlens, return_state=True)
    return [h, *last]


def peak_bytes(run: Run) -> int:
    """Maximum memory of a call, in addition to what the process held before; the first call is not counted."""
    run()
    forget_high_water_mark()
    before = resident("VmRSS")
    run()
    return resident("VmHWM") - before


def costs(framework: str, op: str, tokens: int, heads: int, dim: int, rounds: int, states: bool = False) -> list[Cost]:
    """Measure every split and the dense call, interleaved."""
    lengths = {name: split(tokens) for name, split in SPLITS.items()} | {DENSE: [tokens]}
    of = partial(call, framework, op, heads=heads, dim=dim, states=states)
    runs = {name: of(each, dense=name == DENSE) for name, each in lengths.items()}
    if framework == "jax":
        numbers = {name: None if name == DENSE else len(each) for name, each in lengths.items()}
        peaks = {name: planned_bytes(op, tokens, number, heads, dim, states) for name, number in numbers.items()}
    else:
        peaks = {name: peak_bytes(run) for name, run in runs.items()}
    for run in runs.values():
        run()
    if op == "gru":
        alone = {f"{name}, alone": of([max(each)]) for name, each in lengths.items()}
        for run in alone.values():
            run()
        runs |= alone
    timed = [*interleaved(runs, rounds, wall_clock)]
    seconds = {name: statistics.median(each[name] for each in timed) for name in runs}
    return [
        Cost(
            split=name,
            sequences=len(each),
            longest=max(each),
            seconds=seconds[name],
            alone=seconds.get(f"{name}, alone", 0.0),
            peak_bytes=peaks[name],
        )
        for name, each in lengths.items()
    ]


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
