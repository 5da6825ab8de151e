"""The manifest of a set of test vectors: what the cases are, and in which file each one lies."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.dtypes import FLOATING, Array
from conformance.implementation import UsageError
from conformance.tensors import unpack

FORMAT = "gatespec test vectors"
VERSION = 1
"""Raised where a program that reads the set must change."""

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Asked:
    """An output or a gradient that a program is asked for.

    Attributes:
        key: of the expected values, and of the answer.
        allowed: the key of what each element may be off by.
        dtype: in which an implementation gives it back.
        log_scale: the key of the m in whose units it is, None where it has no units.
    """

    key: str
    allowed: str
    dtype: str
    log_scale: str | None


@dataclass(frozen=True)
class Entry:
    """A case of a set; ``about`` says in words what is special about it."""

    id: str
    operation: str
    dtype: str
    about: str
    file: str
    sha256: str
    asked: tuple[Asked, ...]


@dataclass(frozen=True)
class VectorSet:
    """A set of test vectors on disk."""

    folder: Path
    seed: int
    entries: tuple[Entry, ...]

    def arrays(self, entry: Entry) -> dict[str, Array]:
        """The arrays of a case.

        Raises:
            UsageError: its file is missing, or is not the one that was exported.
        """
        path = self.folder / entry.file
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UsageError(f"{path} cannot be read ({error.strerror}); export the set again") from error
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise UsageError(f"{path} is not the file that was exported: its SHA-256 differs; export the set again")
        arrays = unpack(data)
        for asked in entry.asked:
            if asked.key not in arrays or asked.allowed not in arrays:
                raise UsageError(f"{path} lacks `{asked.key}`, which the manifest names; export the set again")
        return arrays


def read(folder: Path) -> VectorSet:
    """The set in a folder.

    Raises:
        UsageError: there is none, or it is in a format that this version does not read.
    """
    path = folder / MANIFEST
    written = _parsed(path)
    version = written["version"]
    if version != VERSION:
        raise UsageError(
            f"{path} is in version {version} of the format and this program reads version {VERSION}; "
            "judge with the version of gatespec that exported it, or export the set again"
        )
    try:
        entries = tuple(_entry(case) for case in written["cases"])
        return VectorSet(folder, int(written["seed"]), entries)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} is damaged ({type(error).__name__}: {error}); export the set again") from error


def files_of(folder: Path) -> list[str]:
    """The names of the files that an earlier export wrote to a folder, the manifest first.

    Raises:
        UsageError: there is a manifest of something else.
    """
    if not (folder / MANIFEST).exists():
        return []
    cases = _parsed(folder / MANIFEST).get("cases")
    names = [case.get("file") for case in cases if isinstance(case, dict)] if isinstance(cases, list) else []
    return [MANIFEST, *(name for name in names if isinstance(name, str) and _is_plain(name))]


def _parsed(path: Path) -> dict[str, Any]:
    try:
        written = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(
            f"there is no {path}; give the folder of a set, which `python -m conformance vectors export DIR` writes"
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); give the folder of a set") from error
    except ValueError as error:
        raise UsageError(f"{path} is no JSON ({error}); give the folder of a set, or export it again") from error
    if not isinstance(written, dict) or written.get("format") != FORMAT or not isinstance(written.get("version"), int):
        raise UsageError(f"{path} is no manifest of test vectors; give another folder")
    return written


def _entry(case: dict[str, Any]) -> Entry:
    if not _is_plain(case["file"]):
        raise ValueError(f"{case['file']!r} is no name of a file beside the manifest")
    unknown = [each["dtype"] for each in (*case["outputs"], *case["gradients"]) if each["dtype"] not in FLOATING]
    if unknown:
        raise ValueError(f"there is no dtype {unknown[0]!r}")
    asked = tuple(
        Asked(each["key"], each["allowed"], each["dtype"], each.get("log_scale"))
        for each in (*case["outputs"], *case["gradients"])
    )
    return Entry(case["id"], case["operation"], case["dtype"], case["about"], case["file"], case["sha256"], asked)


def _is_plain(name: str) -> bool:
    return name.endswith(".safetensors") and Path(name).name == name
