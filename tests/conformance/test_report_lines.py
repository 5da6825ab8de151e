"""Single lines of the reports: what a quick run left out, the size of a difference, features counted, a place."""

import io
import re
from typing import Any

import numpy as np
from rich.console import Console

from conformance.base.exceptions import place_of
from conformance.base.options import RunOptions
from conformance.cases import MLSTMCase
from conformance.diagnosis.cause import Cause, Cell, Diagnosis, Envelope, Row
from conformance.judge.outcome import Counterexample, LawResult
from conformance.laws import all_laws
from conformance.report import TargetReport
from conformance.report.console import show
from conformance.report.html import render
from conformance.tolerance.compared import ArrayOutcome, BreakKind

LAWS = {law.id: law for law in all_laws()}


def _report(results: list[LawResult], diagnosis: Diagnosis | None = None, **options: Any) -> TargetReport:
    facts = {"target": "target", "framework": "numpy", "device": "cpu", "versions": {}, "seconds": 1.0}
    return TargetReport(**facts, options=RunOptions(**options), results=results, diagnosis=diagnosis or Diagnosis())


def _shown(report: TargetReport, **how: Any) -> list[str]:
    console = Console(record=True, width=200, file=io.StringIO())
    show(console, report, **how)
    return console.export_text().strip().split("\n")


def _absent() -> list[LawResult]:
    others = (law for law in LAWS.values() if law.op != "mlstm")
    return [LawResult(law=law, dtype="float32", status="skipped", reason=f"absent: {law.op}") for law in others]


def test_the_last_line_of_a_quick_run_says_what_it_did_not_judge() -> None:
    passed = LawResult(law=LAWS["mlstm.value"], dtype="float32", status="passed", examples=4)
    last = _shown(_report([passed, *_absent()], quick=True, max_steps=70))[-1]
    count, names = re.match(r"not judged by --quick: (\d+) laws, such as ([^;]*);", last).groups()
    others = {law.name for law in LAWS.values() if law.op == "mlstm"} - {"value"}
    assert int(count) == len(others) and set(names.split(", ")) <= others and "packed" in names
    assert "; float64, bfloat16, float16; sequences of more than 70 steps" in last
    assert not any("not judged by" in line for line in _shown(_report([passed])))


def test_operations_that_a_target_lacks_have_one_line_and_no_row() -> None:
    passed = LawResult(law=LAWS["mlstm.value"], dtype="float32", status="passed", examples=4)
    for verbose in (False, True):
        lines = _shown(_report([passed, *_absent()]), verbose=verbose)
        assert sum("gru" in line for line in lines) == 1


def _differing() -> TargetReport:
    off = ArrayOutcome(where="gradient of input", nature="number", worst=1e6, error=0.94, wrong=0.5, distance=2.0)
    found = Counterexample(case="case", kind=BreakKind("gradient of input", "number"), problem="off", arrays=(off,))
    law = LAWS["gru.clipping"]
    return _report([LawResult(law=law, dtype="float32", status="differs", examples=4, counterexamples=(found,))])


def test_a_difference_of_contract_is_told_with_its_size_and_is_not_a_broken_law() -> None:
    lines = _shown(_differing())
    said = "gru.clipping (float32), gradient of input 94 % off in 50 % of its elements"
    assert f"differs from gatespec's contract in: {said}" in lines
    assert not any("✗" in line for line in lines) and any("≠" in line for line in lines)
    page = render([_differing()])
    assert "≠ All laws hold; 1 check differs from gatespec" in page


def test_features_that_are_not_wrong_are_counted_apart() -> None:
    def row(feature: str, value: str) -> Row:
        return Row(feature=feature, sentence=feature, cells={"float32": Cell(value=value, gradient=value)})

    statuses = ("wrong", "right", "right", "right", "not served", "not served", "not tried")
    rows = tuple(row(f"feature {number}", status) for number, status in enumerate(statuses))
    cause = Cause(sentence="It is wrong.", ops=("mlstm",), kind="value")
    envelope = Envelope(op="mlstm", rows=rows, summary="Wrong.")
    broken = LawResult(law=LAWS["mlstm.value"], dtype="float32", status="failed", reason="off")
    lines = _shown(_report([broken], Diagnosis(causes=(cause,), envelopes=(envelope,))))
    said = "of 6 other kinds of call, 3 right, 2 refused, 1 not tried; --html and --json show all of them"
    assert any(said in line for line in lines)


def _inverse() -> Any:
    return np.linalg.inv(np.zeros((2, 2)))


def test_an_exception_is_placed_at_the_targets_own_line() -> None:
    try:
        _inverse()
    except np.linalg.LinAlgError as error:
        assert place_of(error) == f"test_report_lines.py:{_inverse.__code__.co_firstlineno + 1}"
    assert place_of(ValueError()) == ""


def test_a_case_says_in_words_what_its_arrays_lack() -> None:
    case = MLSTMCase(1, 3, 1, 2, 2, removed=("normaliser above its floor", "large input gates"))
    assert "|n·q̂| at its floor in every step, no large input gates" in case.describe()
