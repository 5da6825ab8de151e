"""README's section on speed, made from a committed run: a table, and the number of goals that it met."""

import textwrap
from pathlib import Path
from typing import Any

from benchmarks.speed.cases import SHAPES
from benchmarks.speed.goals import TORCH, XLA
from benchmarks.speed.operations import DIRECTIONS, OPS
from benchmarks.speed.rows.all_rows import YARDSTICKS, contenders
from benchmarks.speed.table import seconds

BEGIN, END = "<!-- benchmarks: made by `python -m benchmarks report --readme` -->", "<!-- /benchmarks -->"
BARS, LENGTHS = "docs/figures/benchmarks-ratios.svg", "docs/figures/benchmarks-lengths.svg"
"""Pictures of the same run, which ``docs/cpu-speed.md`` shows."""


def rewrite(path: Path, name: str, document: dict[str, Any]) -> None:
    """Replace the section in ``path`` by that of ``document``, which is ``benchmarks/results/<name>.json``.

    Raises:
        ValueError: the file has no section to replace.
    """
    text = path.read_text(encoding="utf-8")
    before, found, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"{path} has no lines {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n{section(name, document)}\n{END}{after}", encoding="utf-8")


def section(name: str, document: dict[str, Any]) -> str:
    machine = document["machine"]
    versions = machine["versions"]
    shown = ", ".join(f"{package} {versions[package]}" for package in ("torch", "jax") if package in versions)
    goals = document.get("goals", [])
    met = sum(row["met"] for row in goals)
    figures = f"{met} of the {len(goals)} speed goals are met. " if goals else ""
    how = (
        f"Medians of interleaved rounds on {machine['cores']} cores of an {machine['device']}, in float32, with {shown}"
        ", after a comparison with the oracle. *Ours* is `torch_impl`, then `jax_impl`; the number in brackets is the "
        "peer's time divided by the shorter of these two. *After* precedes the time that JAX takes to compile. *Floor* "
        "is the time of all operations at the rate of a large matrix product, *products* the time of the mLSTM's alone."
    )
    more = (
        f"{figures}[docs/cpu-speed.md](docs/cpu-speed.md) says what limits the speed; all figures are in "
        f"[{name}.json](benchmarks/results/{name}.json)."
    )
    table = "\n".join(_table(document["rows"]))
    return f"{textwrap.fill(how, 120)}\n\n{table}\n\n{textwrap.fill(more, 120, break_on_hyphens=False)}"


def without_yardsticks(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = {each.name for op in OPS for each in contenders(op, YARDSTICKS) if not each.own}
    return [row for row in rows if row["contender"] not in names]


def of_goals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the cases for which speeds are required."""
    wanted = {case.id for case in SHAPES["laptop"]}
    return [row for row in rows if row["case"] in wanted]


def grows(rows: list[dict[str, Any]]) -> bool:
    """Return whether there are enough lengths S to draw curves over them."""
    return len({row["S"] for row in rows if row["own"] and row["peak_bytes"]}) > 2


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """One line for every shape: our times and those of the fastest peer, for the forward pass and for both passes."""
    lines = [
        "| case | forward: floor | ours | fastest peer | forward and backward: floor | ours | fastest peer |",
        "|---|---|---|---|---|---|---|",
    ]
    kept = of_goals(rows)
    for shape in dict.fromkeys(_shape(row) for row in kept):
        passes = [[row for row in kept if _shape(row) == shape and row["direction"] == way] for way in DIRECTIONS]
        lines.append(f"| {' | '.join((shape, *(cell for each in passes for cell in _cells(each))))} |")
    return lines


def _shape(row: dict[str, Any]) -> str:
    return row["case"].removesuffix(f" {row['direction']}").replace(" float32", "")


def _cells(rows: list[dict[str, Any]]) -> tuple[str, str, str]:
    """The floor, our times, and the fastest peer with its ratio, for the rows of one case.

    Several parts of a run may measure one case. The times are those of the first, the one with the peers, so that times
    and ratios come from the same rounds.
    """
    timed: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["seconds"] is not None:
            timed.setdefault(row["contender"], row)
    if not timed:
        return "", "", ""
    contenders = without_yardsticks(list(timed.values()))
    ours = ", ".join(_time(timed[name]) for name in (TORCH, XLA) if name in timed)
    products = [row["seconds"] for name, row in timed.items() if name.startswith("products alone")]
    floor = seconds(next(iter(timed.values()))["floor_seconds"])
    if products:
        floor += f"; products {seconds(min(products))}"
    peers = [row for row in contenders if not row["own"]]
    if not peers:
        return floor, ours, ""
    best = min(peers, key=lambda row: row["seconds"])
    note = " (wrong gradient)" if best["conformity"]["verdict"] == "wrong" else ""
    ratio = "" if best["times_ours"] is None else f" ({best['times_ours']['ratio']:.2f})"
    return floor, ours, f"{best['contender']}{note}, {_time(best)}{ratio}"


def _time(row: dict[str, Any]) -> str:
    """The time of a call and, with JAX, that of compiling it before."""
    compiling = (row["first_call_seconds"] or 0) - row["seconds"] if row["framework"] == "jax" else 0
    return seconds(row["seconds"]) + (f" after {compiling:.1f} s" if compiling >= 0.05 else "")
