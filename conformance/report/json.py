"""The JSON report: a list with an entry per target."""

import json
import math
from dataclasses import asdict
from typing import Any

from conformance.diagnosis.cause import Cause, Envelope
from conformance.outcome import STATUSES, Counterexample, LawResult
from conformance.report import TargetReport


def render(reports: list[TargetReport]) -> str:
    return json.dumps([_target(report) for report in reports], indent=2, allow_nan=False) + "\n"


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
            "promises": list(report.options.promises),
        },
        "seconds": round(report.seconds, 3),
        "summary": {status.replace(" ", "_"): report.count(status) for status in STATUSES},
        "causes": [_cause(cause) for cause in report.diagnosis.causes],
        "envelope": {envelope.op: _envelope(envelope) for envelope in report.diagnosis.envelopes},
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
                "counterexample": _counterexample(report, result, result.counterexample),
                "counterexamples": [_counterexample(report, result, found) for found in result.counterexamples],
                "refused": asdict(result.refused),
                "kinks": result.kinks,
                "elements": result.elements,
                "spread": dict(result.branches),
                "points": [{name: _number(x) for name, x in asdict(point).items()} for point in result.points],
                "known": [{**asdict(outcome), "said": outcome.said} for outcome in result.expected_failures],
                "seconds": round(result.seconds, 3),
            }
            for result in report.results
        ],
    }


def _counterexample(report: TargetReport, result: LawResult, found: Counterexample | None) -> dict[str, Any] | None:
    return None if found is None else {**_plain(asdict(found)), "reproduce": report.reproduce(result)}


def _plain(written: dict[str, Any]) -> dict[str, Any]:
    """A counterexample as JSON takes it; the text of its script stands in a file."""
    kind = written.pop("kind")
    del written["script_text"]
    arrays = [{name: _number(x) for name, x in each.items()} for each in written.pop("arrays")]
    return {name: _number(x) for name, x in {**written, **kind}.items()} | {"arrays": arrays}


def _cause(cause: Cause) -> dict[str, Any]:
    found = {name: value for name, value in asdict(cause).items() if name not in ("script_text", "example")}
    outcomes = {
        name: [{key: _number(value) for key, value in array.items()} for array in found[name]]
        for name in ("arrays", "breaks")
    }
    return {**found, **outcomes, "explains": [{"id": each.law, "dtype": each.dtype} for each in cause.explains]}


def _envelope(envelope: Envelope) -> dict[str, Any]:
    rows = [
        {"feature": row.feature, "sentence": row.sentence, "cells": {name: asdict(x) for name, x in row.cells.items()}}
        for row in envelope.rows
    ]
    return {"summary": envelope.summary, "features": rows}


def _number(value: Any) -> Any:
    """JSON has no NaN and no infinity: they are written as words."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
