"""What `conformance.pytest_plugin` runs: the targets of a pytest run, their laws, and what each one comes to."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conformance.dtypes import FLOATING
from conformance.implementation import Implementation, UsageError
from conformance.judging import Names, in_own_places, report_of, settings_of
from conformance.laws import Law
from conformance.options import RunOptions
from conformance.report.failure import text
from conformance.runner import Runner
from conformance.selection import agenda
from conformance.targets import load


@dataclass(frozen=True)
class Item:
    """One law in one dtype on one target."""

    implementation: Implementation
    settings: RunOptions
    law: Law
    dtype: str


@dataclass(frozen=True)
class LawTests:
    """The tests of a run.

    Attributes:
        items, ids: the tests and their names.
        framework: the framework where the command line named it.
    """

    items: list[Item]
    ids: list[str]
    framework: str | None

    @staticmethod
    def of(option: Callable[[str], Any]) -> "LawTests":
        """The tests that the command line of pytest asks for.

        Raises:
            UsageError: it cannot be done; the text says what to write.
        """

        def given(name: str) -> Any:
            return option(f"conformance_{name}")

        for dtype in given("dtype"):
            if dtype not in FLOATING:
                names = ", ".join(FLOATING)
                raise UsageError(f"there is no dtype {dtype!r}; name one of {names} after --conformance-dtype")
        for name in ("examples", "max_steps"):
            if given(name) is not None and given(name) < 1:
                raise UsageError(f"--conformance-{name.replace('_', '-')} {given(name)} is too few; give 1 or more")
        settings = settings_of(
            Names(tuple(given("op")), tuple(given("law")), tuple(given("dtype"))),
            examples=given("examples"),
            max_steps=given("max_steps"),
            seed=given("seed"),
            kernel_backend=given("kernel_backend"),
            device=given("device"),
            quick=given("quick"),
            contract=given("contract"),
            known=Path(given("known")) if given("known") else None,
            failures=Path(given("failures")),
        )
        implementations = [load(name, given("framework"), given("device")) for name in option("implementation")]
        items = [
            Item(implementation, own, law, dtype)
            for implementation, own in in_own_places(implementations, settings)
            for law, dtype in agenda(implementation, own)
        ]
        several = len(implementations) > 1
        ids = [f"{f'{item.implementation.name}-' if several else ''}{item.law.id}-{item.dtype}" for item in items]
        return LawTests(items, ids, given("framework"))

    def judge(self, item: Item) -> None:
        """Try one law; pytest learns what came of it."""
        start = time.monotonic()
        result = Runner(item.implementation, item.settings).result(item.law, item.dtype)
        if not result.judged:
            pytest.skip(f"{result.status}: {result.reason}" if result.status != "skipped" else result.reason or "")
        if result.status == "differs":
            pytest.skip(f"differs from gatespec's contract: {result.reason}")
        if result.status == "known":
            pytest.xfail(result.reason or "")
        if result.status in ("failed", "fixed"):
            report = report_of(item.implementation, item.settings, [result], start, self.framework)
            pytest.fail(text(report, result), pytrace=False)
