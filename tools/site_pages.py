"""Pages of the documentation site that are made from data files: score, calibration and benchmarks."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SCORE = ROOT / "tests" / "suite" / "mutants" / "score.json"
CALIBRATION = ROOT / "tests" / "suite" / "calibration" / "results.json"
BENCHMARKS = ROOT / "benchmarks" / "results" / "cpu.json"

SETTINGS = {
    "specification": "The suite judges the copy itself, in NumPy.",
    "refusing adapter": (
        "The suite judges the copy behind an adapter that raises `NotImplementedError` for empty arrays, packed "
        "sequences, initial states and clipping."
    ),
    "PyTorch loop": (
        "The loops of the copy run on PyTorch tensors and are differentiated by autograd. The suite tries the laws of "
        "values and gradients, in float64 and float32."
    ),
}
"""How the suite sees a copy, by the name of the setting."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""

    def line(cells: Sequence[object]) -> str:
        return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"

    return "\n".join([line(head), line(["---"] * len(head)), *(line(row) for row in rows)])


def versions(found: dict[str, str]) -> str:
    """The versions of a measurement, as words."""
    return ", ".join(f"{name} {version}" for name, version in found.items())


def score(documents: dict[str, Any]) -> str:
    """Return the page about planted faults: how many the laws catch, and a table of all faults."""
    text = [
        "# Planted faults",
        (
            "This page shows how well the suite finds faults, for readers who want to know what a pass is worth. Each "
            "fault was planted (put in on purpose) in a copy of `reference` of its own. The suite then judged the copy "
            "with several seeds. A fault counts as caught if its laws break with most seeds. The data are in "
            "`tests/suite/mutants/score.json`; `make mutants` and `make mutants-adapted` measure them again."
        ),
    ]
    for name, found in documents.items():
        alarms = sum(found["unmutated"].values())
        unseen = Counter(row["why"] for row in found.get("unseen", ()))
        text += [
            f"## {name[:1].upper()}{name[1:]}",
            SETTINGS[name],
            (
                f"**{found['caught']} of {found['mutants']} faults are caught**, each with at least "
                f"{found['needed']} of {len(found['seeds'])} seeds, by {found['laws']} laws with {found['examples']} "
                f"cases each. In the copy without a fault, {alarms} laws break. "
                f"Measured with {versions(found['versions'])}."
            ),
            table(
                ("operation", "fault", "seeds that catch it", "laws that break"),
                (
                    (f"`{row['op']}`", row["name"], f"{row['caught']} of {len(found['seeds'])}", _laws(row["laws"]))
                    for row in found["rows"]
                ),
            ),
            *(f"{count} more faults cannot be seen here: {why}." for why, count in unseen.items()),
        ]
    return "\n\n".join(text) + "\n"


def _laws(breaks: dict[str, int], most: int = 3) -> str:
    """Return the laws that broke most often, and the number of others that broke."""
    names = [f"`{name}`" for name, _ in sorted(breaks.items(), key=lambda item: -item[1])]
    return ", ".join([*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])])


def calibration(operations: dict[str, Any]) -> str:
    """Return the page about false alarms: the largest error of each correct variant, as a fraction of its tolerance."""
    text = [
        "# False alarms",
        (
            "This page shows how often the suite fails a correct implementation, for readers who want to know what a "
            "failure is worth. Correct variants of each operation, computed in other orders and with other roundings, "
            "are judged on many cases; none may fail. The last column is the largest error divided by its tolerance. "
            "The data are in `tests/suite/calibration/results.json`; `make calibration` measures them again."
        ),
    ]
    for name, found in operations.items():
        rows = [
            (variant, f"{of['cases']:,}", of["false_alarms"], f"{of['worst']:.3f}")
            for variant, of in found["variants"].items()
        ]
        text += [
            f"## {name}",
            table(("variant", "cases", "false alarms", "largest error over tolerance"), rows),
            f"Seed {found['seed']}; {versions(found['versions'])}.",
        ]
    return "\n\n".join(text) + "\n"


def benchmarks(document: dict[str, Any]) -> str:
    """Return the page about the committed benchmark run: every contender in every case."""
    from benchmarks.speed.table import seconds

    machine = document["machine"]
    text = [
        "# Benchmarks",
        (
            "This page compares the speed of our implementations and of public ones on a CPU: medians of interleaved "
            "rounds. Each implementation was first compared with the oracle; one that does not conform is timed too, "
            "and marked. The data are in `benchmarks/results/cpu.json`; to measure your machine, run "
            "`python -m benchmarks run --suite cpu`. "
            "[Speed on a CPU](../cpu-speed.md) explains the figures. No GPU has been measured."
        ),
        f"{machine['device']}, {machine['cores']} cores; {versions(machine['versions'])}.",
    ]
    for case in dict.fromkeys(row["case"] for row in document["rows"]):
        rows = [row for row in document["rows"] if row["case"] == case]
        timed = sorted((row for row in rows if row["seconds"] is not None), key=lambda row: row["seconds"])
        text += [
            f"## {case}",
            table(
                ("contender", "median", "over our fastest", "judged"),
                ((_contender(row), seconds(row["seconds"]), _ratio(row), _verdict(row)) for row in timed),
            ),
        ]
        if untimed := [f"- {row['contender']}: {row['reason']}" for row in rows if row["seconds"] is None]:
            text.append("Not timed:\n\n" + "\n".join(untimed))
    return "\n\n".join(text) + "\n"


def _contender(row: dict[str, Any]) -> str:
    name = f"**{row['contender']}**" if row["own"] else row["contender"]
    return name if row["setting"] is None else f"{name}, {row['setting']}"


def _ratio(row: dict[str, Any]) -> str:
    ratio = row["times_ours"]
    return "" if ratio is None else f"{ratio['ratio']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"


def _verdict(row: dict[str, Any]) -> str:
    verdict = row["conformity"]["verdict"] if row["conformity"] else ""
    return f"{verdict}; {row['differs']['how']}" if row["differs"] else verdict


def pages() -> dict[str, str]:
    """Return the pages by their names on the site."""
    return {
        "measured/score.md": score(json.loads(SCORE.read_text())),
        "measured/calibration.md": calibration(json.loads(CALIBRATION.read_text())),
        "measured/benchmarks.md": benchmarks(json.loads(BENCHMARKS.read_text())),
    }
