"""The stages of ``benchmarks/on_gpu.sh``: the commands of each, its share of the time, and a summary of its results.

This module needs only the standard library; a stage reports the other modules that it needs if they are missing.
`benchmarks.gpu.running` runs the stages.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.gpu.shard import records
from conformance.command.requirements import PACKAGES

TESTS = Path(__file__).resolve().parents[2] / "tests"
VERSIONS = ("torch", "triton", "numpy", "jax", "mlstm_kernels", "flash-linear-attention", "xlstm")


@dataclass(frozen=True)
class Stage:
    """The commands of a stage, and the summary of their outcome.

    Attributes:
        commands: returns the arguments of ``python`` for each command, given the directory and whether this is a dry
            run.
        summary: returns a few words about the files that the commands left in the directory.
        needs: modules without which the stage cannot run.
        share: the seconds that it takes of 540; it may take its share of the time that is left, and what it does not
            take is left to those after it.
        gpu: whether the stage makes no sense on a CPU, not even in a dry run.
        together: how many commands run at a time: they wait for imports and the compiler more than for the GPU.
        usual: whether it runs when no stage is named.
    """

    commands: Callable[[Path, bool], list[list[str]]]
    summary: Callable[[Path], str]
    needs: tuple[str, ...] = ()
    share: float = 60.0
    gpu: bool = False
    together: int = 1
    usual: bool = True


def _versions(directory: Path, dry: bool) -> list[list[str]]:
    return [["-m", "benchmarks.gpu.running", str(directory), "--describe", *(["--dry-run"] if dry else [])]]


def describe(dry: bool) -> dict[str, Any]:
    """The machine and its software; None for components that are not present."""
    import torch

    from benchmarks.gpu.proofs import ROOT, digests
    from torch_impl._backends import architecture

    found: dict[str, Any] = {"python": sys.version.split()[0], "sources": digests(ROOT)}
    for name in VERSIONS:
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


def _calls(directory: Path, dry: bool) -> list[list[str]]:
    """One call of every kernel, each in a process of its own; in a dry run, small ones of a few."""
    named = ["mlstm", "rev_cumsum"] if dry else [*CALLS]
    where = ["--device", "cpu", "--tiny"] if dry else ["--device", "cuda"]
    return [
        ["-m", "benchmarks.gpu.calls", name, *where, "--json", str(directory / f"call-{name}.json")] for name in named
    ]


def _captured(directory: Path, dry: bool) -> list[list[str]]:
    """First calls of a process inside the capture of a CUDA graph."""
    options = ["--captured", "--dtype", "bfloat16"]
    return [
        ["-m", "benchmarks.gpu.calls", name, *options, "--json", str(directory / f"captured-{name}.json")]
        for name in ("mlstm", "mlstm-packed", "gru-16", "slstm-16")
    ]


def _tests(name: str, folder: Path, some: str, *left_out: str) -> Callable[[Path, bool], list[list[str]]]:
    """The tests of kernels, in as many processes as there are cores; in a dry run those named by ``some``, in one."""

    def commands(directory: Path, dry: bool) -> list[list[str]]:
        few = ["-k", some] if dry else ["--shards", str(_cores())]
        ignored = [word for file in left_out for word in ("--ignore", file)]
        return [["-m", "benchmarks.gpu.tests", name, str(directory), str(folder), "--limit", "60", *few, *ignored]]

    return commands


def _sanitize(directory: Path, dry: bool) -> list[list[str]]:
    """Tiny calls under compute-sanitizer, all kernels under memcheck first."""
    tools = [(tool, name) for tool in SANITIZERS for name in CALLS if not name.startswith("pallas")]
    return [
        ["-m", "benchmarks.gpu.sanitize", tool, name, "--json", str(directory / f"sanitize-{tool}-{name}.json")]
        for tool, name in tools
    ]


def _cores() -> int:
    return min(os.cpu_count() or 1, 16)


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


def _short(target: str, backend: str, ops: tuple[str, ...]) -> Callable[[Path, bool], list[list[str]]]:
    """A short conformance, each operation in a process of its own."""
    return _suite(f"short-{target}", target, backend, "--examples", "3", "--max-steps", "260", "--jobs", "1", ops=ops)


def _device(directory: Path, dry: bool) -> list[list[str]]:
    """The laws that only a GPU may break; those with a buffer of 16 GiB in two processes, which fit into 80 GiB."""
    options = ("--examples", "3", "--jobs", "1")
    laws = {name: [word for law in names for word in ("--law", law)] for name, names in DEVICE_LAWS.items()}
    halves = [[word for op in OPERATIONS[half:8:2] for word in ("--op", op)] for half in (0, 1)]
    far = [
        _suite(f"device-far-{number}", "torch_impl", "triton", *options, *laws["far"], *half)
        for number, half in enumerate(halves)
    ]
    rest = _suite("device", "torch_impl", "triton", *options, *laws["rest"], ops=OPERATIONS[:8])
    return [command for some in (*far, rest) for command in some(directory, dry)]


MLSTM = [
    f"mlstm:{65536 // S}x{S}x16x128x256:bfloat16{direction}"
    for S in (8192, 65536, 2048, 512)
    for direction in ("", ":forward")
]
"""The shapes that the mLSTM's kernels are designed for, the most informative first."""
STEPS = [f"mlstm_step:{B}x16x128x256:bfloat16" for B in (1024, 1)]
GRU = [f"gru:{sizes}:bfloat16" for sizes in ("8x4096x85x16", "16x1024x12x64", "128x128x1x256")]
RECURRENT = [*GRU[:2], "slstm:16x1024x12x64:bfloat16"]
TORCH, JAX = ("triton", "torch"), ("pallas", "xla")


