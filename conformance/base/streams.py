"""Standard streams that no reader who leaves, no full disk and no narrow encoding can break."""

import io
import os
import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import Any


class _Lasting(io.FileIO):
    """A file that drops what cannot be written to it, as when the reader at the other end of a pipe has gone.

    Attributes:
        lost: why something was dropped that a reader may still wait for; None if nothing was.
    """

    lost: str | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            pass
        except OSError as error:
            self.lost = self.lost or error.strerror
        return len(data)


class _Unclosed(io.TextIOWrapper):
    """A stream that stays open when a target closes it."""

    def close(self) -> None:
        self.flush()


def keep_writable() -> Callable[[], str | None]:
    """Replace stdout and stderr, so that a run reaches its reports and its exit status whatever they accept.

    After ``… | head`` has gone, or when the disk is full, output is dropped. A character that the encoding lacks is
    written as an escape.

    Returns:
        A function that says why a part of stdout could not be written; None if all of it was, or its reader has gone.
    """
    files = {name: _kept_writable(name) for name in ("stdout", "stderr")}

    def why_lost() -> str | None:
        written = files["stdout"]
        if written is None:
            return None
        sys.stdout.flush()
        return written.lost

    return why_lost


def _kept_writable(name: str) -> _Lasting | None:
    """Replace a stream, unless it is closed, captured, or the console of Windows."""
    stream = getattr(sys, name)
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    if type(raw) is not io.FileIO:
        return None
    stream.flush()
    file = _Lasting(raw.fileno(), "w", closefd=False)
    lasting = _Unclosed(
        io.BufferedWriter(file),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    setattr(sys, name, lasting)
    return file


def in_terminal() -> bool:
    """Whether messages go to a terminal, or to what the variable TTY_COMPATIBLE says is like one, as for Rich.

    In a file or a pipe a line stays whole, so that it can be searched.
    """
    return sys.stderr.isatty() or os.environ.get("TTY_COMPATIBLE") == "1"


def wrapped(message: str) -> str:
    """A message of one line, wrapped where the command runs in a terminal."""
    if not in_terminal() or "\n" in message:
        return message
    width = shutil.get_terminal_size().columns
    return "\n".join(textwrap.wrap(message, width - 7, subsequent_indent="    ", break_on_hyphens=False))
