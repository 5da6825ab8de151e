"""A judgement of test vectors as text for the terminal and as JSON."""

import json
import math
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from conformance.base.dtypes import FLOATING
from conformance.report.json import plain
from conformance.tolerance.budget import Verdict
from conformance.vectors._check import HELD, MISSING, WRONG, Answered, Judged, Judgement

SHOWN = 6


def show(console: Console, judgement: Judgement) -> None:
    """A table of operation × dtype, then the first wrong array of each pair, in a few lines."""
    console.print(_table(judgement))
    wrong, missing = judgement.count(WRONG), judgement.count(MISSING)
    left = "left out" if judgement.only_given else "missing"
    console.print(
        f"{judgement.count(HELD)} arrays held, {wrong} wrong, {missing} {left}, "
        f"in {len(judgement.cases)} cases (seed {judgement.vectors.seed})",
        highlight=False,
    )
    failures = _failures(judgement)
    for line in failures[:SHOWN]:
        console.print(line, highlight=False, soft_wrap=True)
    if failures[SHOWN:]:
        console.print(f"[red]… and {len(failures) - SHOWN} more;[/red] --json PATH writes them all", highlight=False)
    if missing and not judgement.only_given:
        case, key = next((c, a.key) for c in judgement.cases for a in c.arrays if a.status == MISSING)
        console.print(
            f"\n[red bold]✗ {missing} arrays are missing[/red bold], the first of them `{key}` in {case.entry.file}; "
            "--only-given judges only the arrays that are there",
            highlight=False,
            soft_wrap=True,
        )


def _table(judgement: Judgement) -> Table:
    table = Table(box=None, caption="worst error / allowed error", caption_justify="left")
    table.add_column("operation")
    dtypes = [dtype for dtype in FLOATING if any(case.entry.dtype == dtype for case in judgement.cases)]
    for dtype in dtypes:
        table.add_column(dtype, justify="right")
    for operation in dict.fromkeys(case.entry.operation for case in judgement.cases):
        of_it = [case for case in judgement.cases if case.entry.operation == operation]
        cells = [[case for case in of_it if case.entry.dtype == dtype] for dtype in dtypes]
        table.add_row(operation, *(_cell(cases, judgement.only_given) for cases in cells))
    return table


def _cell(cases: list[Answered], only_given: bool) -> str:
    ratios = [case.worst for case in cases if case.worst is not None]
    worst = "" if not ratios else f"{max(ratios):.2f} " if max(ratios) < 100 else f"{max(ratios):.0e} "
    if any(case.problems or case.count(WRONG) for case in cases):
        return f"[red]{worst}✗[/red]"
    if any(case.count(MISSING) for case in cases) and not only_given:
        return f"{worst}[red]missing[/red]"
    return f"{worst}[green]✓[/green]" if any(case.count(HELD) for case in cases) else "[dim]–[/dim]"


def _failures(judgement: Judgement) -> list[str]:
    """The faults; the first one of each operation and dtype comes before the others."""
    first, rest, seen = [f"\n[red bold]✗ {escape(name)}[/red bold] {_STRAY}" for name in judgement.strays], [], set()
    for case in judgement.cases:
        lines = [f"\n[red bold]✗ {case.entry.id}[/red bold] {escape(problem)}" for problem in case.problems]
        for judged in case.arrays:
            if judged.status == WRONG:
                said = f"`{judged.key}`\n    {case.entry.about}\n{_said(judged)}"
                lines.append(f"\n[red bold]✗ {case.entry.id}[/red bold] {escape(said)}")
        for line in lines:
            group = (case.entry.operation, case.entry.dtype)
            (rest if group in seen else first).append(line)
            seen.add(group)
    return first + rest


_STRAY = "belongs to no case of the set; name each file as the manifest does"


def _said(judged: Judged) -> str:
    verdict = judged.verdict
    if verdict is None or verdict.reason is not None:
        return f"    {judged.problem if verdict is None else verdict.reason}"
    units = "" if judged.log_scale is None else f" in the units of the expected `{judged.log_scale}`"
    ulp = f" ({verdict.ulp:.3g} roundoffs off)" if verdict.ulp is not None and math.isfinite(verdict.ulp) else ""
    return (
        f"    at {list(verdict.index or ())} got {verdict.got!r}{units}, expected {verdict.expected!r} "
        f"± {verdict.allowed:.3g}{ulp}\n"
        f"    worst error is {verdict.worst:.3g} times the allowed error"
    )


def as_json(judgement: Judgement) -> str:
    """All findings; numbers that JSON cannot represent are strings."""
    report = {
        "set": str(judgement.vectors.folder),
        "seed": judgement.vectors.seed,
        "held": judgement.held,
        "only_given": judgement.only_given,
        "summary": {status: judgement.count(status) for status in (HELD, WRONG, MISSING)},
        "strays": judgement.strays,
        "cases": [
            {
                "id": case.entry.id,
                "operation": case.entry.operation,
                "dtype": case.entry.dtype,
                "problems": case.problems,
                "arrays": [_array(judged) for judged in case.arrays],
            }
            for case in judgement.cases
        ],
    }
    return json.dumps(plain(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _array(judged: Judged) -> dict[str, Any]:
    verdict = judged.verdict or Verdict(math.nan)
    return {
        "key": judged.key,
        "status": judged.status,
        "problem": judged.problem or verdict.reason,
        "worst_error": None if judged.verdict is None else verdict.worst,
        "index": verdict.index,
        "got": verdict.got,
        "expected": verdict.expected,
        "allowed": verdict.allowed,
    }
