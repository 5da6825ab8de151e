"""The stages of ``benchmarks/on_gpu.sh``: each a few commands, a time limit, and a line of what came out.

Only the standard library is needed to run this; what a stage needs beyond it, it says when it is missing.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

LIMIT = 590.0
"""Seconds that a stage may take, all its commands together."""

KERNEL_TESTS = Path(__file__).resolve().parents[1] / "tests" / "torch" / "kernels"
PACKAGES = ("torch", "triton", "numpy", "jax", "mlstm_kernels", "flash-linear-attention", "xlstm")


@dataclass(frozen=True)
class Stage:
    """What is run, and how its outcome is told.

    Attributes:
        commands: gives the arguments of ``python`` for one command after the other, from the directory and whether this
            is a dry run.
        needs: modules without which it cannot run.
        summary: a few words from what the commands left in the directory.
        gpu: whether it makes no sense on a CPU, not even dry.
        together: whether the commands run at the same time, since it is the compiler that they wait for.
    """

    commands: Callable[[Path, bool], list[list[str]]]
    summary: Callable[[Path], str]
    needs: tuple[str, ...] = ()
    gpu: bool = False
    together: bool = False


@dataclass
class Outcome:
    """How a stage went: ``passed``, ``failed``, ``too long``, ``missing`` or ``skipped``."""

    stage: str
    status: str
    seconds: float
    summary: str
    commands: list[str] = field(default_factory=list)


def _versions(directory: Path, dry: bool) -> list[list[str]]:
    return [["-m", "benchmarks.on_gpu", str(directory), "--describe", *(["--dry-run"] if dry else [])]]


def describe(dry: bool) -> dict[str, Any]:
    """The machine and its software; None for what is not there."""
    import torch

    found: dict[str, Any] = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "device": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory": properties.total_memory,
            "cuda": torch.version.cuda,
        }
    elif not dry:
        raise SystemExit("PyTorch sees no CUDA device here")
    return found


def _kernels(directory: Path, dry: bool) -> list[list[str]]:
    # Neither the project's configuration nor its conftest: another version's warnings are no failure of a kernel.
    options = ["-c", os.devnull, "--rootdir", ".", "--confcutdir", str(KERNEL_TESTS), "--import-mode=importlib"]
    options += ["-q", "-p", "no:cacheprovider", "-p", "benchmarks.shard", *(["-k", "rows"] if dry else [])]
    left_out = [f"--ignore={KERNEL_TESTS / name}" for name in ("test_interpreter.py", "test_aot.py")]
    shards = 1 if dry else min(os.cpu_count() or 1, 12)
    return [
        ["-m", "pytest", *options, *left_out, f"--junitxml={directory / f'kernels-{number}.xml'}",
         f"--shard={number}/{shards}", str(KERNEL_TESTS)]
        for number in range(shards)
    ]  # fmt: skip


def _conformance(directory: Path, dry: bool) -> list[list[str]]:
    commands = []
    jax_too = find_spec("jax") if dry else find_spec("jax_cuda12_plugin") or find_spec("jax_cuda13_plugin")
    for target in ("torch_impl", *(["jax_impl"] if jax_too else [])):
        options = ["--device", "cpu" if dry else "cuda", "--json", str(directory / f"conformance-{target}.json")]
        options += ["--failures", str(directory / "failures")]
        options += ["--op", "rev_cumsum", "--examples", "2", "--max-steps", "9"] if dry else []
        commands.append(["-m", "conformance", "run", target, *options])
    return commands


def _benchmark(*ops: str) -> Callable[[Path, bool], list[list[str]]]:
    def commands(directory: Path, dry: bool) -> list[list[str]]:
        named = [word for op in ops for word in ("--op", op)]
        where = ["--device", "cpu", "--shapes", "smoke", "--rounds", "3"] if dry else ["--device", "cuda"]
        return [["-m", "benchmarks", "run", *named, *where, "--json", str(directory / f"{ops[0]}.json")]]

    return commands


def _large(directory: Path, dry: bool) -> list[list[str]]:
    sizes = ["--device", "cpu", "--elements", "20000"] if dry else ["--device", "cuda"]
    return [["-m", "benchmarks.large", "--json", str(directory / "large.json"), *sizes]]


def _tune(directory: Path, dry: bool) -> list[list[str]]:
    return [["-m", "benchmarks", "tune", "--json", str(directory / "tune.json")]]


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _versions_summary(directory: Path) -> str:
    found = _read(directory / "versions.json")
    return ", ".join(f"{name} {found[name]}" for name in ("device", "python", "torch", "triton") if found.get(name))


def _kernels_summary(directory: Path) -> str:
    roots = [ElementTree.parse(path).getroot() for path in sorted(directory.glob("kernels-*.xml"))]
    suites = [suite for root in roots for suite in ([root] if root.tag == "testsuite" else root)]
    counts = {
        name: sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    }
    if not counts["tests"]:
        raise ValueError("no test ran")
    (directory / "kernels.json").write_text(json.dumps(counts, indent=1))
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _conformance_summary(directory: Path) -> str:
    words = []
    for path in sorted(directory.glob("conformance-*.json")):
        documents = _read(path)
        for document in documents if isinstance(documents, list) else [documents]:
            counts = Counter(law["status"] for law in document["laws"])
            words.append(f"{document['target']}: " + ", ".join(f"{count} {status}" for status, count in counts.items()))
    return "; ".join(words)


def _rows_summary(name: str) -> Callable[[Path], str]:
    def summary(directory: Path) -> str:
        return f"{len(_read(directory / name)['rows'])} rows in {name}"

    return summary


def _large_summary(directory: Path) -> str:
    return "; ".join(
        f"{check['operation']}: {check['elements']} elements, {check['found']}"
        for check in _read(directory / "large.json")
    )


def _tune_summary(directory: Path) -> str:
    return f"{len(_read(directory / 'tune.json'))} choices in cache/triton-plans.json"


STAGES = {
    "versions": Stage(_versions, _versions_summary, ("torch", "triton")),
    "kernels": Stage(_kernels, _kernels_summary, ("torch", "triton", "pytest"), together=True),
    "conformance": Stage(_conformance, _conformance_summary, ("torch", "triton", "hypothesis", "click", "rich")),
    "mlstm": Stage(
        _benchmark("mlstm", "mlstm_step"), _rows_summary("mlstm.json"), ("torch", "triton", "click", "rich")
    ),
    "gru": Stage(_benchmark("gru"), _rows_summary("gru.json"), ("torch", "triton", "click", "rich")),
    "large": Stage(_large, _large_summary, ("torch", "triton")),
    "tune": Stage(_tune, _tune_summary, ("torch", "triton", "click", "rich"), gpu=True),
}


def run(name: str, stage: Stage, directory: Path, dry: bool, limit: float = LIMIT) -> Outcome:
    """One stage, its output in ``DIR/NAME.log``, its outcome in ``DIR/NAME.outcome.json``."""
    started = time.monotonic()
    missing = [module for module in stage.needs if find_spec(module) is None]
    commands: list[list[str]] = []
    if missing:
        status, summary = "missing", f"needs {', '.join(missing)}"
    elif dry and stage.gpu:
        status, summary = "skipped", "needs a GPU"
    else:
        status, commands = "passed", stage.commands(directory, dry)
        with (directory / f"{name}.log").open("w", encoding="utf-8") as log:
            for some in [commands] if stage.together else [[command] for command in commands]:
                left = limit - (time.monotonic() - started)
                status = _worse(status, _finish([[sys.executable, *command] for command in some], log, left))
        try:
            summary = stage.summary(directory)
        except (OSError, ValueError, KeyError, TypeError, ElementTree.ParseError) as error:
            status, summary = _worse(status, "failed"), f"left no result ({type(error).__name__}); see {name}.log"
    outcome = Outcome(
        name, status, round(time.monotonic() - started, 1), summary, [" ".join(words) for words in commands]
    )
    (directory / f"{name}.outcome.json").write_text(json.dumps(asdict(outcome), indent=1))
    return outcome


def _worse(status: str, other: str) -> str:
    order = ("passed", "failed", "too long")
    return max(status, other, key=order.index)


def _finish(commands: list[list[str]], log: IO[str], seconds: float) -> str:
    """Run commands at the same time; what is not done after so many seconds is stopped, with all that it started."""
    end = time.monotonic() + seconds
    for words in commands:
        log.write("$ " + " ".join(words) + "\n")
    log.flush()
    running = [subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True) for words in commands]
    status = "passed"
    for words, process in zip(commands, running, strict=True):
        try:
            code = process.wait(max(end - time.monotonic(), 0.01))
            status = _worse(status, "passed" if code == 0 else "failed")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            log.write(f"\nstopped after {seconds:.0f} s: {' '.join(words)}\n")
            status = "too long"
    return status


def table(outcomes: list[Outcome]) -> str:
    """A line a stage."""
    width = max(len(outcome.stage) for outcome in outcomes)
    return "\n".join(f"{one.stage:{width}}  {one.status:8}  {one.seconds:6.1f} s  {one.summary}" for one in outcomes)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/on_gpu.sh")
    parser.add_argument("directory", type=Path, metavar="DIR", help="where results and logs go")
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"of {', '.join(STAGES)}; all without one")
    parser.add_argument("--dry-run", action="store_true", help="what a CPU can run of them")
    parser.add_argument("--describe", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args(arguments)
    unknown = [name for name in options.stages if name not in STAGES]
    if unknown:
        parser.error(f"there is no stage {unknown[0]!r}; expected some of {', '.join(STAGES)}")
    options.directory.mkdir(parents=True, exist_ok=True)
    if options.describe:
        (options.directory / "versions.json").write_text(json.dumps(describe(options.dry_run), indent=1))
        return 0
    outcomes = []
    for name in options.stages or STAGES:
        print(f"{name} …", flush=True)
        outcomes.append(run(name, STAGES[name], options.directory, options.dry_run))
    print(table(outcomes), flush=True)
    return int(any(outcome.status not in ("passed", "skipped") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
