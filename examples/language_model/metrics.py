"""Metrics of a run: one JSON object per line, and TensorBoard's files if that package is installed."""

import json
from pathlib import Path
from typing import Any

from examples.language_model.settings import replace_text


class MetricsError(ValueError):
    """The file of metrics is damaged; the text names the line."""


class Metrics:
    """Appends to ``metrics.jsonl``.

    Args:
        directory: the directory of the run.
        done: the number of steps to keep; later lines, which a killed process wrote, are removed.
    """

    def __init__(self, directory: Path, done: int) -> None:
        path = directory / "metrics.jsonl"
        kept = [line for line in read(path) if line["step"] <= done] if path.exists() else []
        replace_text(path, "".join(f"{json.dumps(line)}\n" for line in kept))
        self._file = path.open("a", encoding="utf-8")
        self._board = _tensorboard(directory / "tensorboard")

    def add(self, step: int, **values: float) -> None:
        """Write the values of a step, with enough digits to read them back exactly."""
        self._file.write(f"{json.dumps({'step': step, **values})}\n")
        self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file, without an incomplete last line of a killed process.

    Raises:
        MetricsError: a line is not that of a step.
    """
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if line.endswith(b"\n"):
            try:
                found.append(json.loads(line.decode()))
                complete = type(found[-1]["step"]) is int
            except (ValueError, TypeError, KeyError, RecursionError):
                complete = False
            if not complete:
                raise MetricsError(f"{path}: line {number} cannot be read; remove the file to resume without it")
    return found


def _tensorboard(directory: Path) -> Any:
    """A writer of TensorBoard's files; None if the package is not installed."""
    try:
        from tensorboard.summary import Writer  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return Writer(str(directory))
