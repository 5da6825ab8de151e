"""The tests that pytest collects, one for each law and dtype, and the objects behind `conformance.pytest_plugin`."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conformance.base.dtypes import FLOATING
from conformance.base.exceptions import SuiteFailedError, TargetFailedError, UsageError
from conformance.base.options import LONGEST_SECONDS, OFFERED, RunOptions
from conformance.command.run import in_own_places, report_of
from conformance.failures import save
from conformance.frameworks.targets import TargetInfo
from conformance.judge.known_failures import unmatched
from conformance.judge.selection import agenda, options_of
from conformance.judge.workers import Workers
from conformance.laws import Law
from conformance.report.lines import text


@dataclass(frozen=True, kw_only=True)
class Item:
    """One law in one dtype on one target."""

    workers: Workers
    info: TargetInfo
    options: RunOptions
    law: Law
    dtype: str


@dataclass(frozen=True)
class LawTests:
    """The tests of a run.

    Attributes:
        items, ids: the tests and their names.
        notes: sentences about known failures that are about no law.
        workers: the process of each target.
    """

    items: list[Item]
    ids: list[str]
    notes: list[str]
    workers: Sequence[Workers]

    @staticmethod
    def of(option: Callable[[str], Any]) -> "LawTests":
        """The tests that the command line of pytest asks for.

        Raises:
            UsageError: the tests cannot be made; the text says what to write.
        """
        options, targets = _options(option), option("conformance_implementation")
        workers = [
            Workers(target, options.framework, options.device, options.timeout, save, options.spec)
            for target in targets
        ]
        try:
            infos = [each.info() for each in workers]
        except (UsageError, TargetFailedError, SuiteFailedError) as error:
            for each in workers:
                each.stop()
            raise UsageError(str(error)) from error
        items = [
            Item(workers=each, info=info, options=own, law=law, dtype=dtype)
            for each, info, own in zip(workers, infos, in_own_places(targets, options), strict=True)
            for law, dtype in agenda(info, own)
        ]
        several = len(targets) > 1
        ids = [f"{f'{item.info.name}-' if several else ''}{item.law.id}-{item.dtype}" for item in items]
        return LawTests(items, ids, unmatched(options.known_failures), workers)

    def judge(self, item: Item) -> None:
        """Try one law and report the result to pytest."""
        start = time.monotonic()
        (result,) = item.workers.results([(item.law, item.dtype)], item.options)
        if result.status == "suite failed":
            raise SuiteFailedError(result.reason)
        if not result.judged:
            pytest.skip(f"{result.status}: {result.reason}" if result.status != "skipped" else result.reason or "")
        if result.status == "differs":
            pytest.skip(f"differs from gatespec's contract: {result.reason}")
        if result.status == "known":
            pytest.xfail(result.reason or "")
        if result.status in ("failed", "fixed"):
            pytest.fail(text(report_of(item.info, item.options, [result], start), result), pytrace=False)

    def stop(self) -> None:
        """End the processes of the targets."""
        for each in self.workers:
            each.stop()


def _options(option: Callable[[str], Any]) -> RunOptions:
    values: dict[str, Any] = {}
    for offered in OFFERED:
        if not offered.pytest:
            continue
        name = f"--conformance-{offered.name}"
        value: Any = option(f"conformance_{offered.name.replace('-', '_')}")
        values[offered.field] = value
        if value is None:
            continue
        if offered.kind == "dtype" and not set(value) <= set(FLOATING):
            unknown = next(dtype for dtype in value if dtype not in FLOATING)
            raise UsageError(f"there is no dtype {unknown!r}; name one of {', '.join(FLOATING)} after {name}")
        if offered.kind == "count" and value < 1:
            raise UsageError(f"{name} {value} is too few; give 1 or more")
        if offered.kind == "seconds" and not 0 < value <= LONGEST_SECONDS:
            raise UsageError(f"{name} {value} is no time limit; give seconds above 0, at most {LONGEST_SECONDS:g}")
        if offered.several:
            values[offered.field] = tuple(value)
        elif offered.kind in ("file", "directory"):
            values[offered.field] = Path(value)
    return options_of(**values)


def test_law(conformance_item: Any, conformance_tests: Any) -> None:
    """The law holds."""
    conformance_tests.judge(conformance_item)
