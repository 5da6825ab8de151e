"""Judges the results that another program computed, and reports the judgement in the terminal and as JSON."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from conformance import oracle
from conformance.base.dtypes import FLOATING, Array
from conformance.base.exceptions import UsageError
from conformance.base.files import bytes_of
from conformance.base.tensors import unpack
from conformance.report.console import HANG, say
from conformance.report.json import plain
from conformance.tolerance.budget import Verdict, compare
from conformance.vectors._manifest import Asked, Entry, VectorSet

HELD, WRONG, MISSING = "held", "wrong", "missing"


@dataclass(frozen=True)
class Judged:
    """One array of an answer.

    Attributes:
        key: ``output/h``, ``gradient/q``.
        status: ``held``, ``wrong`` or ``missing``.
        verdict: the comparison; None if there was none.
        problem: the fault, if it is not one of numbers.
        log_scale: the key of the m in whose expected units the array was compared, if any.
    """

    key: str
    status: str
    verdict: Verdict | None = None
    problem: str | None = None
    log_scale: str | None = None


@dataclass(frozen=True)
class Answered:
    """The outcome of one case.

    Attributes:
        arrays: one entry for each requested output and gradient.
        problems: faults of the file as a whole, in sentences.
    """

    entry: Entry
    arrays: tuple[Judged, ...]
    problems: tuple[str, ...] = ()

    @property
    def worst(self) -> float | None:
        return max((judged.verdict.worst for judged in self.arrays if judged.verdict is not None), default=None)

    def count(self, status: str) -> int:
        return sum(judged.status == status for judged in self.arrays)


@dataclass(frozen=True)
class Judgement:
    """The outcome of all cases.

    Attributes:
        strays: safetensors files in the folder of answers that belong to no case.
        only_given: whether a program may omit arrays and files.
    """

    vectors: VectorSet
    cases: tuple[Answered, ...]
    strays: tuple[str, ...]
    only_given: bool

    def count(self, status: str) -> int:
        return sum(case.count(status) for case in self.cases)

    @property
    def held(self) -> bool:
        wrong = self.count(WRONG) or self.strays or any(case.problems for case in self.cases)
        return not wrong and (self.only_given or not self.count(MISSING))


def check(vectors: VectorSet, entries: tuple[Entry, ...], answers: Path, *, only_given: bool) -> Judgement:
    """Judge the answers to some cases of a set.

    Raises:
        UsageError: the set is damaged, or there is nothing to judge.
    """
    if not answers.is_dir():
        raise UsageError(f"there is no folder {answers}; give the folder with the other program's answers")
    if answers.resolve() == vectors.folder.resolve():
        raise UsageError(f"{answers} is the set itself; give the folder with the other program's answers")
    cases = tuple(_answered(entry, vectors.arrays(entry), answers / entry.file) for entry in entries)
    if not any(case.problems or case.count(MISSING) < len(case.arrays) for case in cases):
        raise UsageError(
            f"{answers} answers none of these {len(cases)} cases; an answer lies in a file with the name that the "
            f"manifest gives the case, such as {entries[0].file}"
        )
    known = {entry.file for entry in vectors.entries}
    strays = sorted(path.name for path in answers.glob("*.safetensors") if path.name not in known)
    return Judgement(vectors, cases, tuple(strays), only_given)


def _answered(entry: Entry, expected: dict[str, Array], path: Path) -> Answered:
    nothing = tuple(Judged(asked.key, MISSING) for asked in entry.asked)
    try:
        given = unpack(bytes_of(path, entry.longest))
    except FileNotFoundError:
        return Answered(entry, nothing)
    except OSError as error:
        return Answered(entry, nothing, (f"{path.name} cannot be read ({error.strerror})",))
    except ValueError as error:
        return Answered(entry, nothing, (f"{path.name} {error}",))
    keys = [asked.key for asked in entry.asked]
    unknown = ", ".join(f"`{key}`" for key in given if key not in keys)
    problems = (f"holds {unknown}; expected {', '.join(keys)}",) if unknown else ()
    return Answered(entry, tuple(_judged(asked, given, expected) for asked in entry.asked), problems)


def _judged(asked: Asked, given: dict[str, Array], expected: dict[str, Array]) -> Judged:
    if asked.key not in given:
        return Judged(asked.key, MISSING)
    got, values = given[asked.key], expected[asked.key].values
    if got.dtype not in FLOATING:
        return Judged(asked.key, WRONG, problem=f"is {got.dtype}; expected one of {', '.join(FLOATING)}")
    if asked.log_scale is not None and got.shape == values.shape:
        m = expected[asked.log_scale].values
        if asked.log_scale not in given or given[asked.log_scale].shape != m.shape:
            said = f"cannot be compared without `{asked.log_scale}` {list(m.shape)}, which says in what units it is"
            return Judged(asked.key, WRONG, problem=said)
        got = replace(got, values=oracle.rescaled(got.values, given[asked.log_scale].values, m))
    verdict = compare(got, values, expected[asked.allowed].values, asked.dtype)
    return Judged(asked.key, HELD if verdict.worst <= 1 else WRONG, verdict, log_scale=asked.log_scale)


SHOWN = 6


def show(console: Console, judgement: Judgement) -> None:
    """A table of operation × dtype, then the first wrong array of each pair, in a few lines."""
    console.print(_table(judgement))
    wrong, missing = judgement.count(WRONG), judgement.count(MISSING)
    left = "left out" if judgement.only_given else "missing"
    counts = f"{judgement.count(HELD)} arrays held, {wrong} wrong, {missing} {left}"
    say(console, f"{counts}, in {len(judgement.cases)} cases (seed {judgement.vectors.seed})")
    failures = _failures(judgement)
    for line in (line for failure in failures[:SHOWN] for line in failure.split("\n")):
        indentation = len(line) - len(line.lstrip())
        say(console, line.lstrip(), " " * indentation, hang=indentation + HANG)
    if failures[SHOWN:]:
        say(console, f"[red]… and {len(failures) - SHOWN} more;[/red] --json PATH writes them all")
    if missing and not judgement.only_given:
        case, key = next((c, a.key) for c in judgement.cases for a in c.arrays if a.status == MISSING)
        say(
            console,
            f"\n[red bold]✗ {missing} arrays are missing[/red bold], the first of them `{key}` in {case.entry.file}; "
            "--only-given judges only the arrays that are there",
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
