"""The stages of ``benchmarks/on_gpu.sh``: each is a few commands with a time limit and a one-line summary.

This module needs only the standard library; a stage reports the other modules that it needs if they are missing.
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
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

LIMIT = 590.0
"""Seconds that a stage may take, for all its commands together."""

TESTS = Path(__file__).resolve().parents[2] / "tests"
PACKAGES = ("torch", "triton", "numpy", "jax", "mlstm_kernels", "flash-linear-attention", "xlstm")


@dataclass(frozen=True)
class Stage:
    """The commands of a stage, and the summary of their outcome.

    Attributes:
        commands: returns the arguments of ``python`` for each command, given the directory and whether this is a dry
            run.
        needs: modules without which the stage cannot run.
        summary: returns a few words about the files that the commands left in the directory.
        gpu: whether the stage makes no sense on a CPU, not even in a dry run.
        together: whether the commands run at the same time, because they wait for the compiler.
    """

    commands: Callable[[Path, bool], list[list[str]]]
    summary: Callable[[Path], str]
    needs: tuple[str, ...] = ()
    gpu: bool = False
    together: bool = False


@dataclass
class Outcome:
    """The outcome of a stage: ``passed``, ``failed``, ``too long``, ``missing`` or ``skipped``."""

    stage: str
    status: str
    seconds: float
    summary: str
    commands: list[str] = field(default_factory=list)


def _versions(directory: Path, dry: bool) -> list[list[str]]:
    return [["-m", "benchmarks.gpu.stages", str(directory), "--describe", *(["--dry-run"] if dry else [])]]


def describe(dry: bool) -> dict[str, Any]:
    """The machine and its software; None for components that are not present."""
    import torch

    from benchmarks.gpu.proofs import ROOT, digests
    from torch_impl._backends import architecture

    found: dict[str, Any] = {"python": sys.version.split()[0], "sources": digests(ROOT)}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "device": properties.name,
            "architecture": architecture(torch.device("cuda", 0)),
            "multiprocessors": properties.multi_processor_count,
            "memory": properties.total_memory,
            "cuda": torch.version.cuda,
        }
    elif not dry:
        raise SystemExit("PyTorch sees no CUDA device here")
    return found


def _tests(name: str, folder: Path, some: str, *left_out: str) -> Callable[[Path, bool], list[list[str]]]:
    """The tests of kernels, in as many processes as there are cores; in a dry run those named by ``some``, in one."""
    # Neither the project's configuration nor its conftest is used: a warning of another version is not a kernel's
    # failure, and the conftest restricts JAX to the CPU.
    options = ["-c", os.devnull, "--rootdir", ".", "--confcutdir", str(folder), "--import-mode=importlib"]
    options += ["-q", "-p", "no:cacheprovider", "-p", "benchmarks.gpu.shard"]
    options += [f"--ignore={folder / file}" for file in left_out]

    def commands(directory: Path, dry: bool) -> list[list[str]]:
        shards = 1 if dry else _cores()
        return [
            ["-m", "pytest", *options, *(["-k", some] if dry else []), f"--shard={number}/{shards}",
             f"--junitxml={directory / f'{name}-{number}.xml'}", str(folder)]
            for number in range(shards)
        ]  # fmt: skip

    return commands


def _cores() -> int:
    return min(os.cpu_count() or 1, 12)


def _suite(
    name: str, target: str, backend: str, *options: str, ops: tuple[str, ...] = ()
) -> Callable[[Path, bool], list[list[str]]]:
    """The suite on a backend of ``target``; if operations are named, one after the other, so that finished results are
    kept. A dry run names no backend, because a CPU has no kernels."""

    def commands(directory: Path, dry: bool) -> list[list[str]]:
        named = ["--device", "cuda", "--kernel-backend", backend, "--jobs", str(_cores())]
        where = ["--device", "cpu"] if dry else named
        little = ["--op", "rev_cumsum", "--examples", "2", "--max-steps", "9"]
        runs = [(name, little)] if dry else [(f"{name}-{op}", ["--op", op]) for op in ops] or [(name, [])]
        return [
            ["-m", "conformance", "run", target, *where, *options, *some, "--failures", str(directory / "failures"),
             "--json", str(directory / f"suite-{one}.json")]
            for one, some in runs
        ]  # fmt: skip

    return commands


MLSTM = [f"mlstm:{65536 // S}x{S}x16x128x256:bfloat16" for S in (8192, 65536, 2048, 512)]
"""The shapes that the mLSTM's kernels are designed for, the most informative first."""
STEPS = [f"mlstm_step:{B}x16x128x256:bfloat16" for B in (1024, 1)]
GRU = [f"gru:{sizes}:bfloat16" for sizes in ("8x4096x85x16", "16x1024x12x64", "128x128x1x256")]
TORCH, JAX = ("triton", "torch"), ("pallas", "xla")


