"""Save a checkpoint in processes that are killed at each of their file operations; print what can be opened then.

    python killed_saves.py DIRECTORY fresh|over MAX_SHARD_BYTES

One line for each operation, ``operation old|new|none|mixed …``: the tensors of the checkpoint that opens after the kill
(with the text of the refusal, if none opens), and the same after another save that is not killed.
"""

import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from examples.xlstm.checkpoint import new_layout, open_checkpoint, write_checkpoint
from examples.xlstm.config import XLSTMConfig
from examples.xlstm.draw import RandomTensors
from examples.xlstm.tensors import CheckpointError

CONFIG = XLSTMConfig(vocab_size=29, hidden_size=24, num_blocks=2, num_heads=3, ffn_round_up_to_multiple_of=8)
OLD, NEW, LAST = (dict(RandomTensors(CONFIG, seed)) for seed in range(3))


class Counter:
    """Kills the process at its k-th file operation."""

    def __init__(self, k: int) -> None:
        self.left = k

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, function: Callable) -> Callable:
        def counted(*args: Any, **options: Any) -> Any:
            self()
            return function(*args, **options)

        return counted

    def opened(self, path: Path, mode: str = "r", **options: Any) -> Any:
        """A file; one that is written is unbuffered, and each of its writes counts."""
        if mode != "wb":
            return _OPEN(path, mode, **options)
        self()
        file = _OPEN(path, mode, buffering=0)
        return _Counted(file, self)


class _Counted:
    def __init__(self, file: Any, count: Counter) -> None:
        self._file, self._count = file, count

    def __enter__(self) -> "_Counted":
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any) -> None:
        self._count()
        data = memoryview(data)
        self._file.write(data[: len(data) // 2])
        self._count()
        self._file.write(data[len(data) // 2 :])


_OPEN = Path.open


def found(directory: Path) -> str:
    """Which tensors can be opened."""
    try:
        arrays = open_checkpoint(directory).arrays()
    except CheckpointError as error:
        return f"none ({error})"
    for name, saved in (("old", OLD), ("new", NEW), ("last", LAST)):
        if all(np.array_equal(arrays[key], x) for key, x in saved.items()):
            return name
    return "mixed"


def killed(directory: Path, layout: Any, k: int) -> bool:
    """Save in a process that is killed at its k-th operation; whether it came so far."""
    child = os.fork()
    if child == 0:
        count = Counter(k)
        setattr(Path, "open", lambda path, *args, **options: count.opened(path, *args, **options))  # noqa: B010
        for name in ("replace", "unlink", "fsync", "mkdir"):
            setattr(os, name, count.before(getattr(os, name)))
        try:
            write_checkpoint(directory, layout, NEW)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def lines(directory: Path, over: bool, max_shard_bytes: int) -> Iterator[str]:
    layout = new_layout(CONFIG, max_shard_bytes)
    for k in itertools.count(1):
        shutil.rmtree(directory, ignore_errors=True)
        if over:
            write_checkpoint(directory, layout, OLD)
        was_killed = killed(directory, layout, k)
        after = found(directory)
        write_checkpoint(directory, layout, LAST)
        left = len(list(directory.iterdir()))
        yield f"{'killed' if was_killed else 'finished'}, {after}, then {found(directory)}, {left} files"
        if not was_killed:
            return


if __name__ == "__main__":
    # A killed process loses nothing that it has written: only a machine without power does.
    os.fsync = lambda handle: None
    for line in lines(Path(sys.argv[1]), sys.argv[2] == "over", int(sys.argv[3])):
        print(line)
