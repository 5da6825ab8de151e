"""One run of the command line: settings from options, every target in turn, its reports, the exit status."""

import importlib
import importlib.metadata
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from conformance import workers
from conformance.implementation import Implementation, UsageError
from conformance.known import Known, read, write
from conformance.options import EXAMPLES, INTERPRETERS, MAX_STEPS, RunOptions
from conformance.outcome import LawResult
from conformance.report import TargetReport
from conformance.runner import run
from conformance.selection import agenda, selected

QUICK_EXAMPLES = 6
INTERPRETED_EXAMPLES = 8
INTERPRETED_STEPS = 33
"""A kernel interpreter takes seconds for what a device does in microseconds: fewer cases, of at most so many steps."""


@dataclass(frozen=True)
class Names:
    """Which laws, and in which dtypes; empty tuples mean all."""

    ops: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()


def interpreted(kernel_backend: str | None, device: str) -> bool:
    """Whether a kernel backend is asked for that runs under its interpreter here."""
    return device == "cpu" and os.environ.get(INTERPRETERS.get(kernel_backend or "", ""), "") not in ("", "0")


def settings_of(
    names: Names,
    *,
    examples: int | None = None,
    max_steps: int | None = None,
    seed: int = 0,
    kernel_backend: str | None = None,
    device: str = "cpu",
    strict: bool = False,
    quick: bool = False,
    known: Path | None = None,
    failures: Path | None = None,
    contract: bool = False,
) -> RunOptions:
    """The settings, with what depends on circumstances where nothing was said.

    Raises:
        UsageError: a name is unknown, no law is left, or the known failures cannot be read.
    """
    slow = interpreted(kernel_backend, device)
    few = INTERPRETED_EXAMPLES if slow else QUICK_EXAMPLES if quick else EXAMPLES
    settings = RunOptions(
        names.ops,
        names.laws,
        names.dtypes,
        examples or few,
        max_steps or (INTERPRETED_STEPS if slow else MAX_STEPS),
        seed,
        kernel_backend,
        strict,
        quick,
        read(known) if known is not None else (),
        failures,
        contract=contract,
    )
    selected(settings)
    return settings


def results_of(
    implementation: Implementation, settings: RunOptions, named_framework: str | None, processes: int | None
) -> tuple[int, Iterator[LawResult]]:
    """How many results there will be, and the results."""
    items = agenda(implementation, settings)
    number = processes or workers.usual(implementation, items)
    if number == 1 or len(items) < 2:
        return len(items), run(implementation, settings)
    target = workers.Target(implementation.name, named_framework, implementation.device)
    return len(items), workers.run_in_processes(target, items, settings, number)


def in_own_places(
    implementations: list[Implementation], settings: RunOptions
) -> Iterator[tuple[Implementation, RunOptions]]:
    """Each target with its settings; where two have one name, their scripts go to directories of their own."""
    stems = [Path(each.name).stem for each in implementations]
    for number, implementation in enumerate(implementations, 1):
        shared = stems.count(stems[number - 1]) > 1 and settings.failures is not None
        place = settings.failures / str(number) if shared and settings.failures is not None else settings.failures
        yield implementation, replace(settings, failures=place)


def report_of(
    implementation: Implementation, settings: RunOptions, results: list[LawResult], start: float, named: str | None
) -> TargetReport:
    """The report of a target that was judged from ``start``, a reading of ``time.monotonic``, until now."""
    seconds = time.monotonic() - start
    return TargetReport(
        implementation.name,
        implementation.framework,
        implementation.device,
        {**_own_version(), **implementation.versions()},
        settings,
        results,
        seconds,
        datetime.fromtimestamp(time.time() - seconds, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        named,
    )


def _own_version() -> dict[str, str]:
    try:
        own = importlib.metadata.version("gatespec")
    except importlib.metadata.PackageNotFoundError:
        own = "source"
    return {"gatespec": own, "python": platform.python_version()}


def make_room(option: str, path: Path | None) -> None:
    """Refuse a file that could not be written before anything has run.

    Raises:
        UsageError: it could not.
    """
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        path.open("a").close()
        if new:
            path.unlink()
    except OSError as error:
        raise UsageError(f"--{option} {path} cannot be written ({error.strerror}); give another path") from error


def make_directory(path: Path) -> None:
    """Refuse a place for scripts that could not be one.

    Raises:
        UsageError: it could not.
    """
    missing = [each for each in (path, *path.parents) if not each.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--failures {path} cannot be written to ({error.strerror}); give another one") from error
    for each in missing:  # It is made again where there is a failure.
        each.rmdir()


def write_reports(reports: list[TargetReport], paths: dict[str, Path | None]) -> None:
    for kind, path in paths.items():
        if path is not None:
            writer = importlib.import_module(f"conformance.report.{kind}")
            path.write_text(writer.render(reports), encoding="utf-8")


def write_known(path: Path, reports: list[TargetReport], before: tuple[Known, ...]) -> int:
    """Write the present failures as known ones, without a reason; entries that still hold stay. How many are new."""
    import json

    gone = {
        (report.target, result.law.id, result.dtype, outcome.where)
        for report in reports
        for result in report.results
        for outcome in result.expected_failures
        if not outcome.fails
    }
    targets = [report.target for report in reports]
    kept = [
        entry
        for entry in before
        if not any(
            (target, entry.law, entry.dtype, entry.where) in gone
            for target in targets
            if entry.target in (None, target)
        )
    ]
    new = [
        Known(
            result.law.id,
            result.dtype,
            result.counterexample.where,
            json.dumps(result.counterexample.stored, ensure_ascii=False),
            "",
            target=report.target,
        )
        for report in reports
        for result in report.results
        if result.status == "failed" and result.counterexample is not None
    ]
    write(path, [*kept, *new])
    return len(new)
