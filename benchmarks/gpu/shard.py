"""A pytest plugin for tests of kernels: shares of a run, a record of every test as it starts and ends, and limits.

``--shard I/N`` keeps every N-th test, starting with the I-th, so that N processes share a run: kernels are compiled by
the process that launches them, and tests wait for that, not for the GPU. ``--record FILE`` gets a line of JSON when a
test starts and one when it ends; tests that the file names already are left out, so that a process that ended in the
middle is followed by one that goes on. ``--limit SECONDS`` ends the process, with the stack of every thread, when a
test takes longer. After a CUDA error that leaves no later call working, the session stops.
"""

import faulthandler
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

STICKY = ("CUDA error", "illegal memory access", "illegal instruction", "misaligned address", "device-side assert")
"""Texts of errors that belong to no single call."""
_TERMINAL = os.dup(2)
"""Standard error before pytest redirects it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", metavar="I/N", help="Keep every N-th test, beginning with the I-th, from 0.")
    parser.addoption("--record", type=Path, metavar="FILE", help="Write a line for every test as it starts and ends.")
    parser.addoption("--limit", type=float, metavar="SECONDS", help="End the process when a test takes longer.")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = items
    text = config.getoption("--shard")
    if text is not None:
        first, count = (int(word) for word in text.split("/"))
        kept = items[first::count]
    path = config.getoption("--record")
    if path is not None:
        seen = {row["test"] for row in records(path)}
        kept = [item for item in kept if item.nodeid not in seen]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--record")
    if path is not None:
        config.pluginmanager.register(Recorder(path, config.getoption("--limit")))


def records(path: Path) -> list[dict[str, Any]]:
    """The lines of a record; the last one may be cut off."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return [row for row in rows if "test" in row]


class Recorder:
    """Writes the record of a session, and limits each of its tests."""

    def __init__(self, path: Path, limit: float | None) -> None:
        self.path, self.limit = path, limit
        self.outcome, self.message, self.started = "passed", "", 0.0

    def write(self, **row: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.outcome, self.message, self.started = "passed", "", time.monotonic()
        os.write(_TERMINAL, f"{time.strftime('%H:%M:%S')} {nodeid}\n".encode())
        self.write(test=nodeid, outcome="started")
        if self.limit is not None:
            faulthandler.dump_traceback_later(self.limit, exit=True, file=_TERMINAL)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or (report.skipped and self.outcome == "passed"):
            self.outcome = report.outcome
            self.message = report.longreprtext[-2000:] if report.failed else ""

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        faulthandler.cancel_dump_traceback_later()
        lost = self.outcome == "failed" and any(text in self.message for text in STICKY) and _context_is_lost()
        outcome = "context lost" if lost else self.outcome
        seconds = round(time.monotonic() - self.started, 2)
        self.write(test=nodeid, outcome=outcome, seconds=seconds, message=self.message)
        if lost:
            pytest.exit(f"no CUDA call works after {nodeid}", returncode=4)


def _context_is_lost() -> bool:
    """Whether this process can no longer use its GPU."""
    import torch

    try:
        torch.cuda.synchronize()
        torch.ones(1, device="cuda").item()
    except RuntimeError:
        return True
    return False
