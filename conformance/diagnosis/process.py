"""A diagnosis in a worker process: if the target ends the process, earlier results are kept."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from conformance.base.exceptions import SuiteFailedError, TargetFailedError
from conformance.base.options import RunOptions
from conformance.diagnosis.cause import Diagnosis
from conformance.diagnosis.diagnose import diagnose, without_experiments
from conformance.formulas.judged import Watch
from conformance.judge.outcome import LawResult
from conformance.judge.worker_process import Job, Loaded
from conformance.judge.workers import TRIES, Workers
from conformance.tolerance.compared import ProcessEndedError

LEAST_SECONDS_OF_A_CALL = 30.0
"""Lower bound of the time limit of a call; if a call takes longer, its process is ended."""

USUAL = 10.0
"""Time limit of a call, as a multiple of the time that a usual case of the slowest law takes."""


@dataclass(kw_only=True)
class DiagnosisJob(Job):
    """The job to look for causes, given the results of the laws. Each of its parts is the diagnosis until then."""

    results: Sequence[LawResult]

    def answer(self, loaded: Loaded) -> Diagnosis:
        watch = Watch(announce=loaded.announce, fatal=self.fatal)
        return diagnose(
            loaded.implementation, self.options, self.results, keep=loaded.keep, watch=watch, save=loaded.save
        )


def diagnosed(workers: Workers, options: RunOptions, results: Sequence[LawResult]) -> Diagnosis:
    """The diagnosis of a target; if nothing failed, without calling it."""
    without = without_experiments(options, results)
    if not any(result.status == "failed" for result in results):
        return without
    usual = max((result.seconds / result.examples for result in results if result.examples), default=0.0)
    seconds = min(options.timeout, max(LEAST_SECONDS_OF_A_CALL, USUAL * usual))
    job = DiagnosisJob(options=options, seconds=seconds, results=tuple(results))
    try:
        return workers.done(job)
    except ProcessEndedError as ended:
        note = f"the process that looked for causes ended ({ended.kind.where})"
        if len(job.fatal) == TRIES:
            note = f"the process that looked for causes ended {TRIES} times"
        elif ended.kind.nature == "timeout":
            note = "the search for causes took too long"
    except SuiteFailedError as error:
        note = f"the search for causes failed in the suite itself: {str(error).strip().splitlines()[-1]}"
    except TargetFailedError as error:
        note = f"the search for causes ended: {str(error).splitlines()[0]}"
    return replace([without, *job.parts][-1], note=f"{note}; the causes found until then follow")
