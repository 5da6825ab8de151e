"""Tests of kernels in several processes, each with a log of its own, that go on after a hang, a crash or a lost GPU.

``python -m benchmarks.gpu.tests NAME DIR FOLDER [--shards N] [--limit S] [-k WORDS] [--ignore FILE …]``

A process writes what it does to ``DIR/NAME-I.log`` and ``DIR/NAME-I.jsonl`` (`benchmarks.gpu.shard`). When it ends in
the middle of a test, another one goes on after it. A test after which no CUDA call worked runs again, alone, under
compute-sanitizer, into ``DIR/NAME-I.sanitizer.log``.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.processes import start
from benchmarks.gpu.shard import records

MOST_RESTARTS = 5
"""Of one process; with more, something else is wrong than a test."""


@dataclass
class Shard:
    """A process that runs a part of the tests, and the files that it writes."""

    number: int
    directory: Path
    name: str
    words: list[str]
    restarts: int = 0
    running: subprocess.Popen | None = None
    done: bool = False
    broken: bool = False

    @property
    def record(self) -> Path:
        return self.directory / f"{self.name}-{self.number}.jsonl"

    def go(self) -> None:
        """Start the process; it leaves out what its record names."""
        with (self.directory / f"{self.name}-{self.number}.log").open("a", encoding="utf-8") as log:
            self.running = start([*self.words, f"--record={self.record}"], log)

    def ended(self) -> None:
        """Look at how the process ended, and start another one if tests are left."""
        assert self.running is not None
        code, rows = self.running.returncode, records(self.record)
        self.done = True
        last = rows[-1] if rows else None
        if last is not None and last["outcome"] == "context lost":
            self.sanitize(last["test"])
        elif last is not None and last["outcome"] == "started":
            # faulthandler ends a process with status 1; a signal's number is negative.
            outcome = "hung" if code == 1 else f"crashed (status {code})"
            with self.record.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"test": last["test"], "outcome": outcome}) + "\n")
        else:
            # pytest's statuses: passed, failed, no tests; others are errors of pytest's own.
            self.broken = code not in (0, 1, 5)
            return
        self.broken = True
        if self.restarts < MOST_RESTARTS:
            self.restarts, self.done = self.restarts + 1, False
            self.go()

    def sanitize(self, test: str) -> None:
        tool = shutil.which("compute-sanitizer")
        if tool is None:
            return
        options = [word for word in self.words[1:] if not word.startswith(("--shard", "--limit"))][:-1]
        with (self.directory / f"{self.name}-{self.number}.sanitizer.log").open("a", encoding="utf-8") as log:
            running = start([tool, "--print-limit", "20", self.words[0], *options, test], log)
            try:
                running.wait(60)
            except subprocess.TimeoutExpired:
                running.kill()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.tests")
    parser.add_argument("name")
    parser.add_argument("directory", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that a test may take")
    parser.add_argument("-k", dest="words", help="only tests whose names contain this")
    parser.add_argument("--ignore", action="append", default=[], metavar="FILE")
    options = parser.parse_args(arguments)
    # Neither the project's configuration nor its conftest is used: a warning of another version is not a kernel's
    # failure, and the conftest restricts JAX to the CPU.
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", ".", "--confcutdir", str(options.folder)]
    command += ["--import-mode=importlib", "-q", "-p", "no:cacheprovider", "-p", "benchmarks.gpu.shard"]
    command += [f"--ignore={options.folder / file}" for file in options.ignore]
    command += [f"--limit={options.limit}", *(["-k", options.words] if options.words else [])]
    shards = [
        Shard(n, options.directory, options.name, [*command, f"--shard={n}/{options.shards}", str(options.folder)])
        for n in range(options.shards)
    ]
    for shard in shards:
        shard.go()
    while left := [shard for shard in shards if not shard.done]:
        for shard in left:
            if shard.running is not None and shard.running.poll() is not None:
                shard.ended()
        time.sleep(0.05)
    outcomes = [row["outcome"] for shard in shards for row in records(shard.record)]
    broken = any(shard.broken for shard in shards) or not outcomes
    return int(broken or not {*outcomes} <= {"started", "passed", "skipped"})


if __name__ == "__main__":
    sys.exit(main())
