"""Metrics of a run: one JSON object per line, and TensorBoard's files if that package is installed."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class Metrics:
    """Appends to ``metrics.jsonl``.

    Args:
        directory: the directory of the run.
        done: the number of steps to keep; later lines, which a killed process wrote, are removed.
    """

    def __init__(self, directory: Path, done: int) -> None:
        path = directory / "metrics.jsonl"
        kept = [line for line in read(path) if line["step"] <= done] if path.exists() else []
        path.write_text("".join(f"{json.dumps(line)}\n" for line in kept), encoding="utf-8")
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
    """The lines of a metrics file, without an incomplete last line of a killed process."""
    return list(_lines(path.read_text(encoding="utf-8").splitlines(keepends=True)))


def _lines(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    for line in lines:
        if line.endswith("\n"):
            yield json.loads(line)


def _tensorboard(directory: Path) -> Any:
    """A writer of TensorBoard's files; None if the package is not installed."""
    try:
        from tensorboard.summary import Writer  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return Writer(str(directory))
