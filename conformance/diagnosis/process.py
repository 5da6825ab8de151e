"""A diagnosis in a process of its own: a target that ends its process takes nothing with it that was found before."""

import multiprocessing
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection

from conformance.diagnosis.cause import Diagnosis
from conformance.diagnosis.diagnose import SECONDS, diagnose, without_experiments
from conformance.options import RunOptions
from conformance.outcome import LawResult
from conformance.targets import load

GRACE = 60.0
"""How much longer than its experiments the process may take, which has to load the target and ends a call late."""


def diagnosed(
    target: str, framework: str | None, device: str, options: RunOptions, results: Sequence[LawResult]
) -> Diagnosis:
    """The diagnosis of a target; where nothing failed, without a single call of it."""
    plain = without_experiments(options, results)
    if not any(result.status == "failed" for result in results):
        return plain
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(
        target=_work, args=(there, target, framework, device, options, tuple(results)), daemon=True
    )
    process.start()
    there.close()
    found, ending = plain, "the process in which causes were looked for ended"
    end = time.monotonic() + SECONDS + GRACE
    try:
        while True:
            if not here.poll(max(0.0, end - time.monotonic())):
                ending = "looking for causes took too long and was stopped"
                break
            said, last = here.recv()
            found = said
            if last:
                return found
    except (EOFError, OSError):
        pass
    finally:
        process.terminate()
        process.join(5)
        if process.is_alive():
            process.kill()
        here.close()
    return replace(found, note=f"{ending}; what follows is what was known by then")


def _work(
    connection: Connection,
    target: str,
    framework: str | None,
    device: str,
    options: RunOptions,
    results: tuple[LawResult, ...],
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    implementation = load(target, framework, device)
    found = diagnose(implementation, options, results, keep=lambda part: connection.send((part, False)))
    connection.send((found, True))
