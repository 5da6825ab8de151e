"""Diagnoses of strangers in this process, in float32 and with few cases unless a test says otherwise."""

from typing import Any
from unittest.mock import patch

from conformance.base.options import RunOptions
from conformance.diagnosis.cause import Diagnosis
from conformance.diagnosis.diagnose import diagnose
from conformance.frameworks.implementation import Implementation
from conformance.judge.runner import run


def diagnosis(implementation: Implementation, **changed: Any) -> Diagnosis:
    """Try laws on a target of one operation, and look for the causes of what fails.

    A quick run has longer for it than a user gives it: what is named must not depend on the machine.
    """
    (op,) = implementation.functions
    usual = {"laws": ("value", "gradient"), "dtypes": ("float32",), "examples": 6, "max_steps": 70}
    options = RunOptions(ops=(op,), shrink_seconds=1.0, **{**usual, **changed})
    results = list(run(implementation, options))
    with patch("conformance.diagnosis.diagnose.QUICK_SECONDS", 60.0):
        return diagnose(implementation, options, results)


def cells(found: Diagnosis, feature: str) -> dict[str, tuple[str, str]]:
    """The verdicts on value and gradient of calls with a feature, by dtype."""
    (envelope,) = found.envelopes
    row = next(row for row in envelope.rows if row.feature == feature)
    return {dtype: (cell.value, cell.gradient) for dtype, cell in row.cells.items()}
