"""The JSON report: a list with an entry per target."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from conformance.diagnosis.cause import Cause
from conformance.outcome import STATUSES, Counterexample, LawResult
from conformance.report import TargetReport


def render(reports: list[TargetReport]) -> str:
    return json.dumps(plain([_target(report) for report in reports]), indent=2, allow_nan=False) + "\n"


def _target(report: TargetReport) -> dict[str, Any]:
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
            "promises": report.options.promises,
        },
        "seconds": round(report.seconds, 3),
        "summary": {status.replace(" ", "_"): report.count(status) for status in STATUSES},
        "causes": [_cause(cause) for cause in report.diagnosis.causes],
        "envelope": {
            envelope.op: {"summary": envelope.summary, "features": envelope.rows}
            for envelope in report.diagnosis.envelopes
        },
        "laws": [_law(report, result) for result in report.results],
    }


def _law(report: TargetReport, result: LawResult) -> dict[str, Any]:
    return {
        "id": result.law.id,
        "op": result.law.op,
        "law": result.law.name,
        "kind": result.law.kind,
        "dtype": result.dtype,
        "status": result.status,
        "reason": result.reason,
        "examples": result.examples,
        "worst_error": result.worst,
        "counterexample": _counterexample(report, result, result.counterexample),
        "counterexamples": [_counterexample(report, result, found) for found in result.counterexamples],
        "refused": result.refused,
        "kinks": result.kinks,
        "elements": result.elements,
        "spread": result.branches,
        "points": result.points,
        "known": [{**asdict(outcome), "said": outcome.said} for outcome in result.expected_failures],
        "seconds": round(result.seconds, 3),
    }


def _counterexample(report: TargetReport, result: LawResult, found: Counterexample | None) -> dict[str, Any] | None:
    if found is None:
        return None
    # The text of its script stands in a file.
    told = {name: value for name, value in vars(found).items() if name not in ("kind", "script_text", "arrays")}
    return {**told, **asdict(found.kind), "arrays": found.arrays, "reproduce": report.reproduce(result)}


def _cause(cause: Cause) -> dict[str, Any]:
    told = {name: value for name, value in vars(cause).items() if name not in ("script_text", "example")}
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
