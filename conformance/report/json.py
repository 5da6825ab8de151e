"""The JSON report: a list with an entry per target."""

import json
import math
from dataclasses import asdict
from typing import Any

from conformance.report import TargetReport

STATUSES = ("passed", "failed", "skipped", "known", "fixed")


def render(reports: list[TargetReport]) -> str:
    return json.dumps([_target(report) for report in reports], indent=2, allow_nan=False) + "\n"


def _target(report: TargetReport) -> dict[str, Any]:
    return {
        "target": report.target,
        "framework": report.framework,
        "versions": report.versions,
        "device": report.device,
        "seed": report.settings.seed,
        "started": report.started,
        "settings": {
            "examples": report.settings.examples,
            "max_steps": report.settings.max_steps,
            "kernel_backend": report.settings.kernel_backend,
            "quick": report.settings.quick,
            "strict": report.settings.strict,
        },
        "seconds": round(report.seconds, 3),
        "summary": {status: report.count(status) for status in STATUSES},
        "laws": [
            {
                "id": result.law.id,
                "op": result.law.op,
                "law": result.law.name,
                "kind": result.law.kind,
                "dtype": result.dtype,
                "status": result.status,
                "reason": result.reason,
                "examples": result.examples,
                "worst_error": _number(result.worst),
                "counterexample": _counterexample(report, result),
                "kinks": result.kinks,
                "elements": result.elements,
                "spread": result.spread,
                "points": [{name: _number(x) for name, x in asdict(point).items()} for point in result.points],
                "known": [{**asdict(outcome), "said": outcome.said} for outcome in result.known],
                "seconds": round(result.seconds, 3),
            }
            for result in report.results
        ],
    }


def _counterexample(report: TargetReport, result: Any) -> dict[str, Any] | None:
    if result.counterexample is None:
        return None
    found = {name: _number(value) for name, value in asdict(result.counterexample).items() if name != "script_text"}
    return {**found, "reproduce": report.reproduce(result)}


def _number(value: Any) -> Any:
    """JSON has no NaN and no infinity: they are written as words."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
