"""Processes that load a target and try laws on it, so that nothing a target does can end or stop the suite.

The process of the command line never imports a target. Each worker does. It takes whole groups of laws (one operation
in one dtype, which share the oracle's answers and the target's compiled functions), announces each case before it tries
it, and sends back the result of each law. A worker that dies, or takes longer over a case than allowed, is replaced;
the case that ended it is a counterexample, and the law starts again without it. Results come in the order in which they
were requested, and are the same for any number of workers.
"""

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.base.exceptions import SuiteFailedError, UsageError
from conformance.judge.worker_process import Job, ending, work
from conformance.operations import BY_LAWS

if TYPE_CHECKING:
    from conformance.base.options import RunOptions
    from conformance.frameworks.targets import TargetInfo
    from conformance.judge.outcome import Counterexample, LawResult
    from conformance.judge.runner import Save
    from conformance.laws import Law
    from conformance.tolerance.compared import BreakKind

LOAD_SECONDS = 120.0
"""Seconds that a target may take to be imported; a case's own limit if that is longer."""

COMPILING = 10.0
"""Ratio of the time limit for a compilation by XLA, or the import of PyTorch's compiler, and that for a call."""

DEATHS_OF_A_LAW = 6
"""Number of times that a law may end its worker; each except the last leads to a smaller fatal case, or another."""

SECONDS_OF_A_LAW = 30.0
"""Seconds after which a law that has ended a worker is given one last, short try."""

FATAL_LAWS = 2
"""Number of laws of one operation that may end a worker before the other laws of that operation are not tried."""

TIMEOUTS = 4
"""Number of cases, of any operation, that may take too long before nothing more is tried."""

QUICK_TIMEOUTS = 2
"""The same in a quick run, which also tries no second law of an operation that has hung, and
gives the cases of other operations half the time from then on: the run ends within a minute."""

LAST_SECONDS = 3.0
"""Seconds after which workers that do not end by themselves are killed."""

RECURRENT = 4
"""Rough relative time of a law of an operation that carries states: what takes time is to compile a recurrence."""

Item = tuple["Law", str]


class TargetFailedError(Exception):
    """The target cannot be judged at all; the text gives the reason, with the target's own traceback."""


@dataclass
class _Worker:
    """A process and its present state.

    Attributes:
        group: the jobs that it still has to do; it is working on the first.
        case: the case that it is trying, as JSON; None between cases.
        found: the failures of the present law that were found so far.
        deadline: the time at which it is ended; None while no answer is expected.
    """

    process: Any
    connection: Connection
    group: list[Job] = field(default_factory=list)
    case: str | None = None
    found: list["Counterexample"] = field(default_factory=list)
    deadline: float | None = None
    overdue: bool = False


