"""Processes that load a target and do jobs with it, so that nothing a target does can end or stop the suite.

The process of the command line never imports a target. The process of a worker does, and announces each case before it
calls the target with it. If it ends, or takes longer over a case than allowed, the job starts again in another process
without that case, which is a counterexample. The laws of one operation in one dtype share the oracle's answers and the
target's compiled functions, so one worker tries them all. Results come in the order in which they were requested, and
are the same for any number of workers.
"""

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from conformance.base.exceptions import TargetFailedError, UsageError
from conformance.base.options import RunOptions
from conformance.judge.known_failures import known_failure
from conformance.judge.outcome import LawResult
from conformance.judge.runner import Runner, Save
from conformance.judge.worker_process import Job, Loaded, work
from conformance.laws import Law
from conformance.tolerance.compared import BreakKind, ProcessEndedError

if TYPE_CHECKING:
    from conformance.frameworks.targets import TargetInfo

TRIES = 4
"""Number of times that a job is begun: after each case that ended its process, again without that case."""

FATAL_LAWS = 2
"""Number of laws of an operation that may end a process before the other laws are not tried, and half the number of
laws of any operation that may hang before nothing more is tried. In a quick run, a law that hangs counts as two."""

LOAD_SECONDS = 120.0
"""Seconds that a target may take to be imported; a case's own limit if that is longer."""

BETWEEN_SECONDS = 600.0
"""Seconds that may pass between two cases, when only the suite works; a case's own limit if that is longer."""

COMPILING = 10.0
"""Ratio of the time limit for a compilation by XLA, or the import of PyTorch's compiler, and that for a call."""

LAST_SECONDS = 3.0
"""Seconds after which a process that does not end by itself is killed."""

Item = tuple[Law, str]

_SPAWN = multiprocessing.get_context("spawn")


@dataclass(kw_only=True)
class LawJob(Job):
    """The job to try a law in a dtype. Its parts are counterexamples; its result is None until there is one."""

    law: Law
    dtype: str
    result: LawResult | None = None

    def answer(self, loaded: Loaded) -> LawResult:
        if loaded.runner is None or loaded.runner.options != self.options:
            loaded.runner = Runner(
                loaded.implementation, self.options, announce=loaded.announce, note=loaded.keep, save=loaded.save
            )
        last = self.hung or len(self.fatal) == TRIES - 1
        return loaded.runner.result(self.law, self.dtype, fatal=self.fatal, last=last)

    def unfinished(self, reason: str = "") -> LawResult:
        """The result if the law was not tried to the end, for this reason: what was found until then."""
        found = tuple({each.kind: each for each in self.parts}.values())
        reason = found[0].problem if found else reason
        result = LawResult(law=self.law, dtype=self.dtype, status="failed", reason=reason, counterexamples=found)
        known = known_failure(self.options.known_failures, self.law, self.dtype)
        return result if known is None else known.status_of(result)


class _Child:
    """A process that loads a target and does jobs.

    Attributes:
        case: the case that it is trying, as text; "" between cases.
        busy: whether it has a job.
        ended: whether it has ended.

    Args:
        loading: the arguments of `conformance.judge.worker_process.work`.
        seconds: seconds that the target may take to be imported.
    """

    def __init__(self, loading: tuple[Any, ...], seconds: float):
        self.case, self.busy, self.ended = "", False, False
        self._info: Any = None
        self._seconds = seconds
        self._connection, there = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=work, args=(there, *loading))
        self._process.start()
        there.close()

    def info(self) -> "TargetInfo":
        """Its information about the target; raises what `result` does."""
        if self._info is None:
            self._info = self._received(self._seconds)
        return self._info

    def result(self, job: Job) -> Any:
        """The result of a job.

        Raises:
            ProcessEndedError: it ended, or took too long and was ended.
            UsageError, TargetFailedError, SuiteFailedError: what it sent in place of the result.
        """
        self.info()
        self.busy = True
        with suppress(OSError):  # It has ended, which is seen where a message is expected.
            self._connection.send(job)
        seconds = between = max(BETWEEN_SECONDS, job.seconds)
        while True:
            said, told = self._received(seconds)
            if said == "result":
                self.busy = False
                return told
            if said == "part":
                job.parts.append(told)
            elif said == "case":
                self.case = told
            seconds = job.seconds if self.case else between
            if said == "compiling" and told:
                seconds *= COMPILING

    def end(self, seconds: float = 0.0) -> BreakKind:
        """Kill it if it does not end by itself within this time, and say how it ended."""
        self.ended = True
        self._connection.close()
        self._process.join(seconds)
        self._process.kill()
        self._process.join(5)
        status = self._process.exitcode
        if status is None or status >= 0:
            return BreakKind(f"exit status {status}", "exit")
        names = {each.value: each.name for each in signal.Signals}
        return BreakKind(names.get(-status, f"signal {-status}"), "abort")

    def _received(self, seconds: float) -> Any:
        try:
            if not self._connection.poll(seconds):
                self.end()
                raise ProcessEndedError(BreakKind("", "timeout"))
            message = self._connection.recv()
        except (EOFError, OSError):
            # A process that has closed its connection is about to end by itself, and then says how.
            raise ProcessEndedError(self.end(5)) from None
        if isinstance(message, Exception):
            self.end(5)
            raise message
        return message


