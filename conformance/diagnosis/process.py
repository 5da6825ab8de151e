"""A diagnosis in a worker process: if the target ends the process, earlier results are kept."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from conformance.base.options import UNSHARED, RunOptions
from conformance.diagnosis.cause import Diagnosis
from conformance.diagnosis.diagnose import SECONDS, diagnose, without_experiments
from conformance.formulas.judged import Watch
from conformance.frameworks.implementation import Implementation
from conformance.judge.outcome import LawResult
from conformance.judge.runner import Save
from conformance.judge.workers import COMPILING
from conformance.tolerance.compared import BreakKind

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from conformance.judge.workers import Workers

DEATHS = 4
"""Number of times that a target may end the process of the experiments, which then start again without that call."""

LEAST_SECONDS_OF_A_CALL = 30.0
"""Lower bound of the time limit of a call; if a call takes longer, its process is ended."""

USUAL = 10.0
"""Time limit of a call, as a multiple of the time that a usual case of the slowest law takes."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to a worker to look for causes.

    Attributes:
        results: the results of the laws.
        fatal: calls that have ended a process before, in the form of `Watch`, each with how it ended.
    """

    options: RunOptions
    results: tuple[LawResult, ...]
    fatal: dict[str, BreakKind] = field(default_factory=dict)

    def answer(self, implementation: Implementation, connection: "Connection", save: Save | None) -> None:
        """Look for causes in the worker, and report each call and each cause over the connection."""

        def announce(call: str | None) -> None:
            connection.send(("case", call))

        found = diagnose(
            implementation,
            self.options,
            self.results,
            keep=lambda part: connection.send(("part", part)),
            watch=Watch(announce=announce, fatal=self.fatal),
            save=save,
        )
        connection.send(("diagnosis", found))


def diagnosed(workers: "Workers", options: RunOptions, results: Sequence[LawResult]) -> Diagnosis:
    """The diagnosis of a target; if nothing failed, without calling it."""
    found = without_experiments(options, results)
    if not any(result.status == "failed" for result in results):
        return found
    fatal: dict[str, BreakKind] = {}
    usual = max((result.seconds / result.examples for result in results if result.examples), default=0.0)
    seconds = min(options.timeout, max(LEAST_SECONDS_OF_A_CALL, USUAL * usual))
    note = f"the process that looked for causes ended {DEATHS} times"
    for _ in range(DEATHS):
        worker = workers.idle()
        said, told, last = "", None, None
        end = time.monotonic() + UNSHARED * SECONDS
        try:
            worker.connection.send(Request(options=options, results=tuple(results), fatal=fatal))
            while said not in ("diagnosis", "fault"):
                compiles = said == "compiling" and told
                limit = seconds * (COMPILING if compiles else 1.0)
                until = min(end, time.monotonic() + limit) if last is not None else end
                if not worker.connection.poll(max(0.0, until - time.monotonic())):
                    break
                said, told = worker.connection.recv()
                last = told if said == "case" else last
                found = told if said == "part" else found
        except (EOFError, OSError):
            pass
        if said == "diagnosis":
            return told  # pyright: ignore[reportReturnType]
        if said == "fault":
            note = f"the search for causes failed in the suite itself: {str(told).strip().splitlines()[-1]}"
            break
        kind = workers.dismissed(worker)
        if last is None or last in fatal:
            note = (
                "the search for causes took too long"
                if kind.nature == "timeout"
                else f"the search for causes ended {kind}"
            )
            break
        fatal[last] = kind
    return replace(found, note=f"{note}; the causes found until then follow")
