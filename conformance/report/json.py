"""The JSON report: a list with an entry per target."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from conformance.diagnosis.cause import Cause
from conformance.judge.outcome import STATUSES, Counterexample, LawResult
from conformance.report import TargetReport


def render(reports: list[TargetReport]) -> str:
    return json.dumps(document(reports), indent=2, allow_nan=False) + "\n"


def document(reports: list[TargetReport], *, with_scripts: bool = False) -> list[dict[str, Any]]:
    """The entries of the report.

    Args:
        with_scripts: whether causes and counterexamples hold the text of their scripts, which also stands in files.
    """
    return plain([_target(report, with_scripts) for report in reports])


def _target(report: TargetReport, with_scripts: bool) -> dict[str, Any]:
    broken = report.failures
    return {
        "target": report.target,
        "framework": report.framework,
        "versions": report.versions,
        "device": report.device,
        "seed": report.options.seed,
        "started": report.started,
        "settings": {
            "examples": report.options.examples,
            "max_steps": report.options.max_steps,
            "kernel_backend": report.options.kernel_backend,
            "quick": report.options.quick,
            "strict": report.options.strict,
        },
        "seconds": round(report.seconds, 3),
        "summary": {status.replace(" ", "_"): report.count(status) for status in STATUSES},
        "unmatched_known_failures": report.unmatched,
        "causes": [_cause(cause, with_scripts) for cause in report.diagnosis.causes],
        "envelope": {
            envelope.op: {"summary": envelope.summary, "features": envelope.rows}
            for envelope in report.diagnosis.envelopes
        },
        "laws": [_law(report, result, broken, with_scripts) for result in report.results],
    }


def _law(report: TargetReport, result: LawResult, broken: list[LawResult], with_scripts: bool) -> dict[str, Any]:
    found = [_counterexample(report, result, each, with_scripts) for each in result.counterexamples]
    return {
        "id": result.law.id,
        "op": result.law.op,
        "law": result.law.name,
        "kind": result.law.kind,
        "sentence": result.law.sentence,
        "equation": result.law.equation,
        "dtype": result.dtype,
        "status": result.status,
        "broken": any(result is each for each in broken),
        "reason": result.reason,
        "examples": result.examples,
        "worst_error": result.worst,
        "counterexample": found[0] if found else None,
        "counterexamples": found,
        "refused": result.refused,
        "kinks": result.kinks,
        "elements": result.elements,
        "spread": result.branches,
        "points": result.points,
        "seconds": round(result.seconds, 3),
    }


def _counterexample(
    report: TargetReport, result: LawResult, found: Counterexample, with_scripts: bool
) -> dict[str, Any]:
    left_out = ("kind", "arrays") if with_scripts else ("kind", "arrays", "script_text")
    told = {name: value for name, value in vars(found).items() if name not in left_out}
    return {**told, **asdict(found.kind), "arrays": found.arrays, "reproduce": report.reproduce(result)}


def _cause(cause: Cause, with_scripts: bool) -> dict[str, Any]:
    told = {name: value for name, value in vars(cause).items() if with_scripts or name != "script_text"}
    return {**told, "explains": [{"id": each.law, "dtype": each.dtype} for each in cause.explains]}


def plain(value: Any) -> Any:
    """Dataclasses, tuples and mappings as JSON takes them; it has no NaN and no infinity: they are written as words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return plain(vars(value)) if is_dataclass(value) else value
