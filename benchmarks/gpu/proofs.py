"""Evidence from a run of ``on_gpu.sh``: which kernels have passed on which hardware, for the choice of a backend.

``python -m benchmarks prove --from run.tgz`` condenses what a run left into a file of ``benchmarks/results/gpu``, and
derives the ``proofs.json`` of each package from all files there. A kernel whose sources have changed since the run has
no evidence.
"""

import hashlib
import io
import json
import tarfile
import tempfile
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from reference.backends import Proof

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path("benchmarks", "results", "gpu")
PROOFS = "proofs.json"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A package whose kernels are judged by a run.

    Attributes:
        backend: the name of its kernels.
        frameworks: the packages whose versions count.
        stages: the stages that must pass for any of its kernels.
        shared: the sources that all its kernels use.
        folders: by operation, the folders of its kernels' sources.
        laws: for operations that are judged by laws of others too, the names of all.
    """

    backend: str
    frameworks: tuple[str, ...]
    stages: tuple[str, ...]
    shared: str
    folders: Mapping[str, tuple[str, ...]]
    laws: Mapping[str, tuple[str, ...]]


JUDGED = {
    "torch_impl": Judged(
        backend="triton",
        frameworks=("torch", "triton"),
        stages=("kernels", "large", "device"),
        shared="_triton/*.py",
        folders={
            "mlstm": ("_mlstm/triton",),
            "mlstm_step": ("_mlstm/triton",),
            "gru": ("_gru/triton", "_recurrent/triton"),
            "slstm": ("_slstm/triton", "_recurrent/triton"),
            "slstm_step": ("_slstm/triton", "_recurrent/triton"),
            "rev_cumsum": ("_scan/triton",),
            "rev_cumsum_off": ("_scan/triton",),
            "causal_forget_matrix": ("_decay/triton",),
            "dtilde_matrix": ("_decay/triton",),
        },
        laws={"mlstm": ("mlstm", "fwbw")},
    ),
    "jax_impl": Judged(
        backend="pallas",
        frameworks=("jax",),
        stages=("pallas",),
        shared="_pallas.py",
        folders={"mlstm": ("_mlstm/pallas",), "mlstm_step": ("_mlstm/pallas",), "gru": ("_gru/pallas",)},
        laws={},
    ),
}
"""The requirements on a run, by package."""


def condensed(directory: Path) -> dict[str, Any]:
    """The result file of a run: the hardware, the stages' outcomes, the laws' statuses, and digests of the kernels.

    Raises:
        ValueError: the run did not find out its GPU.
    """
    machine = read(directory / "versions.json") if (directory / "versions.json").exists() else {}
    if not machine.get("architecture"):
        raise ValueError(f"{directory} holds no run on a GPU: its versions.json names no architecture")
    outcomes = [read(path) for path in sorted(directory.glob("*.outcome.json"))]
    return {
        "device": machine["device"],
        "architecture": machine["architecture"],
        "versions": {name: machine[name] for one in JUDGED.values() for name in one.frameworks if machine.get(name)},
        "stages": {one["stage"]: {key: one[key] for key in ("status", "seconds", "summary")} for one in outcomes},
        "laws": _statuses(path for path in sorted(directory.glob("suite-*.json"))),
        "sources": machine["sources"],
    }


def _statuses(paths: Iterable[Path]) -> dict[str, dict[str, dict[str, list[str]]]]:
    """By package, law and dtype, the statuses of every run in which the package's kernels were named."""
    found: dict[str, dict[str, dict[str, list[str]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for document in (document for path in paths for document in read(path)):
        package = document["target"]
        if package in JUDGED and document["settings"]["kernel_backend"] == JUDGED[package].backend:
            for law in document["laws"]:
                kind = ", definition" if law["kind"] == "definition" else ""
                found[package][f"{law['id']}{kind}"][law["dtype"]].append(law["status"])
    return found


def proofs_of(result: Mapping[str, Any], name: str, root: Path) -> dict[str, list[Proof]]:
    """The evidence in a result file, by package, for the kernels whose sources have not changed since the run."""
    found: dict[str, list[Proof]] = {package: [] for package in JUDGED}
    for package, judged in JUDGED.items():
        versions = {framework: result["versions"].get(framework) for framework in judged.frameworks}
        passed = all(result["stages"].get(stage, {}).get("status") == "passed" for stage in judged.stages)
        if not passed or None in versions.values():
            continue
        for operation in judged.folders:
            dtypes = _dtypes(result["laws"].get(package, {}), judged.laws.get(operation, (operation,)))
            if dtypes and result["sources"][package][operation] == digest(package, operation, root):
                found[package].append(
                    Proof(
                        operation=operation,
                        backend=judged.backend,
                        dtypes=dtypes,
                        device=result["device"],
                        architecture=result["architecture"],
                        versions=versions,
                        result=str(RESULTS / name),
                    )
                )
    return found


def _dtypes(laws: Mapping[str, Mapping[str, list[str]]], operations: tuple[str, ...]) -> tuple[str, ...]:
    """The dtypes in which laws of every operation's definition passed and none of its laws was broken or left open."""
    passed, broken = {}, set()
    for operation in operations:
        passed[operation] = set()
        for law, by_dtype in laws.items():
            for dtype, statuses in by_dtype.items():
                if not law.startswith(f"{operation}."):
                    continue
                if {"failed", "differs", "known", "suite failed"} & {*statuses}:
                    broken.add(dtype)
                elif law.endswith(", definition") and "passed" in statuses:
                    passed[operation].add(dtype)
    held = set.intersection(*passed.values()) - broken
    return tuple(dtype for dtype in ("float32", "float16", "bfloat16") if dtype in held)


def derived(root: Path) -> dict[str, str]:
    """The text of every package's ``proofs.json``, from the result files of the tree."""
    found: dict[str, list[Proof]] = {package: [] for package in JUDGED}
    for path in sorted((root / RESULTS).glob("*.json")):
        for package, proofs in proofs_of(read(path), path.name, root).items():
            found[package] += proofs
    return {
        package: json.dumps([asdict(proof) for proof in proofs], indent=1) + "\n" for package, proofs in found.items()
    }


def digests(root: Path) -> dict[str, dict[str, str]]:
    """The `digest` of every kernel, by package and operation."""
    return {
        package: {operation: digest(package, operation, root) for operation in judged.folders}
        for package, judged in JUDGED.items()
    }


def digest(package: str, operation: str, root: Path) -> str:
    """A hash of the code of an operation's kernels, without comments, docstrings and layout."""
    judged, hashed = JUDGED[package], hashlib.sha256()
    for pattern in (*(f"{folder}/*.py" for folder in judged.folders[operation]), judged.shared):
        for path in sorted((root / package).glob(pattern)):
            hashed.update(f"{path.relative_to(root).as_posix()}\n{_code(path)}\n".encode())
    return hashed.hexdigest()


def _code(path: Path) -> str:
    """The tokens of a file; a string that is a statement is a docstring."""
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER)
    words: list[str] = []
    starts, docstring = True, False
    for token in tokenize.tokenize(io.BytesIO(path.read_bytes()).readline):
        if token.type in layout:
            # The depth of a block belongs to the code.
            words += {tokenize.INDENT: ["{"], tokenize.DEDENT: ["}"]}.get(token.type, [])
        elif token.type == tokenize.NEWLINE:
            words += [] if docstring else ["\n"]
            starts, docstring = True, False
        else:
            docstring = starts and token.type == tokenize.STRING
            words += [] if docstring else ["".join(token.string.split())]
            starts = False
    return "".join(words)


def prove(directory: Path, root: Path) -> Path:
    """Take a run into the tree: its result file, and the evidence of every package."""
    result = condensed(directory)
    versions = [f"{name}-{version.partition('+')[0]}" for name, version in result["versions"].items()]
    path = root / RESULTS / f"{'-'.join((result['architecture'], *versions))}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    write(root)
    return path


def write(root: Path) -> None:
    """Write every package's ``proofs.json``."""
    for package, text in derived(root).items():
        (root / package / PROOFS).write_text(text, encoding="utf-8")


def read(path: Path) -> Any:
    """The content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def extract(archives: Iterable[Path], directory: Path) -> None:
    """Unpack the archives of a run; files of a later one replace those of an earlier one.

    Raises:
        ValueError: they are of different machines, versions or sources.
    """
    machines = []
    for path in archives:
        with tarfile.open(path) as archive:
            archive.extractall(directory, filter="data")
        versions = directory / "versions.json"
        machines.append(read(versions) if versions.exists() else {})
        versions.unlink(missing_ok=True)
    if any(machine != machines[0] for machine in machines):
        raise ValueError("these archives are of different machines, versions or sources: take one at a time")
    (directory / "versions.json").write_text(json.dumps(machines[0]), encoding="utf-8")


@click.command("prove")
@click.option(
    "--from",
    "archives",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A run.tgz of on_gpu.sh; may be given several times.",
)
def prove_command(archives: tuple[Path, ...]) -> None:
    """Take a run of on_gpu.sh as evidence for kernels; without one, derive it again from the results in the tree.

    Several archives are one run in pieces, on one kind of GPU: a stage counts as it ended last.
    """
    if archives:
        try:
            with tempfile.TemporaryDirectory() as directory:
                extract(archives, Path(directory))
                path = prove(Path(directory), ROOT)
        except (ValueError, tarfile.TarError) as error:
            raise click.UsageError(str(error)) from error
        for package, found in proofs_of(read(path), path.name, ROOT).items():
            words = [f"{proof.operation} ({', '.join(proof.dtypes)})" for proof in found]
            click.echo(f"{package}, {JUDGED[package].backend}: {'; '.join(words) or 'nothing is proven'}")
        click.echo(f"{path.relative_to(ROOT)}: commit it, with the packages' {PROOFS}")
    write(ROOT)
