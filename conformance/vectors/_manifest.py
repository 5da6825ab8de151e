"""The manifest of a set of test vectors: a description of the cases, and the file of each."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import msgspec

from conformance.base.dtypes import FLOATING, Array
from conformance.base.exceptions import UsageError
from conformance.base.files import bytes_of
from conformance.base.tensors import unpack
from conformance.operations import OPERATIONS

FORMAT = "gatespec test vectors"
VERSION = 1
"""The version of the format; increased when programs that read the set have to change."""

MANIFEST = "manifest.json"
_LINE = 160

HEADER = 1_000_000
"""Bytes that the header of a file of arrays may take."""

LARGEST_FILE = 2**31
"""Bytes above which a file is no part of a set that `vectors export` writes."""


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """An argument or a cotangent.

    Attributes:
        key: the key of its array in the file of the case.
    """

    name: str
    key: str
    dtype: str
    shape: tuple[int, ...]


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An output or a gradient that a program is asked to compute.

    Attributes:
        key: the key of the expected values, and of the answer.
        allowed: the key of the error that each element may have.
        dtype: the dtype in which an implementation returns it.
        log_scale: the key of the m in whose units it is; None if it has no units.
    """

    name: str
    key: str
    allowed: str
    dtype: str
    shape: tuple[int, ...]
    log_scale: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in FLOATING:
            raise ValueError(f"there is no dtype {self.dtype!r}")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A case of a set; ``docs/test-vectors.md`` describes each field."""

    id: str
    operation: str
    dtype: str
    about: str
    sizes: dict[str, int]
    options: dict[str, Any]
    file: str
    sha256: str
    arguments: tuple[Given, ...]
    cotangents: tuple[Given, ...]
    outputs: tuple[Asked, ...]
    gradients: tuple[Asked, ...]
    kinks: int

    def __post_init__(self) -> None:
        if not _is_plain(self.file):
            raise ValueError(f"{self.file!r} is not the name of a file next to the manifest")
        if self.operation not in OPERATIONS:
            raise ValueError(f"there is no operation {self.operation!r}; there are {', '.join(OPERATIONS)}")
        if self.dtype not in FLOATING:
            raise ValueError(f"there is no dtype {self.dtype!r}")
        if not self.asked:
            raise ValueError(f"case {self.id!r} asks for no array")

    @property
    def longest(self) -> int:
        """An upper bound of the bytes of a file with the arrays that are asked for, in float64."""
        return min(HEADER + sum(8 * math.prod(asked.shape) for asked in self.asked), LARGEST_FILE)

    @property
    def asked(self) -> tuple[Asked, ...]:
        return (*self.outputs, *self.gradients)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of ``manifest.json``."""

    format: str = FORMAT
    version: int = VERSION
    generator: dict[str, str]
    seed: int
    max_steps: int
    cases: tuple[Entry, ...]

    def text(self) -> str:
        return f"{_text(msgspec.to_builtins(self))}\n"


class VectorSet(msgspec.Struct, frozen=True, kw_only=True):
    """A set of test vectors on disk."""

    folder: Path
    seed: int
    entries: tuple[Entry, ...]

    def arrays(self, entry: Entry) -> dict[str, Array]:
        """The arrays of a case.

        Raises:
            UsageError: the file is missing, or differs from the one that was exported.
        """
        path = self.folder / entry.file
        try:
            # Arguments, cotangents and allowed errors are there too.
            data = bytes_of(path, LARGEST_FILE)
        except OSError as error:
            raise UsageError(f"{path} cannot be read ({error.strerror}); export the set again") from error
        except ValueError as error:
            raise UsageError(f"{path} {error}; export the set again") from error
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise UsageError(f"{path} is not the file that was exported: its SHA-256 differs; export the set again")
        arrays = unpack(data)
        for asked in entry.asked:
            if asked.key not in arrays or asked.allowed not in arrays:
                raise UsageError(f"{path} lacks `{asked.key}`, which the manifest names; export the set again")
        return arrays


def read(folder: Path) -> VectorSet:
    """Read the set in a folder.

    Raises:
        UsageError: there is none, or its format is not one that this version reads.
    """
    path = folder / MANIFEST
    written = _parsed(path)
    if written["version"] != VERSION:
        raise UsageError(
            f"{path} is in version {written['version']} of the format and this program reads version {VERSION}; "
            "judge with the version of gatespec that exported it, or export the set again"
        )
    try:
        manifest = msgspec.convert(written, Manifest)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} is damaged ({error}); export the set again") from error
    return VectorSet(folder=folder, seed=manifest.seed, entries=manifest.cases)


def files_of(folder: Path) -> list[str]:
    """The names of the files that an earlier export wrote to a folder, the manifest first.

    Raises:
        UsageError: the manifest belongs to something else.
    """
    if not (folder / MANIFEST).exists():
        return []
    cases = _parsed(folder / MANIFEST).get("cases")
    names = [case.get("file") for case in cases if isinstance(case, dict)] if isinstance(cases, list) else []
    return [MANIFEST, *(name for name in names if isinstance(name, str) and _is_plain(name))]


def _parsed(path: Path) -> dict[str, Any]:
    try:
        written = msgspec.json.decode(bytes_of(path, LARGEST_FILE))
    except FileNotFoundError:
        raise UsageError(
            f"there is no {path}; give the folder of a set, which `gatespec vectors export DIR` writes"
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); give the folder of a set") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid JSON ({error}); give the folder of a set, or export it again") from error
    if not isinstance(written, dict) or written.get("format") != FORMAT or not isinstance(written.get("version"), int):
        raise UsageError(f"{path} is not a manifest of test vectors; give another folder")
    return written


def _is_plain(name: str) -> bool:
    return name.endswith(".safetensors") and Path(name).name == name


def _text(value: Any, indent: str = "") -> str:
    """JSON that is also readable for people: whatever fits on a line is written on one line."""
    flat = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not isinstance(value, dict | list | tuple) or len(indent) + len(flat) <= _LINE:
        return flat
    inner = f"{indent} "
    if isinstance(value, dict):
        lines = [f"{inner}{json.dumps(name)}: {_text(each, inner)}" for name, each in value.items()]
    else:
        lines = [inner + _text(each, inner) for each in value]
    start, end = "{}" if isinstance(value, dict) else "[]"
    return f"{start}\n" + ",\n".join(lines) + f"\n{indent}{end}"