class Workers:
    """The workers of one target: each does one job after the other, in a process that is replaced when it ends.

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
        save: Save | None = None,
        spec: Path | None = None,
    ):
        self._loading = (target, framework, device, save, spec)
        self._load_seconds = max(LOAD_SECONDS, timeout)
        self._children: dict[int, _Child] = {}
        self._jobs: list[LawJob] = []
        self._fatal: list[LawJob] = []
        self._stopped = False
        self._lock = Lock()
        self._child(0)

    def info(self) -> "TargetInfo":
        """The target's information, from the first worker.

        Raises:
            UsageError: there is no such target.
            TargetFailedError: it cannot be imported.
        """
        try:
            return self._child(0).info()
        except ProcessEndedError as ended:
            how = f"cannot be imported: the process that imported it ended ({ended.kind.where})"
            if ended.kind.nature == "timeout":
                how = f"was not imported within {self._load_seconds:.0f} s"
            raise TargetFailedError(f"{self._loading[0]} {how}") from None

    def done(self, job: Job, worker: int = 0) -> Any:
        """The result of a job, which starts again after each case that ends the process.

        Raises:
            ProcessEndedError: the process ended between two cases, or too often.
            SuiteFailedError: the suite itself failed in the process; the text has its traceback.
            TargetFailedError: the target was imported once, and cannot be imported again.
        """
        while True:
            child = self._child(worker)
            try:
                return child.result(job)
            except (UsageError, TargetFailedError) as error:
                raise TargetFailedError(f"the target was imported once, and not a second time: {error}") from error
            except ProcessEndedError as ended:
                omitted = child.case in ("", *job.fatal)
                job.fatal[child.case] = ended.kind
                if omitted or len(job.fatal) == TRIES:
                    raise

    def results(self, items: Sequence[Item], options: RunOptions, processes: int = 1) -> Iterator[LawResult]:
        """Try laws in up to ``processes`` workers and return their results in the order of ``items``.

        Raises:
            SuiteFailedError, TargetFailedError: see `done`.
        """
        self._jobs = [LawJob(options=options, seconds=options.timeout, law=law, dtype=dtype) for law, dtype in items]
        groups: dict[tuple[str, str], list[LawJob]] = {}
        for job in self._jobs:
            groups.setdefault((job.law.op, job.dtype), []).append(job)
        # The largest group comes first: the last group to be taken should not be the one that takes longest.
        taken = iter(sorted(groups.values(), key=len, reverse=True))
        news: SimpleQueue[Exception | None] = SimpleQueue()
        for worker in range(min(processes, len(groups))):
            Thread(target=self._work, args=(worker, taken, news), daemon=True).start()
        for job in self._jobs:
            while job.result is None:
                error = news.get()
                if error is not None:
                    raise error
            yield job.result

    def interrupted(self) -> list[LawResult]:
        """The results so far: laws that are done, and laws that were found to break."""
        return [job.result or job.unfinished() for job in self._jobs if job.result or job.parts]

    def stop(self) -> None:
        """End all processes. One that has nothing to do ends by itself, and releases what its target holds."""
        with self._lock:
            self._stopped = True
        for child in self._children.values():
            child.end(0.0 if child.busy else LAST_SECONDS)

    def _child(self, worker: int) -> _Child:
        """The process of a worker; a new one if there is none or it has ended."""
        with self._lock:
            if self._stopped:
                raise RuntimeError("the workers were stopped")
            if worker not in self._children or self._children[worker].ended:
                self._children[worker] = _Child(self._loading, self._load_seconds)
            return self._children[worker]

    def _work(self, worker: int, groups: Iterator[list[LawJob]], news: "SimpleQueue[Exception | None]") -> None:
        """Try the laws of one group after the other; send None for each, or the exception that ends this."""
        try:
            for group in groups:
                for job in group:
                    job.result = self._judged(job, worker)
                    news.put(None)
        except Exception as error:
            news.put(error)

    def _judged(self, job: LawJob, worker: int) -> LawResult:
        reason = self._why_not(job)
        if reason is not None:
            return LawResult(law=job.law, dtype=job.dtype, status="skipped", reason=reason)
        if job.options.quick and any(each.hung for each in self._fatal):
            # The run is to end within a minute.
            job.seconds = job.options.timeout / 2
        try:
            return self.done(job, worker)
        except ProcessEndedError as ended:
            return job.unfinished(f"the process that tried it ended ({ended.kind.where or ended.kind.nature})")
        finally:
            if job.fatal:
                self._fatal.append(job)

    def _why_not(self, job: LawJob) -> str | None:
        """Why a law is not tried: it would only end more processes."""
        hung = [each for each in self._fatal if each.hung]
        of_operation = [each for each in self._fatal if each.law.op == job.law.op]
        for fatal, enough in ((hung, 2 * FATAL_LAWS), (of_operation, FATAL_LAWS)):
            if sum(2 if each.hung and each.options.quick else 1 for each in fatal) >= enough:
                laws = ", ".join(dict.fromkeys(each.law.id for each in fatal))
                limit = f"did not return within --timeout {job.options.timeout:g}"
                return f"not tried: {laws} ended the process or {limit}"
        return None
