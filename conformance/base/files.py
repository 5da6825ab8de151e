"""Files that a command reads and writes: no pipe blocks it, and no file is read whole that cannot be meant."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from conformance.base.exceptions import UsageError

LONGEST_TEXT = 10_000_000
"""Bytes above which a file is no list of known failures."""


def bytes_of(path: Path, longest: int) -> bytes:
    """The contents of a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is a pipe, a device or the like, which may never end, or has more than ``longest`` bytes.
    """
    # A pipe that nobody writes to would block.
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is not an ordinary file")
        if status.st_size > longest:
            raise ValueError(f"has {status.st_size:,} bytes, more than the {longest:,} that are expected")
        return file.read()


def text_in(path: Path) -> str:
    """The text of a file of options.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not an ordinary file, is too long, or is not UTF-8.
    """
    return bytes_of(path, LONGEST_TEXT).decode("utf-8")


def expect_writable(option: str, path: Path) -> None:
    """Raise, before anything has run, for a file that cannot be written.

    Raises:
        UsageError: it cannot be written, or its directory does not exist.
    """
    if not path.parent.exists():
        raise UsageError(f"--{option} {path} cannot be written: there is no directory {path.parent}; make it first")
    try:
        new = not path.exists()
        # A pipe that nobody reads would block.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_NONBLOCK", 0), 0o666))
        if new:
            path.unlink()
    except OSError as error:
        raise _unwritable(option, path, error) from error


def write(option: str, path: Path, text: str) -> None:
    """Write the file that an option names.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(option, path, error) from error
    expect_writable(option, path)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(option, path, error) from error


def expect_separate(paths: Mapping[str, Path | None]) -> None:
    """Raise if two options name the same file.

    Raises:
        UsageError: one would overwrite the other.
    """
    seen: dict[Path, str] = {}
    for option, path in paths.items():
        if path is None or path.is_char_device():
            continue
        before = seen.setdefault(path.resolve(), option)
        if before != option:
            raise UsageError(f"--{before} and --{option} name the same file, {path}; give another path to one of them")


def _unwritable(option: str, path: Path, error: OSError) -> UsageError:
    return UsageError(f"--{option} {path} cannot be written ({error.strerror}); give another path")