def _benchmark(
    name: str, shapes: list[str], backends: tuple[str, ...], peers: str
) -> Callable[[Path, bool], list[list[str]]]:
    """One benchmark process, which writes its results after every case."""

    def commands(directory: Path, dry: bool) -> list[list[str]]:
        words = [word for backend in backends for word in ("--backend", backend)]
        chosen = ["mlstm:1x64x2x16x16", "mlstm_step:1x2x16x16", "gru:2x16x2x8"] if dry else shapes
        words += [word for shape in chosen for word in ("--shapes", shape)]
        where = ["--device", "cpu", "--rounds", "3"] if dry else ["--device", "cuda"]
        return [
            ["-m", "benchmarks", "run", *where, *words, "--peers", peers, "--json", str(directory / f"{name}.json")]
        ]

    return commands


def _large(directory: Path, dry: bool) -> list[list[str]]:
    sizes = ["--device", "cpu", "--elements", "20000"] if dry else ["--device", "cuda"]
    return [["-m", "benchmarks.gpu.large", "--json", str(directory / "large.json"), *sizes]]


def _tune(directory: Path, dry: bool) -> list[list[str]]:
    return [["-m", "benchmarks", "tune", "--json", str(directory / "tune.json")]]


def _prove(directory: Path, dry: bool) -> list[list[str]]:
    return [["-m", "benchmarks", "prove", str(directory)]]


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _versions_summary(directory: Path) -> str:
    found = _read(directory / "versions.json")
    return ", ".join(f"{name} {found[name]}" for name in ("device", "python", "torch", "triton") if found.get(name))


def _tests_summary(pattern: str, directory: Path) -> str:
    roots = [ElementTree.parse(path).getroot() for path in sorted(directory.glob(pattern))]
    suites = [suite for root in roots for suite in ([root] if root.tag == "testsuite" else root)]
    counts = {
        name: sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    }
    if not counts["tests"]:
        raise ValueError("no test ran")
    (directory / f"{pattern.partition('-')[0].partition('.')[0]}.json").write_text(json.dumps(counts, indent=1))
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _suite_summary(name: str) -> Callable[[Path], str]:
    def summary(directory: Path) -> str:
        counts: Counter[str] = Counter()
        paths = sorted(directory.glob(f"suite-{name}*.json"))
        for path in paths:
            counts.update(law["status"] for document in _read(path) for law in document["laws"])
        if not counts:
            raise ValueError("no law was tried")
        return ", ".join(f"{count} {status}" for status, count in counts.items()) + f" in {len(paths)} runs"

    return summary


def _times(name: str) -> Callable[[Path], str]:
    """For every case our fastest time, its fraction of the floor, and how much longer the fastest peer takes."""

    def summary(directory: Path) -> str:
        rows = _read(directory / f"{name}.json")["rows"]
        timed = [row for row in rows if row["seconds"] is not None]
        words = []
        for case in dict.fromkeys(row["case"] for row in timed):
            ours, others = (
                [row for row in timed if row["case"] == case and row["own"] is own] for own in (True, False)
            )
            if not ours:
                continue
            best = min(ours, key=lambda row: row["seconds"])
            text = f"{case}: {best['contender']} {1e3 * best['seconds']:.3f} ms"
            text += f", {best['seconds'] / best['floor_seconds']:.1f} floors" if best["floor_seconds"] else ""
            if others:
                peer = min(others, key=lambda row: row["seconds"])
                text += f", {peer['contender']} {peer['seconds'] / best['seconds']:.2f}x"
            words.append(text)
        return "; ".join(words) + (f" ({len(timed)} of {len(rows)} rows timed)")

    return summary


def _large_summary(directory: Path) -> str:
    return "; ".join(
        f"{check['operation']}: {check['elements']} elements, {check['found']}"
        for check in _read(directory / "large.json")
    )


def _tune_summary(directory: Path) -> str:
    return f"{len(_read(directory / 'tune.json'))} choices in cache/triton-plans.json"


def _proof_summary(directory: Path) -> str:
    """The output of `benchmarks.gpu.proofs.prove_command`."""
    lines = (directory / "proof.log").read_text(encoding="utf-8").splitlines()[1:]
    return "; ".join(lines)


SUITE, TIMES = ("torch", "triton", "hypothesis", "click", "rich"), ("torch", "triton", "click", "rich")
REST = (
    "mlstm_step",
    "rev_cumsum",
    "rev_cumsum_off",
    "causal_forget_matrix",
    "dtilde_matrix",
    "GRU",
    "mLSTMBackendFwbw",
)
DEVICE_LAWS = [
    word
    for name in ("far_offsets", "large_grids", "stream", "graph", "graph_first_call", "uninitialised", "determinism")
    for word in ("--law", name)
]
"""The laws that only a GPU may break. They run in one process, because they include a buffer of 16 GiB."""

