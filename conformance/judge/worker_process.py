"""The process of one worker: it loads a target, tries the jobs that it is sent, and reports what it does."""

import multiprocessing.util
import os
import signal
import sys
import traceback
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.base.exceptions import UsageError
from conformance.base.streams import keep_writable

if TYPE_CHECKING:
    from conformance.judge.outcome import Counterexample
    from conformance.judge.runner import Save
    from conformance.laws import Law
    from conformance.tolerance.compared import BreakKind


@dataclass
class Job:
    """A law in a dtype that is to be tried.

    Attributes:
        number: the number of its result.
        fatal: cases, as JSON, that have ended a worker, each with how it ended.
        since: when it first ended a worker.
        last: whether this is the last try, which ends after the known fatal cases.
    """

    number: int
    law: "Law"
    dtype: str
    fatal: dict[str, "BreakKind"] = field(default_factory=dict)
    since: float | None = None
    last: bool = False


def ending(exitcode: int | None) -> tuple[str, str]:
    """The way in which a process ended: its nature (`conformance.tolerance.compared.BreakKind`), and a description."""
    if exitcode is None or exitcode >= 0:
        return "exit", f"exit status {exitcode}"
    try:
        return "abort", signal.Signals(-exitcode).name
    except ValueError:
        return "abort", f"signal {-exitcode}"


def work(
    connection: Connection,
    target: str,
    framework: str | None,
    device: str,
    save: "Save | None",
    spec: Path | None = None,
) -> None:
    """The main function of a worker: load the target, try groups of laws, and report the result of each."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_writable()
    # A target may parse the command line when it is imported; the arguments of this one are none of its own.
    sys.argv = [target]
    try:
        from conformance.frameworks.targets import ImportFailedError, info_of, load
        from conformance.judge.runner import Runner
        from conformance.operations import add_specification

        try:
            if spec is not None:
                add_specification(spec)
            implementation = load(target, framework, device)
        except UsageError as error:
            connection.send(("usage", str(error)))
            return
        except ImportFailedError as error:
            connection.send(("unusable", str(error)))
            return
        connection.send(("loaded", info_of(implementation, framework)))
        implementation.compiling = lambda begins: connection.send(("compiling", begins))
        runner: Runner | None = None

        def announce(case: str | None) -> None:
            connection.send(("case", case))

        def note(found: "Counterexample") -> None:
            connection.send(("found", found))

        while True:
            asked = connection.recv()
            if not isinstance(asked, tuple):
                asked.answer(implementation, connection, save)
                continue
            options, group = asked
            if runner is None or runner.options != options:
                runner = Runner(implementation, options, announce=announce, note=note, save=save)
            for job in group:
                connection.send(("result", runner.result(job.law, job.dtype, fatal=job.fatal, last=job.last)))
    except (EOFError, OSError):
        # It is no longer needed. Semaphores and the like are released; all else, which may take a second, is not.
        multiprocessing.util._exit_function()  # pyright: ignore[reportAttributeAccessIssue]
        os._exit(0)
    except Exception:
        connection.send(("fault", traceback.format_exc()))
