"""The reports of a run: a table in the terminal, JSON and HTML."""

import os
import shlex
from dataclasses import dataclass, field

from conformance.base.options import INTERPRETERS, RunOptions
from conformance.diagnosis.cause import Diagnosis
from conformance.judge.known_failures import unmatched
from conformance.judge.outcome import LawResult


@dataclass(frozen=True, kw_only=True)
class TargetReport:
    """The results of one target.

    Attributes:
        target: its name as given.
        framework, device, versions: the framework, the device and the versions of what computed.
        options: the options of the run.
        results: one for each law and dtype.
        seconds: how long the run took.
        started: when it started, as text.
        named_framework: the framework, if the command line named it.
        diagnosis: why laws fail, and where the target is right.
    """

    target: str
    framework: str
    device: str
    versions: dict[str, str]
    options: RunOptions
    results: list[LawResult]
    seconds: float
    started: str | None = None
    named_framework: str | None = None
    diagnosis: Diagnosis = field(default_factory=Diagnosis)

    def count(self, status: str) -> int:
        return sum(result.status == status for result in self.results)

    @property
    def failures(self) -> list[LawResult]:
        """Broken laws; under ``--strict`` also laws that could not be tried, and known failures that now pass."""
        strict = ("skipped", "not served", "fixed") if self.options.strict else ()
        return [result for result in self.results if result.status in ("failed", *strict)]

    @property
    def unmatched(self) -> list[str]:
        """A sentence about each known failure that is about no law."""
        return unmatched(self.options.known_failures)

    @property
    def ran(self) -> bool:
        return any(result.judged for result in self.results)

    def reproduce(self, result: LawResult) -> str:
        """The command that tries this law again on the same cases."""
        options = self.options
        words = [
            f"gatespec run {shlex.quote(self.target)} --op {result.law.op} --law {result.law.name}",
            f"--dtype {result.dtype} --seed {options.seed} --examples {options.examples}",
            f"--max-steps {options.max_steps} --device {self.device}",
        ]
        if options.spec is not None:
            words.append(f"--spec {shlex.quote(str(options.spec))}")
        if self.named_framework is not None:
            words.append(f"--framework {self.named_framework}")
        if options.kernel_backend is not None:
            words.append(f"--kernel-backend {options.kernel_backend}")
            on = [f"{name}={os.environ[name]}" for name in INTERPRETERS.values() if os.environ.get(name)]
            words = [*on, *words]
        if options.contract:
            words.append("--contract")
        if options.quick:
            words.append("--quick")
        return " ".join(words)


SUITE_FAILED = 3
"""The exit status if the suite itself failed and no law was seen to be broken."""


def exit_status(reports: list[TargetReport]) -> int:
    """0 if all laws held, 1 if a law was broken, 2 if for some target no law ran at all; else `SUITE_FAILED`."""
    if any(report.failures for report in reports):
        return 1
    if any(report.count("suite failed") for report in reports):
        return SUITE_FAILED
    return 0 if reports and all(report.ran for report in reports) else 2
