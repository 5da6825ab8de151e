"""Judges targets one after the other, each in its own workers, and reports the results."""

import importlib
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from conformance.base.exceptions import UsageError
from conformance.base.files import write
from conformance.base.options import RunOptions
from conformance.diagnosis.diagnose import without_experiments
from conformance.diagnosis.process import diagnosed
from conformance.frameworks.targets import TargetInfo
from conformance.judge.outcome import LawResult
from conformance.judge.selection import agenda
from conformance.judge.workers import Item, Workers
from conformance.report import TargetReport

Progress = Callable[[str, int, Iterator[LawResult], list[LawResult]], None]
"""Shows progress: takes a target's name, the number of results, the results, and a list to append them to."""

WORTHWHILE = {True: 24, False: 4}
"""Least number of laws for which a second worker is worthwhile, by whether the target is eager or compiles."""


@dataclass(frozen=True)
class Judged:
    """The result of judging a target.

    Attributes:
        report: the report on the laws that were tried.
        interrupted: whether some laws were not tried because the run was interrupted.
    """

    report: TargetReport
    interrupted: bool = False


def judge(workers: Workers, info: TargetInfo, options: RunOptions, show: Progress) -> Judged:
    """Try all laws on a target that workers have loaded."""
    start = time.monotonic()
    items = agenda(info, options)
    results: list[LawResult] = []
    try:
        show(info.name, len(items), workers.results(items, options, options.jobs or usual_jobs(info, items)), results)
    except KeyboardInterrupt:
        return Judged(report_of(info, options, workers.interrupted(), start), interrupted=True)
    try:
        diagnosis = diagnosed(workers, options, results)
    except KeyboardInterrupt:
        diagnosis = without_experiments(options, results)
        return Judged(replace(report_of(info, options, results, start), diagnosis=diagnosis), interrupted=True)
    return Judged(replace(report_of(info, options, results, start), diagnosis=diagnosis))


def in_own_places(targets: Sequence[str], options: RunOptions) -> list[RunOptions]:
    """The options of each target; if two have the same name, their scripts go to separate directories."""
    stems = [Path(target).stem for target in targets]
    places = []
    for number, stem in enumerate(stems, 1):
        shared = stems.count(stem) > 1 and options.failures is not None
        places.append(options.failures / str(number) if shared and options.failures is not None else options.failures)
    return [replace(options, failures=place) for place in places]


def report_of(info: TargetInfo, options: RunOptions, results: list[LawResult], start: float) -> TargetReport:
    """The report of a target that was judged from ``start``, a reading of ``time.monotonic``, until now."""
    seconds = time.monotonic() - start
    return TargetReport(
        target=info.name,
        framework=info.framework,
        device=info.device,
        versions={**_own_version(), **info.versions},
        options=options,
        results=results,
        seconds=seconds,
        started=datetime.fromtimestamp(time.time() - seconds, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        named_framework=options.framework,
    )


def _own_version() -> dict[str, str]:
    try:
        own = importlib.metadata.version("gatespec")
    except importlib.metadata.PackageNotFoundError:
        own = "source"
    return {"gatespec": own, "python": platform.python_version()}


def make_directory(path: Path) -> None:
    """Raise for a directory that cannot be used for scripts.

    Raises:
        UsageError: the directory cannot be used.
    """
    missing = [each for each in (path, *path.parents) if not each.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--failures {path} cannot be written to ({error.strerror}); give another one") from error
    for each in missing:  # A failure creates it again.
        each.rmdir()


def write_reports(reports: list[TargetReport], paths: dict[str, Path | None]) -> None:
    for kind, path in paths.items():
        if path is not None:
            writer = importlib.import_module(f"conformance.report.{kind}")
            write(kind, path, writer.render(reports))


def usual_jobs(info: TargetInfo, items: Sequence[Item]) -> int:
    """The default number of workers: two on a CPU with two cores, one with an accelerator."""
    if info.device != "cpu" or len(items) < WORTHWHILE[info.eager]:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(2, cores)
