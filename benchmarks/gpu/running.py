"""Runs the stages of ``benchmarks/on_gpu.sh`` in a given time: ``python -m benchmarks.gpu.running DIR [STAGE …]``.

DIR gets two files, `ARCHIVE` and `TABLE`, which are written again after every stage: a run that is cut off loses one
stage. Everything else is written to a directory of its own. `benchmarks.gpu.proofs` reads the archive elsewhere.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tarfile
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from benchmarks.gpu.processes import adopt_orphans, descendants, start, stop
from benchmarks.gpu.stages import STAGES, Stage, describe

ARCHIVE, TABLE = "run.tgz", "table.txt"
SECONDS = 540.0
"""Of a run, unless another number is given."""
MOST_BYTES = 2**20
"""Of a log in the archive; of a longer one it has the end."""


@dataclass
class Outcome:
    """The outcome of a stage: ``passed``, ``failed``, ``too long``, ``missing``, ``skipped`` or ``no time``."""

    stage: str
    status: str
    seconds: float
    summary: str
    commands: list[str] = field(default_factory=list)


def run(name: str, stage: Stage, directory: Path, dry: bool, limit: float) -> Outcome:
    """Run one stage; its output goes to ``DIR/NAME.log``, its outcome to ``DIR/NAME.outcome.json``."""
    started, kernels = time.monotonic(), _compiled()
    missing = [module for module in stage.needs if find_spec(module) is None]
    commands: list[list[str]] = []
    if missing:
        status, summary = "missing", f"needs {', '.join(missing)}"
    elif dry and stage.gpu:
        status, summary = "skipped", "needs a GPU"
    elif limit < 1:
        status, summary = "no time", "the stages before it took all of it"
    else:
        status, commands = "passed", stage.commands(directory, dry)
        with (directory / f"{name}.log").open("w", encoding="utf-8") as log:
            status = _finish([[sys.executable, *words] for words in commands], stage.together, log, limit)
        try:
            summary = stage.summary(directory)
        except (OSError, ValueError, KeyError, TypeError, ElementTree.ParseError) as error:
            status, summary = _worse(status, "failed"), f"left no result ({type(error).__name__}); see {name}.log"
        here = _compiled() - kernels
        summary += f"; {here} kernels compiled here" if here else ""
    seconds = round(time.monotonic() - started, 1)
    outcome = Outcome(name, status, seconds, summary, [" ".join(words) for words in commands])
    (directory / f"{name}.outcome.json").write_text(json.dumps(asdict(outcome), indent=1))
    return outcome


def _compiled() -> int:
    """The number of kernels in Triton's cache: those that were carried, and those that were compiled here."""
    folder = os.environ.get("TRITON_CACHE_DIR")
    return sum(1 for _ in Path(folder).glob("*/*.cubin")) if folder else 0


def _worse(status: str, other: str) -> str:
    order = ("passed", "failed", "too long")
    return max(status, other, key=order.index)


def _finish(commands: list[list[str]], together: int, log: IO[str], seconds: float) -> str:
    """Run commands, so many at a time; after ``seconds``, stop those that still run, with all their child processes."""
    end, status, waiting, running = time.monotonic() + seconds, "passed", [*commands], {}
    while waiting or running:
        while waiting and len(running) < together:
            log.write("$ " + " ".join(words := waiting.pop(0)) + "\n")
            log.flush()
            running[start(words, log)] = words
        for process in [process for process in running if process.poll() is not None]:
            status = _worse(status, "passed" if process.returncode == 0 else "failed")
            del running[process]
        if time.monotonic() > end:
            for process, words in running.items():
                stop(process.pid)
                process.wait()
                log.write(f"\nstopped after {seconds:.0f} s: {' '.join(words)}\n")
            for words in waiting:
                log.write(f"no time was left for: {' '.join(words)}\n")
            return "too long" if running or waiting else status
        time.sleep(0.02)
    return status


