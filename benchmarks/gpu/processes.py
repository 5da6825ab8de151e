"""Child processes that end with their parent, and that are stopped with all their own children."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_ENDING_WITH_PARENT = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}, 0, 0, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Code that a child runs first. Between fork and exec `subprocess` could run it too, but threads forbid a fork."""


def start(words: Sequence[str], log: IO[str]) -> subprocess.Popen:
    """Start a command whose output goes to ``log``. It is in the parent's session and group, and killed with it."""
    command = [sys.executable, "-S", "-c", _ENDING_WITH_PARENT, *words]
    return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def adopt_orphans() -> None:
    """Make this process the parent of its descendants whose own parent ends, so that `stop` still finds them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def stop(parent: int, grace: float = 2.0, spared: Collection[int] = ()) -> None:
    """End all descendants of a process, and the process itself unless it is this one: politely, then by force.

    Args:
        parent: the process.
        grace: seconds between the two.
        spared: descendants that go on.
    """
    for how in (signal.SIGTERM, signal.SIGKILL):
        # Children first, or they would be orphans that nobody finds.
        ended = [pid for pid in reversed(descendants(parent)) if pid not in spared]
        for pid in [*ended, *([parent] if parent != os.getpid() else [])]:
            try:
                os.kill(pid, how)
            except ProcessLookupError:
                continue
        end = time.monotonic() + grace
        while how == signal.SIGTERM and time.monotonic() < end and _alive(parent, spared):
            time.sleep(0.05)


def descendants(parent: int) -> list[int]:
    """All processes that a process has started and that still exist, parents before children. Linux only."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found = [parent]
    for pid in found:
        found += parents.get(pid, [])
    return found[1:]


def _alive(parent: int, spared: Collection[int]) -> bool:
    if not {*descendants(parent)} <= {*spared}:
        return True
    if parent == os.getpid():
        return False
    try:
        return Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
