"""The process of a worker: it loads a target, does the jobs that it is sent, and reports what it does.

It imports the suite only after it ignores the signal by which a terminal interrupts all processes of a run.
"""

import multiprocessing.util
import os
import signal
import sys
import traceback
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.base.exceptions import SuiteFailedError, TargetFailedError, UsageError
from conformance.base.options import RunOptions
from conformance.base.streams import keep_writable

if TYPE_CHECKING:
    from conformance.frameworks.implementation import Implementation
    from conformance.judge.runner import Runner, Save
    from conformance.tolerance.compared import BreakKind


@dataclass
class Loaded:
    """A target in its process, and the way to report what happens to it.

    Attributes:
        implementation: the target.
        connection: the connection to the process of the suite.
        save: saves the script of a failure; None to save none.
        runner: what tried the laws before, which remembers what the target refuses.
    """

    implementation: "Implementation"
    connection: Connection
    save: "Save | None"
    runner: "Runner | None" = None

    def announce(self, case: str | None) -> None:
        """Report that the target is about to be called with a case, as text; with None, that it was."""
        self.connection.send(("case", case or ""))

    def keep(self, part: Any) -> None:
        """Report a part of the result, in case that the process ends."""
        self.connection.send(("part", part))


@dataclass(kw_only=True)
class Job:
    """What a worker does with a target.

    Attributes:
        options: the options of the run.
        seconds: seconds that a case may take.
        fatal: cases, as text, that ended a process, each with how it ended; "" if it ended between two cases.
        parts: the parts of the result that were reported.
    """

    options: RunOptions
    seconds: float
    fatal: "dict[str, BreakKind]" = field(default_factory=dict)
    parts: list[Any] = field(default_factory=list)

    @property
    def hung(self) -> bool:
        """Whether a process was ended because it took too long."""
        return any(kind.nature == "timeout" for kind in self.fatal.values())

    def answer(self, loaded: Loaded) -> Any:
        """Do it, in the process that has loaded the target, and return the result."""
        raise NotImplementedError


def work(
    connection: Connection, target: str, framework: str | None, device: str, save: "Save | None", spec: Path | None
) -> None:
    """Load a target and do jobs until the connection is closed.

    The first message is the target's information. The messages about a job end with its result. In place of any message
    there may be an exception, for the other side to raise.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_writable()
    # A target may parse the command line when it is imported; the arguments of this one are none of its own.
    sys.argv = [target]
    try:
        from conformance.frameworks.targets import info_of, load
        from conformance.operations import add_specification

        try:
            if spec is not None:
                add_specification(spec)
            implementation = load(target, framework, device)
        except (UsageError, TargetFailedError) as error:
            connection.send(error)
            return
        connection.send(info_of(implementation, framework))
        implementation.compiling = lambda begins: connection.send(("compiling", begins))
        loaded = Loaded(implementation, connection, save)
        while True:
            connection.send(("result", connection.recv().answer(loaded)))
    except (EOFError, OSError):
        # It is no longer needed. Semaphores and the like are released; all else, which may take a second, is not.
        multiprocessing.util._exit_function()  # pyright: ignore[reportAttributeAccessIssue]
        os._exit(0)
    except Exception:
        connection.send(SuiteFailedError(f"the suite failed in a process of its own:\n{traceback.format_exc()}"))