def table(outcomes: Sequence[Outcome]) -> str:
    """A table with one line per stage."""
    width = max((len(outcome.stage) for outcome in outcomes), default=0)
    return "\n".join(f"{one.stage:{width}}  {one.status:8}  {one.seconds:6.1f} s  {one.summary}" for one in outcomes)


def limits(stages: Mapping[str, Stage], done: int, left: float) -> float:
    """The seconds of the stage after the first ``done``: its share of what is left."""
    rest = [*stages.values()][done:]
    return left * rest[0].share / sum(stage.share for stage in rest)


def write(directory: Path, to: Path, outcomes: Sequence[Outcome]) -> None:
    """Write the archive and the table; a file is complete or the one before it."""
    for name, make in ((TABLE, _write_table), (ARCHIVE, _write_archive)):
        part = to / f"{name}.part"
        make(directory, part, outcomes)
        part.replace(to / name)


def _write_table(directory: Path, path: Path, outcomes: Sequence[Outcome]) -> None:
    path.write_text(table(outcomes) + "\n", encoding="utf-8")


def _write_archive(directory: Path, path: Path, outcomes: Sequence[Outcome]) -> None:
    (directory / TABLE).write_text(table(outcomes) + "\n", encoding="utf-8")
    with tarfile.open(path, "w:gz") as archive:
        for file in sorted(directory.rglob("*")):
            if not file.is_file() or "triton" in file.relative_to(directory).parts or "site" in file.parts:
                continue
            info = archive.gettarinfo(file, str(file.relative_to(directory)))
            info.size = min(info.size, MOST_BYTES if file.suffix == ".log" else info.size)
            with file.open("rb") as content:
                content.seek(-info.size, os.SEEK_END)
                archive.addfile(info, content)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/on_gpu.sh")
    parser.add_argument("directory", type=Path, metavar="DIR", help=f"gets {ARCHIVE} and {TABLE}")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)}; default: the usual ones")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="N", help="for the whole run (%(default)g)")
    parser.add_argument("--dry-run", action="store_true", help="run only what a CPU can run")
    parser.add_argument("--work", type=Path, metavar="DIR", help="where logs and results are written meanwhile")
    parser.add_argument("--describe", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args(arguments)
    unknown = [name for name in options.stages if name not in STAGES]
    if unknown:
        parser.error(f"there is no stage {unknown[0]!r}; expected some of {', '.join(STAGES)}")
    options.directory.mkdir(parents=True, exist_ok=True)
    if options.describe:
        (options.directory / "versions.json").write_text(json.dumps(describe(options.dry_run), indent=1))
        return 0
    named = options.stages or [name for name, stage in STAGES.items() if stage.usual]
    work = options.work or Path(tempfile.mkdtemp(prefix="gatespec-"))
    return _run_all({name: STAGES[name] for name in named}, work, options)


def _run_all(stages: Mapping[str, Stage], work: Path, options: argparse.Namespace) -> int:
    end = time.monotonic() + options.seconds
    outcomes: list[Outcome] = []
    others = descendants(os.getpid())
    adopt_orphans()
    before = {one: signal.signal(one, _ended) for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        for number, (name, stage) in enumerate(stages.items()):
            print(f"{name} …", flush=True)
            limit = limits(stages, number, end - time.monotonic())
            outcomes.append(run(name, stage, work, options.dry_run, limit))
            write(work, options.directory, outcomes)
            print(table(outcomes[-1:]), flush=True)
    except KeyboardInterrupt:
        rest = [*stages][len(outcomes) :]
        outcomes += [Outcome(name, "no time", 0.0, "the run was ended") for name in rest]
        write(work, options.directory, outcomes)
    finally:
        stop(os.getpid(), spared=others)
        for one, handler in before.items():
            signal.signal(one, handler)
        shutil.rmtree(work, ignore_errors=True)
    print(table(outcomes), flush=True)
    return int(any(outcome.status not in ("passed", "skipped") for outcome in outcomes))


def _ended(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