def _benchmark(
    name: str, shapes: list[str], backends: tuple[str, ...], peers: tuple[str, ...] = ()
) -> Callable[[Path, bool], list[list[str]]]:
    """A process for our own packages and one for each peer, whose compiler may end it; each writes after every case."""

    def commands(directory: Path, dry: bool) -> list[list[str]]:
        # A CPU has no kernels.
        on_cpu = (("xla",) if "pallas" in backends else ("torch",)) if dry else backends
        words = [word for backend in on_cpu for word in ("--backend", backend)]
        chosen = ["mlstm:1x64x2x16x16", "mlstm_step:1x2x16x16", "gru:2x16x2x8"] if dry else shapes
        words += [word for shape in chosen for word in ("--shapes", shape)]
        where = ["--device", "cpu", "--rounds", "3"] if dry else ["--device", "cuda"]
        return [
            ["-m", "benchmarks", "run", *where, *words, "--peers", peer, "--json", str(directory / f"{file}.json")]
            for peer, file in [("none", name), *((peer, f"{name}-{peer}") for peer in peers)]
        ]

    return commands


def _large(directory: Path, dry: bool) -> list[list[str]]:
    sizes = ["--device", "cpu", "--elements", "20000"] if dry else ["--device", "cuda"]
    return [["-m", "benchmarks.gpu.large", "--json", str(directory / "large.json"), *sizes]]


def _profiles(directory: Path, dry: bool) -> list[list[str]]:
    device = "cpu" if dry else "cuda"
    return [["-m", "benchmarks.gpu.profiles", "--device", device, "--json", str(directory / "profiles.json")]]


def _tune(directory: Path, dry: bool) -> list[list[str]]:
    return [["-m", "benchmarks", "tune", "--json", str(directory / "tune.json")]]


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _versions_summary(directory: Path) -> str:
    found = _read(directory / "versions.json")
    return ", ".join(f"{name} {found[name]}" for name in ("device", "python", "torch", "triton") if found.get(name))


def _calls_summary(kind: str, directory: Path) -> str:
    """The number of calls that returned, and the results that are wrong."""
    paths = sorted(directory.glob(f"{kind}-*.json"))
    rows = [row for path in paths for row in _read(path)]
    if not rows:
        raise ValueError("no call returned")
    wrong = {f"{row['call']} {row['dtype']} {row['result']} {row['error']:.1e}" for row in rows if not row["passed"]}
    return f"{len(paths)} calls returned" + (f"; wrong: {', '.join(sorted(wrong))}" if wrong else ", none wrong")


def _tests_summary(name: str, directory: Path) -> str:
    """The number of tests with each outcome, and the names of the tests that ended their process."""
    rows = [row for path in sorted(directory.glob(f"{name}-*.jsonl")) for row in records(path)]
    last = {row["test"]: row["outcome"] for row in rows}
    if not last:
        raise ValueError("no test ran")
    counts = Counter(last.values())
    (directory / f"{name}.json").write_text(json.dumps(counts, indent=1))
    lost = [
        test.rpartition("/")[2] for test, outcome in last.items() if outcome.startswith(("hung", "crash", "context"))
    ]
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) + "".join(f"; {one}" for one in lost)


def _sanitize_summary(directory: Path) -> str:
    rows = [_read(path) for path in sorted(directory.glob("sanitize-*.json"))]
    if not rows:
        raise ValueError("nothing was sanitized")
    found = [f"{row['tool']} {row['call']}: {row['found']}" for row in rows if row["found"] != "0 errors"]
    return f"{len(rows)} calls" + (f"; {'; '.join(found)}" if found else ", 0 errors")


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
        paths = [*directory.glob(f"{name}.json"), *sorted(directory.glob(f"{name}-*.json"))]
        rows = [row for path in paths for row in _read(path)["rows"]]
        timed = [row for row in rows if row["seconds"] is not None]
        if not rows:
            raise ValueError("nothing was timed")
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


def _profiles_summary(directory: Path) -> str:
    """The longest kernels of every call."""
    return "; ".join(
        f"{call}: " + ", ".join(f"{row['kernel'][:40]} {row['microseconds'] / 1e3:.2f} ms" for row in rows[:5])
        for call, rows in _read(directory / "profiles.json").items()
    )


