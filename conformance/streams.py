"""Standard streams that neither a reader who leaves nor a narrow encoding can break."""

import io
import sys
from typing import Any


class _Lasting(io.FileIO):
    """A file that drops what is written to it once the reader at the other end of the pipe has gone."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def keep_writable() -> None:
    """Replace stdout and stderr, so that a run reaches its reports and its exit status whatever they accept.

    After ``… | head`` has gone, output is dropped. A character that the encoding lacks is written as an escape.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        buffer = getattr(stream, "buffer", None)
        raw = getattr(buffer, "raw", buffer)
        # Not if it is closed, captured, or the console of Windows.
        if type(raw) is not io.FileIO:
            continue
        stream.flush()
        lasting = io.TextIOWrapper(
            io.BufferedWriter(_Lasting(raw.fileno(), "w", closefd=False)),
            encoding=stream.encoding,
            errors="backslashreplace",
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, lasting)
