"""Judge one peer in this process: ``python -m benchmarks.judged.one_peer PEER REPORT …``, for `judged.trial`.

This does what ``gatespec run`` does, without a script for each failure: the table has no room for
them, and each would be run once. After SIGINT it writes the results so far.
"""

import json
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from benchmarks.peers.registry import PEERS, Peer
from conformance.base.exceptions import TargetFailedError
from conformance.base.options import RunOptions
from conformance.command.run import Judged, judge, report_of
from conformance.diagnosis.diagnose import without_experiments
from conformance.judge.outcome import LawResult
from conformance.judge.selection import options_of
from conformance.judge.workers import Workers
from conformance.report.json import render


def options_for(peer: Peer, laws: tuple[str, ...], examples: int, max_steps: int, timeout: float) -> RunOptions:
    """The options with which a peer is judged: some laws or all of its own, its dtypes, in one process."""
    return options_of(
        ops=(peer.op,),
        laws=laws or peer.laws,
        dtypes=peer.dtypes,
        framework=peer.framework,
        examples=examples,
        max_steps=max_steps,
        timeout=timeout,
        jobs=1,
    )


@click.command()
@click.argument("name")
@click.argument("report", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--law", "laws", multiple=True)
@click.option("--examples", type=int, required=True)
@click.option("--max-steps", type=int, required=True)
@click.option("--timeout", type=float, required=True)
def main(name: str, report: Path, laws: tuple[str, ...], examples: int, max_steps: int, timeout: float) -> None:
    """Judge the peer NAME and write what was found to REPORT, as JSON."""
    # A shell that starts this in the background has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    (peer,) = (each for each in PEERS if each.name == name)
    options, collected, start = options_for(peer, laws, examples, max_steps, timeout), [], time.monotonic()

    def collect(_: str, __: int, results: Iterator[LawResult], kept: list[LawResult]) -> None:
        for result in results:
            kept.append(result)
            collected.append(result)

    workers = Workers(f"benchmarks.peers.{peer.target}", peer.framework, "cpu", timeout)
    try:
        info = workers.info()
        try:
            judged = judge(workers, info, options, collect)
        except KeyboardInterrupt:
            # All laws were tried, and it was looking for causes.
            judged = Judged(report_of(info, options, collected, start), interrupted=True)
    except TargetFailedError as error:
        raise click.ClickException(str(error)) from error
    finally:
        workers.stop()
    found = judged.report
    if judged.interrupted:
        found = replace(found, diagnosis=without_experiments(options, found.results))
    (target,) = json.loads(render([found]))
    report.write_text(json.dumps(target | {"interrupted": judged.interrupted}), encoding="utf-8")


if __name__ == "__main__":
    main()
