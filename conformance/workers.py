"""Several processes for one target: each loads it by its name and takes whole groups of laws.

A group is one operation in one dtype: its laws share the oracle's answers and what the target compiles, and nothing
that one group does can be seen in another. Results come back in the order of the agenda, and are the same for any
number of processes.
"""

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from conformance.implementation import Implementation
from conformance.laws import Law
from conformance.options import RunOptions
from conformance.outcome import LawResult
from conformance.runner import Runner
from conformance.selection import agenda
from conformance.targets import load

DEATHS = 8
"""After so many processes have died the rest is given up."""

WORTHWHILE = {True: 24, False: 4}
"""Fewer laws than that are done before a second process has loaded the target; by whether it is eager or compiles."""

_WEIGHTS = {"mlstm": 4, "fwbw": 4, "gru": 3, "mlstm_step": 3}
"""How long a law of an operation takes beside one of the others, roughly: compiled, a recurrence is what takes time."""

Item = tuple[Law, str]


@dataclass(frozen=True)
class Target:
    """What a process needs to load the target itself."""

    name: str
    framework: str | None
    device: str


def usual(implementation: Implementation, items: list[Item]) -> int:
    """How many processes are used where nobody says: two on a CPU, one beside an accelerator or a debugger."""
    little = len(items) < WORTHWHILE[implementation.eager]
    if implementation.device != "cpu" or sys.gettrace() is not None or little:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(2, cores)


def run_in_processes(target: Target, items: list[Item], settings: RunOptions, processes: int) -> Iterator[LawResult]:
    """Try the laws of ``items``, the target's agenda, in up to ``processes`` processes; results come in its order."""
    groups: dict[tuple[str, str], list[int]] = {}
    for number, (law, dtype) in enumerate(items):
        groups.setdefault((law.op, dtype), []).append(number)
    # The largest first: the last group to be taken should not be the one that takes longest.
    largest_first = sorted(groups.items(), key=lambda group: -_WEIGHTS.get(group[0][0], 1) * len(group[1]))
    pool = _Pool(target, items, settings, [numbers for _, numbers in largest_first])
    done: dict[int, LawResult] = {}
    try:
        pool.start(min(processes, len(groups)))
        for number in range(len(items)):
            while number not in done:
                done |= pool.some()
            yield done.pop(number)
    finally:
        pool.stop()


@dataclass
class _Worker:
    process: Any
    connection: Connection
    task: list[int] = field(default_factory=list)


class _Pool:
    """The processes, and the groups that none of them has taken yet."""

    def __init__(self, target: Target, items: list[Item], settings: RunOptions, groups: list[list[int]]):
        self._target = target
        self._items = items
        self._settings = settings
        self._groups = groups
        self._workers: list[_Worker] = []
        self._deaths = 0
        self._context = multiprocessing.get_context("spawn")

    def start(self, number: int) -> None:
        for _ in range(number):
            here, there = self._context.Pipe()
            process = self._context.Process(target=_work, args=(there, self._target, self._settings), daemon=True)
            process.start()
            there.close()
            worker = _Worker(process, here)
            self._workers.append(worker)
            self._give(worker)

    def stop(self) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join(5)
            worker.connection.close()
        self._workers.clear()

    def _give(self, worker: _Worker) -> None:
        """Hand out the next group; an empty one says that there is no more."""
        worker.task = self._groups.pop(0) if self._groups else []
        try:
            worker.connection.send(worker.task)
        except OSError:
            pass  # It has died: the next `some` sees the end of its connection.

    def some(self) -> dict[int, LawResult]:
        """Wait until a process has something to say; the results that came, by their number in the agenda.

        Raises:
            RuntimeError: the suite itself failed in a process; the text is that process's traceback.
        """
        if not self._workers:
            return self._given_up()
        results = {}
        waiting = {worker.connection: worker for worker in self._workers}
        for connection in wait(list(waiting)):
            worker = waiting[connection]  # pyright: ignore[reportArgumentType]
            try:
                said, told = worker.connection.recv()
            except (EOFError, OSError):
                results |= self._bury(worker)
                continue
            if said == "fault":
                raise RuntimeError(f"the suite failed in a process of its own:\n{told}")
            number = worker.task.pop(0)
            results[number] = told
            if not worker.task:
                self._give(worker)
        return results

    def _bury(self, worker: _Worker) -> dict[int, LawResult]:
        """A process has ended: where that was in the middle of a law, the law has failed and another one goes on."""
        worker.process.join(5)
        self._workers.remove(worker)
        worker.connection.close()
        if not worker.task:
            return {}
        self._deaths += 1
        number, *rest = worker.task
        if rest:
            self._groups.insert(0, rest)
        if self._groups and self._deaths < DEATHS:
            self.start(1)
        reason = f"the process that tried it died ({_ending(worker.process.exitcode)})"
        return {number: _failed(self._items[number], reason)}

    def _given_up(self) -> dict[int, LawResult]:
        left = [number for group in self._groups for number in group]
        if not left:
            raise RuntimeError("all processes have ended and results are missing")
        self._groups.clear()
        reason = f"not tried: {self._deaths} processes died of the laws before it"
        return {number: _failed(self._items[number], reason) for number in left}


def _failed(item: Item, reason: str) -> LawResult:
    return LawResult(law=item[0], dtype=item[1], status="failed", reason=reason)


def _ending(exitcode: int | None) -> str:
    if exitcode is None or exitcode >= 0:
        return f"exit status {exitcode}"
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"


def _work(connection: Connection, target: Target, settings: RunOptions) -> None:
    """What a process does: load the target, take groups of laws, and send back what each came to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        implementation = load(target.name, target.framework, target.device)
        items, runner = agenda(implementation, settings), Runner(implementation, settings)
        while task := connection.recv():
            for number in task:
                law, dtype = items[number]
                connection.send(("result", runner.result(law, dtype)))
    except (EOFError, BrokenPipeError):
        return
    except Exception:
        connection.send(("fault", traceback.format_exc()))