def _tune_summary(directory: Path) -> str:
    return f"{len(_read(directory / 'tune.json'))} choices in cache/triton-plans.json"


SANITIZERS = ("memcheck", "racecheck", "initcheck")
CALLS = (
    *("mlstm", "mlstm-packed", "mlstm_step", "gru-16", "gru-256", "slstm-16", "slstm-256", "slstm_step"),
    *("rev_cumsum", "rev_cumsum_off", "causal_forget_matrix", "dtilde_matrix"),
    *("pallas-mlstm", "pallas-mlstm_step", "pallas-gru-16", "pallas-gru-256"),
)
"""The names of `benchmarks.gpu.calls`, which needs more than the standard library."""
SUITE, TIMES = ("torch", "triton", *PACKAGES), ("torch", "triton", "click", "rich")
OPERATIONS = (
    "mlstm",
    "gru",
    "slstm",
    "fwbw",
    "mlstm_step",
    "slstm_step",
    "rev_cumsum",
    "rev_cumsum_off",
    "causal_forget_matrix",
    "dtilde_matrix",
    "GRU",
    "mLSTMBackendFwbw",
)
DEVICE_LAWS = {"far": ("far_offsets",), "rest": ("large_grids", "stream", "graph", "uninitialised", "determinism")}

STAGES = {
    "versions": Stage(_versions, _versions_summary, ("torch", "triton"), share=20),
    "calls": Stage(_calls, partial(_calls_summary, "call"), ("torch", "triton"), share=30, together=20),
    "captured": Stage(
        _captured, partial(_calls_summary, "captured"), ("torch", "triton"), share=15, gpu=True, together=4
    ),
    "kernels": Stage(
        _tests("kernels", TESTS / "torch" / "kernels", "rows", "test_interpreter.py", "test_aot.py"),
        partial(_tests_summary, "kernels"),
        ("torch", "triton", "pytest"),
        share=70,
    ),
    "mlstm": Stage(_benchmark("mlstm", MLSTM[:4], TORCH[:1], ("mlstm_kernels", "fla")), _times("mlstm"), TIMES, 50),
    "recurrent": Stage(
        _benchmark("recurrent", RECURRENT, TORCH[:1], ("torch_gru", "flashrnn")), _times("recurrent"), TIMES, 30
    ),
    "profiles": Stage(_profiles, _profiles_summary, ("torch", "triton"), 20),
    "device": Stage(_device, _suite_summary("device"), SUITE, 80, together=10),
    "sanitize": Stage(_sanitize, _sanitize_summary, ("torch", "triton"), 30, gpu=True, together=12),
    "pallas": Stage(
        _tests("pallas", TESTS / "jax" / "kernels", "reason", "test_interpreter.py", "test_aot_pallas.py"),
        partial(_tests_summary, "pallas"),
        ("jax", "pytest"),
        share=80,
    ),
    "pallas-times": Stage(
        _benchmark("pallas-times", [MLSTM[0], STEPS[0], GRU[1]], JAX[:1]),
        _times("pallas-times"),
        ("jax", "click", "rich"),
        share=20,
    ),
    "tune": Stage(_tune, _tune_summary, TIMES, share=20, gpu=True),
    "large": Stage(_large, _large_summary, ("torch", "triton"), share=30),
    "conformance": Stage(
        _short("torch_impl", "triton", OPERATIONS), _suite_summary("short-torch_impl"), SUITE, 30, together=12
    ),
    "pallas-conformance": Stage(
        _short("jax_impl", "pallas", ("mlstm_step", "mlstm", "gru")),
        _suite_summary("short-jax_impl"),
        ("jax", *PACKAGES),
        share=15,
        together=3,
    ),
    "all-times": Stage(
        _benchmark("all-times", [*MLSTM, *STEPS, *GRU], TORCH, ("mlstm_kernels", "fla", "torch_gru", "flashrnn")),
        _times("all-times"),
        TIMES,
        usual=False,
    ),
    "composed": Stage(
        _suite("composed", "torch_impl", "torch", "--examples", "5", "--max-steps", "260"),
        _suite_summary("composed"),
        SUITE,
        usual=False,
    ),
    "tuned": Stage(
        _benchmark("tuned", [*MLSTM, *GRU], TORCH[:1], ("fla",)), _times("tuned"), TIMES, gpu=True, usual=False
    ),
    "suite": Stage(
        _suite("suite", "torch_impl", "triton", ops=OPERATIONS), _suite_summary("suite"), SUITE, usual=False
    ),
    "pallas-suite": Stage(
        _suite("pallas", "jax_impl", "pallas", ops=("mlstm_step", "mlstm", "gru")),
        _suite_summary("pallas"),
        ("jax", *PACKAGES),
        gpu=True,
        usual=False,
    ),
}
"""The stages in the order in which they run: the most valuable come first. Those that are not usual take an hour."""