STAGES = {
    "versions": Stage(_versions, _versions_summary, ("torch", "triton")),
    "kernels": Stage(
        _tests("kernels", TESTS / "torch" / "kernels", "rows", "test_interpreter.py", "test_aot.py"),
        partial(_tests_summary, "kernels-*.xml"),
        ("torch", "triton", "pytest"),
        together=True,
    ),
    "mlstm": Stage(_benchmark("mlstm", [*MLSTM, *STEPS], TORCH, "mlstm_kernels,fla"), _times("mlstm"), TIMES),
    "gru": Stage(_benchmark("gru", GRU, TORCH, "torch_gru,flashrnn"), _times("gru"), TIMES),
    "conformance": Stage(
        _suite("short", "torch_impl", "triton", "--examples", "5", "--max-steps", "260"), _suite_summary("short"), SUITE
    ),
    "large": Stage(_large, _large_summary, ("torch", "triton")),
    "device": Stage(
        _suite("device", "torch_impl", "triton", "--jobs", "1", *DEVICE_LAWS), _suite_summary("device"), SUITE
    ),
    "composed": Stage(
        _suite("composed", "torch_impl", "torch", "--examples", "5", "--max-steps", "260"),
        _suite_summary("composed"),
        SUITE,
    ),
    "tune": Stage(_tune, _tune_summary, TIMES, gpu=True),
    "tuned": Stage(_benchmark("tuned", [*MLSTM, *GRU], TORCH[:1], "fla"), _times("tuned"), TIMES, gpu=True),
    "suite-mlstm": Stage(
        _suite("mlstm", "torch_impl", "triton", ops=("mlstm", "fwbw")), _suite_summary("mlstm"), SUITE
    ),
    "suite-gru": Stage(_suite("gru", "torch_impl", "triton", ops=("gru",)), _suite_summary("gru"), SUITE),
    "suite-slstm": Stage(
        _suite("slstm", "torch_impl", "triton", ops=("slstm", "slstm_step")), _suite_summary("slstm"), SUITE
    ),
    "suite-rest": Stage(_suite("rest", "torch_impl", "triton", ops=REST), _suite_summary("rest"), SUITE),
    "pallas": Stage(
        _tests("pallas", TESTS / "jax" / "kernels", "reason", "test_interpreter.py", "test_aot_pallas.py"),
        partial(_tests_summary, "pallas-*.xml"),
        ("jax", "pytest"),
        together=True,
    ),
    "pallas-suite": Stage(
        _suite("pallas", "jax_impl", "pallas", ops=("mlstm_step", "mlstm", "gru")),
        _suite_summary("pallas"),
        ("jax", "hypothesis", "click", "rich"),
        gpu=True,
    ),
    "pallas-times": Stage(
        _benchmark("pallas-times", [*MLSTM, *STEPS, *GRU], JAX, "none"),
        _times("pallas-times"),
        ("jax", "click", "rich"),
    ),
    "forward": Stage(
        _benchmark("forward", [f"{shape}:forward" for shape in (*MLSTM, *GRU)], TORCH, "mlstm_kernels,fla,torch_gru"),
        _times("forward"),
        TIMES,
    ),
    "proof": Stage(_prove, _proof_summary, ("torch", "click", "rich"), gpu=True),
}
"""The stages in the order in which they run: the decisive ones come first. The last also follows any that are named."""


def run(name: str, stage: Stage, directory: Path, dry: bool, limit: float = LIMIT) -> Outcome:
    """Run one stage; its output goes to ``DIR/NAME.log``, its outcome to ``DIR/NAME.outcome.json``."""
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
    """Run commands at the same time; after ``seconds``, stop those that still run, with all their child processes."""
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
    """A table with one line per stage."""
    width = max(len(outcome.stage) for outcome in outcomes)
    return "\n".join(f"{one.stage:{width}}  {one.status:8}  {one.seconds:6.1f} s  {one.summary}" for one in outcomes)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/on_gpu.sh")
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory for results and logs")
    parser.add_argument(
        "stages", nargs="*", metavar="STAGE", help=f"stages to run, of {', '.join(STAGES)}; default: all"
    )
    parser.add_argument("--dry-run", action="store_true", help="run only what a CPU can run")
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
    named: list[str] = options.stages or [*STAGES]
    for name in named if "proof" in named or "proof" not in STAGES else [*named, "proof"]:
        print(f"{name} …", flush=True)
        outcomes.append(run(name, STAGES[name], options.directory, options.dry_run))
    print(table(outcomes), flush=True)
    return int(any(outcome.status not in ("passed", "skipped") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