class Workers:
    """The workers of one target.

    Args:
        target: its name on the command line.
        framework: the framework of its functions; None to detect it from its imports.
        timeout: seconds that one case may take.
        save: saves the script of a failure, in a worker; None to save none.
        spec: a file that states recurrences, which targets may have.
    """

    def __init__(
        self,
        target: str,
        framework: str | None,
        device: str,
        timeout: float,
        save: "Save | None" = None,
        spec: Path | None = None,
    ):
        self.finished: dict[int, LawResult] = {}
        self._loading = (target, framework, device, save, spec)
        self._timeout = timeout
        self._options: RunOptions | None = None
        self._workers: list[_Worker] = []
        self._groups: list[list[Job]] = []
        self._fatal_laws: Counter[str] = Counter()
        self._limit = timeout
        self._timeouts = 0
        self._hung: set[str] = set()
        self._how = "timeout"
        self._context = multiprocessing.get_context("spawn")
        self._start()

    def info(self) -> "TargetInfo":
        """The first worker's information about the target.

        Raises:
            UsageError: there is no such target.
            TargetFailedError: it cannot be imported.
        """
        (worker,), target, seconds = self._workers, self._loading[0], max(LOAD_SECONDS, self._timeout)
        try:
            if not worker.connection.poll(seconds):
                raise TargetFailedError(f"{target} was not imported within {seconds:.0f} s")
            said, told = worker.connection.recv()
            if said != "loaded":
                raise (UsageError if said == "usage" else TargetFailedError)(told)
        except (EOFError, OSError):
            worker.process.join(5)
            self.stop()
            how = ending(worker.process.exitcode)[1]
            raise TargetFailedError(
                f"{target} cannot be imported: the process that imported it ended ({how})"
            ) from None
        except (UsageError, TargetFailedError):
            self.stop()
            raise
        return told

    def results(self, items: Sequence[Item], options: "RunOptions", processes: int = 1) -> "Iterator[LawResult]":
        """Try laws in up to ``processes`` workers and return their results in the order of ``items``."""
        self._options, self.finished = options, {}
        groups: dict[tuple[str, str], list[Job]] = {}
        for number, (law, dtype) in enumerate(items):
            groups.setdefault((law.op, dtype), []).append(Job(number, law, dtype))
        # The largest group comes first: the last group to be taken should not be the one that takes longest.
        self._groups = sorted(groups.values(), key=lambda group: -_weight(group[0].law.op) * len(group))
        self._give_up()
        for worker in self._workers:
            self._give(worker)
        while self._groups and len(self._workers) < processes:
            self._give(self._start())
        for number in range(len(items)):
            while number not in self.finished:
                self._some()
            yield self.finished[number]

    def interrupted(self) -> "list[LawResult]":
        """The results so far: laws that are done, and laws that were found to break."""
        for worker in self._workers:
            if worker.group and worker.found:
                self._finish(worker.group[0], "interrupted during the search for a smaller case", tuple(worker.found))
        return [self.finished[number] for number in sorted(self.finished)]

    def idle(self) -> _Worker:
        """A worker that has nothing to do; a new one if there is none."""
        return next((worker for worker in self._workers if not worker.group), None) or self._start()

    def dismissed(self, worker: _Worker) -> "BreakKind":
        """End a worker that has ended or is overdue, and say which."""
        from conformance.tolerance.compared import BreakKind

        # A process that is about to end may still be running.
        worker.process.join(1)
        overdue = worker.process.is_alive()
        self._end(worker)
        nature, how = ("timeout", "") if overdue else ending(worker.process.exitcode)
        return BreakKind(how, nature)

    def stop(self) -> None:
        """End all workers. One with nothing to do ends by itself, and releases what its target holds of the system."""
        for worker in self._workers:
            if worker.group:
                worker.process.kill()
            else:
                worker.connection.close()
        end = time.monotonic() + LAST_SECONDS
        for worker in self._workers:
            worker.process.join(max(0.0, end - time.monotonic()))
        while self._workers:
            self._end(self._workers[0])

    def _end(self, worker: _Worker) -> None:
        worker.process.kill()
        worker.process.join(5)
        self._workers.remove(worker)
        worker.connection.close()

    def _start(self) -> _Worker:
        here, there = self._context.Pipe()
        process = self._context.Process(target=work, args=(there, *self._loading))
        process.start()
        there.close()
        worker = _Worker(process, here)
        self._workers.append(worker)
        return worker

    def _give(self, worker: _Worker) -> None:
        """Give a worker the next group."""
        worker.group = self._groups.pop(0) if self._groups else []
        worker.case, worker.found, worker.deadline = None, [], None
        if worker.group:
            # It may have to import the target before it answers.
            worker.deadline = time.monotonic() + max(LOAD_SECONDS, self._timeout)
            try:
                worker.connection.send((self._options, worker.group))
            except OSError:
                pass  # It has died; the next `_some` sees that its connection is closed.

    def _some(self) -> None:
        """Wait until a worker sends something or has taken too long.

        Raises:
            SuiteFailedError: the suite itself failed in a worker; the text is its traceback.
            TargetFailedError: the target was imported once, and cannot be imported again.
        """
        busy = [worker for worker in self._workers if worker.group]
        if not busy:
            raise SuiteFailedError("all workers have ended and results are missing")
        soonest = min((worker.deadline for worker in busy if worker.deadline is not None), default=None)
        ready = wait(
            [worker.connection for worker in busy],
            None if soonest is None else max(0.0, soonest - time.monotonic()),
        )
        for worker in busy:
            if worker.connection in ready:
                self._hear(worker)
            elif worker.deadline is not None and time.monotonic() > worker.deadline:
                worker.overdue = True
                worker.process.kill()
                self._bury(worker)

    def _hear(self, worker: _Worker) -> None:
        try:
            said, told = worker.connection.recv()
        except (EOFError, OSError):
            self._bury(worker)
            return
        if said == "fault":
            raise SuiteFailedError(f"the suite failed in a process of its own:\n{told}")
        if said in ("usage", "unusable"):
            raise TargetFailedError(f"the target was imported once, and not a second time: {told}")
        if said == "case":
            worker.case = told
            worker.deadline = None if told is None else time.monotonic() + self._limit
        elif said == "compiling":
            if worker.case is not None:
                worker.deadline = time.monotonic() + self._limit * (COMPILING if told else 1.0)
        elif said == "loaded":
            worker.deadline = None
        elif said == "found":
            worker.found.append(told)
        else:
            self.finished[worker.group.pop(0).number] = told
            worker.case, worker.found, worker.deadline = None, [], None
            if not worker.group:
                self._give(worker)

    def _bury(self, worker: _Worker) -> None:
        """Handle the end of a worker: its law starts again in another one, without the case that ended it."""
        from conformance.tolerance.compared import BreakKind

        # A process that has closed its connection is about to end by itself, and then says how.
        worker.process.join(5)
        self._end(worker)
        job, *rest = worker.group
        nature, how = ("timeout", "timeout") if worker.overdue else ending(worker.process.exitcode)
        if nature == "timeout":
            self._timeouts += 1
            self._hung.add(job.law.op)
            if self._options is not None and self._options.quick:
                self._limit = self._timeout / 2
        if worker.case is None or worker.case in job.fatal:
            # It ended between two cases, so there is no case to blame or to omit.
            self._finish(job, f"the process that tried it ended ({how})", tuple(worker.found))
        else:
            if not job.fatal:
                self._fatal_laws[job.law.op] += 1
                job.since = time.monotonic()
            else:
                job.last = job.last or time.monotonic() - (job.since or 0.0) > SECONDS_OF_A_LAW
            job.fatal[worker.case] = BreakKind("" if nature == "timeout" else how, nature)
            job.last = job.last or nature == "timeout" or len(job.fatal) >= DEATHS_OF_A_LAW
            rest = [job, *rest]
        if rest:
            self._groups.insert(0, rest)
        self._how = how if nature != "timeout" else self._how
        self._give_up()
        if self._groups:
            self._give(self._start())

    def _give_up(self) -> None:
        """Drop the jobs that would only end more workers."""
        quick = self._options is not None and self._options.quick
        for group in self._groups:
            for job in [job for job in group if not job.fatal]:
                deaths = self._fatal_laws[job.law.op]
                if self._timeouts >= (QUICK_TIMEOUTS if quick else TIMEOUTS):
                    reason = f"not tried: {self._timeouts} earlier calls took longer than --timeout {self._timeout:g}"
                elif quick and job.law.op in self._hung:
                    reason = f"not tried: an earlier call of {job.law.op} took longer than --timeout {self._timeout:g}"
                elif deaths >= FATAL_LAWS:
                    reason = f"not tried: {deaths} laws of {job.law.op} ended their process earlier ({self._how})"
                else:
                    continue
                group.remove(job)
                self._finish(job, reason, (), status="skipped")
        self._groups = [group for group in self._groups if group]

    def _finish(self, job: Job, reason: str, found: "tuple[Counterexample, ...]", status: str = "failed") -> None:
        from conformance.judge.known_failures import known_failure
        from conformance.judge.outcome import LawResult

        reason = found[0].problem if found else reason
        result = LawResult(law=job.law, dtype=job.dtype, status=status, reason=reason, counterexamples=found)
        known = known_failure(self._options.known_failures if self._options else (), job.law, job.dtype)
        self.finished[job.number] = result if known is None else known.status_of(result)


def _weight(op: str) -> int:
    return RECURRENT if op in BY_LAWS and BY_LAWS[op].states else 1
