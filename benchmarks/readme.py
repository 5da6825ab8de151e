"""README's section on speed, made from a committed run: a table, two pictures, and how many goals it met."""

from pathlib import Path
from typing import Any

from benchmarks.cases import SHAPES
from benchmarks.contenders import YARDSTICKS, contenders
from benchmarks.goals import TORCH, XLA
from benchmarks.table import seconds

BEGIN, END = "<!-- benchmarks: made by `python -m benchmarks report --readme` -->", "<!-- /benchmarks -->"
BARS, LENGTHS = "docs/figures/benchmarks-ratios.svg", "docs/figures/benchmarks-lengths.svg"


def rewrite(path: Path, name: str, document: dict[str, Any]) -> None:
    """Put the section of ``document``, called ``name`` under ``benchmarks/results``, in place of the one in ``path``.

    Raises:
        ValueError: the file has no place for it.
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
    lengths = ["", f"![Time and memory against the number of steps]({LENGTHS})"] if grows(document["rows"]) else []
    figures = f"{met} of the {len(goals)} figures that were aimed at are reached. " if goals else ""
    return "\n".join(
        (
            f"On {machine['cores']} cores of an {machine['device']}, in float32, with {shown}:",
            "medians of interleaved rounds. What is timed has first been compared with the oracle.",
            "",
            *_table(document["rows"]),
            "",
            f"![Time of every contender over our fastest]({BARS})",
            *lengths,
            "",
            f"{figures}The run is [{name}.json](benchmarks/results/{name}.json);",
            "[docs/cpu-speed.md](docs/cpu-speed.md) says what was done for speed and what stands in its way.",
        )
    )


def without_yardsticks(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = {each.name for op in ("mlstm", "mlstm_step", "gru") for each in contenders(op, YARDSTICKS) if not each.own}
    return [row for row in rows if row["contender"] not in names]


def of_goals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the cases at which speeds are wanted."""
    wanted = {case.id for case in SHAPES["laptop"]}
    return [row for row in rows if row["case"] in wanted]


def grows(rows: list[dict[str, Any]]) -> bool:
    """Whether there are curves over S to draw."""
    return len({row["S"] for row in rows if row["own"] and row["peak_bytes"]}) > 2


def _table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| case | `torch_impl` | `jax_impl` | fastest peer | over our fastest |", "|---|---|---|---|---|"]
    kept = without_yardsticks(of_goals(rows))
    for case in dict.fromkeys(row["case"] for row in kept):
        timed = {row["contender"]: row for row in kept if row["case"] == case and row["seconds"] is not None}
        peers = sorted((row for row in timed.values() if not row["own"]), key=lambda row: row["seconds"])
        ours = [seconds(timed[name]["seconds"]) if name in timed else "" for name in (TORCH, XLA)]
        best = peers[0] if peers else None
        wrong = best is not None and best["conformity"]["verdict"] == "wrong"
        note = " (wrong gradient)" if wrong else ""
        peer = "" if best is None else f"{best['contender']}{note}, {seconds(best['seconds'])}"
        times = "" if best is None or best["times_ours"] is None else f"{best['times_ours']['ratio']:.2f}"
        lines.append(f"| {case.replace(' float32', '')} | {ours[0]} | {ours[1]} | {peer} | {times} |")
    return lines
