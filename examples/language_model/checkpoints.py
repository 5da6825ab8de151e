"""Checkpoints that are complete or absent, and are checked for damage before anything is read from them.

A checkpoint is a directory ``step-00000100``. It is written under a temporary name and renamed when everything is on
the disk, so a killed process leaves no incomplete checkpoint. Its manifest holds the size and the SHA-256 of every
file. The files themselves are written by the caller, with orbax or `torch.distributed.checkpoint`.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NAME = re.compile(r"step-(\d{8})")
_MANIFEST = "manifest.json"
_UNFINISHED = ".unfinished-"


class CheckpointError(ValueError):
    """No checkpoint can be used, or one is damaged; the text names it."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """An undamaged checkpoint.

    Attributes:
        step: the number of steps that were done.
        directory: its directory.
        facts: the facts that its writer noted in the manifest.
    """

    step: int
    directory: Path
    facts: Mapping[str, Any]


def unfinished(directory: Path, step: int) -> Path:
    """The temporary directory of a checkpoint, which `finish` renames."""
    return directory / f"{_UNFINISHED}step-{step:08d}"


def begin(directory: Path, step: int) -> None:
    """Make the temporary directory of a checkpoint."""
    path = unfinished(directory, step)
    _remove(path)
    path.mkdir(parents=True)


def finish(directory: Path, step: int, facts: Mapping[str, Any], keep: int) -> Path:
    """Write the manifest of a checkpoint, rename it, and remove all checkpoints except the newest ``keep``."""
    written, final = unfinished(directory, step), directory / f"step-{step:08d}"
    files = {}
    for path in sorted(path for path in written.rglob("*") if path.is_file()):
        files[path.relative_to(written).as_posix()] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        _to_disk(path)
    manifest = written / _MANIFEST
    manifest.write_text(json.dumps({"step": step, "facts": dict(facts), "files": files}, indent=1), encoding="utf-8")
    _to_disk(manifest)
    # A damaged checkpoint of the same step may be in the way.
    _remove(final)
    written.rename(final)
    _to_disk(directory)
    for _, path in _named(directory)[keep:]:
        _remove(path)
    return final


def newest(directory: Path, refused: Callable[[str], None]) -> Checkpoint | None:
    """The newest undamaged checkpoint; None if none was ever finished.

    Args:
        directory: the directory of all checkpoints.
        refused: called with a sentence about each newer checkpoint that is damaged.

    Raises:
        CheckpointError: there are checkpoints, but all are damaged.
    """
    found = _named(directory)
    for _, path in found:
        try:
            return read(path)
        except CheckpointError as error:
            refused(str(error))
    if found:
        raise CheckpointError(
            f"every checkpoint in {directory} is damaged: {', '.join(path.name for _, path in found)}"
        )
    return None


def read(path: Path) -> Checkpoint:
    """Read a checkpoint and compare all its files with its manifest.

    Raises:
        CheckpointError: the manifest or a file is missing, truncated or changed.
    """
    try:
        manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        step, facts, files = manifest["step"], manifest["facts"], manifest["files"]
        expected = {str(name): (of["bytes"], of["sha256"]) for name, of in files.items()}
        present = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"checkpoint {path.name} is damaged: {_MANIFEST} cannot be read") from error
    if type(step) is not int or path.name != f"step-{step:08d}":
        raise CheckpointError(f"checkpoint {path.name} is damaged: {_MANIFEST} is of step {step}")
    if not isinstance(facts, dict):
        raise CheckpointError(f"checkpoint {path.name} is damaged: `facts` in {_MANIFEST} is no object")
    for name in sorted(present - expected.keys() - {_MANIFEST}):
        raise CheckpointError(f"checkpoint {path.name} is damaged: {name} is not in {_MANIFEST}")
    for name, (size, digest) in expected.items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"checkpoint {path.name} is damaged: {name} is missing")
        if file.stat().st_size != size:
            raise CheckpointError(
                f"checkpoint {path.name} is damaged: {name} has {file.stat().st_size:,} bytes; expected {size}"
            )
        if _sha256(file) != digest:
            raise CheckpointError(f"checkpoint {path.name} is damaged: the content of {name} has changed")
    return Checkpoint(step=step, directory=path, facts=facts)


def remove_unfinished(directory: Path) -> None:
    """Remove the unfinished checkpoints of killed processes."""
    for path in directory.glob(f"{_UNFINISHED}*"):
        _remove(path)


def _named(directory: Path) -> list[tuple[int, Path]]:
    """Every finished checkpoint with its step, newest first."""
    matches = ((_NAME.fullmatch(path.name), path) for path in directory.glob("step-*"))
    return sorted(((int(match[1]), path) for match, path in matches if match), reverse=True)


def _remove(path: Path) -> None:
    """Remove whatever has this name: a directory, a file, a link, or nothing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
