"""Reports without a browser: the page is well-formed, loads nothing and runs nothing; lines of the terminal."""

import io
import math
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from conformance.base.exceptions import place_of
from conformance.base.options import RunOptions
from conformance.cases import MLSTMCase
from conformance.diagnosis.cause import Cause, Cell, Diagnosis, Envelope, Row
from conformance.judge.outcome import STATUSES, Counterexample, LawResult
from conformance.laws import Law, all_laws
from conformance.report import TargetReport
from conformance.report.console import show
from conformance.report.html import MARKS, render
from conformance.tolerance.compared import ArrayOutcome, BreakKind

VOID = {"meta", "link", "input", "wbr"}
HOSTILE = "</style></pre><script>alert('x')</script>\"><img src=x onerror=alert(1)> & ]]> \x00\udc80"
FOUND = Counterexample(
    case="S=3",
    kind=BreakKind("y", "number"),
    problem="y: off",
    index=(0, 2),
    got=1.0,
    expected=2.0,
    allowed=1e-7,
    ulp=1e7,
    script="reports/failures/a.py",
    script_text="assert 1 < 2",
)


class Page(HTMLParser):
    """Sees that tags are closed in turn, and gathers ids, links and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        assert not any(name.startswith("on") for name in given), attrs
        self.ids += [str(given["id"])] if "id" in given else []
        self.links += [str(given[name]) for name in ("href", "src") if name in given]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def read(reports: list[TargetReport]) -> Page:
    text = render(reports)
    text.encode("utf-8")
    page = Page(text)
    assert len(set(page.ids)) == len(page.ids)
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert [link for link in page.links if not link.startswith(("#", "data:,", "https://"))] == []
    assert {"script", "img", "iframe", "object", "embed"}.isdisjoint(page.tags)
    assert re.search(r"url\(|@import", text) is None
    return page


def _report(
    results: list[LawResult], name: str = "sound", diagnosis: Diagnosis | None = None, **options: Any
) -> TargetReport:
    facts = {"target": name, "framework": "numpy", "device": "cpu", "versions": {"numpy": "2.4"}, "seconds": 1.5}
    return TargetReport(**facts, options=RunOptions(**options), results=results, diagnosis=diagnosis or Diagnosis())


def _law(law: Law, status: str, reason: str | None = None, dtype: str = "float32", **fields: Any) -> LawResult:
    return LawResult(law=law, dtype=dtype, status=status, reason=reason, **fields)


def passed(law: Law) -> LawResult:
    return _law(law, "passed", examples=3, worst=0.25)


def laws(op: str = "rev_cumsum") -> list[Law]:
    return [law for law in all_laws() if law.op == op]


def test_where_all_laws_hold_it_says_so_and_shows_no_failure() -> None:
    page = read([_report([passed(law) for law in laws()])])
    assert "All laws hold" in page.words and "Failures" not in page.words
    assert f"✓ {len(laws())} holds" in page.words


@pytest.mark.parametrize("reports", [[], [_report([])], [_report([_law(laws()[0], "skipped", "absent: it")])]])
def test_where_nothing_ran_it_does_not_say_that_laws_hold(reports: list[TargetReport]) -> None:
    page = read(reports)
    assert "All laws hold" not in page.words and "no law was judged" in page.words


def test_hostile_names_stay_names() -> None:
    law = replace(laws()[0], op=HOSTILE, name=HOSTILE, sentence=HOSTILE, equation=HOSTILE)
    found = replace(
        FOUND,
        case=HOSTILE,
        problem=HOSTILE,
        kind=BreakKind(HOSTILE, "number"),
        script=HOSTILE,
        script_text=HOSTILE,
        script_note=HOSTILE,
    )
    broken = _law(
        law,
        "failed",
        HOSTILE,
        HOSTILE,
        examples=1,
        worst=3.0,
        counterexamples=(found,),
        branches={HOSTILE: 1.0},
    )
    other = replace(law, name="other")
    reports = [
        replace(
            _report([broken, _law(other, "known", HOSTILE)], HOSTILE),
            device=HOSTILE,
        ),
        replace(_report([_law(law, "skipped", HOSTILE)], HOSTILE), versions={HOSTILE: HOSTILE}),
    ]
    page = read(reports)
    assert "<script>alert('x')</script>" in page.words and "<img src=x onerror=alert(1)>" in page.words


def test_known_failures_stand_apart_with_their_reason() -> None:
    one, other, *_ = laws()
    results = [
        _law(one, "known", "known: treated as a constant", examples=3, worst=2.0, counterexamples=(FOUND,)),
        replace(passed(other), status="fixed", reason="passes now: it was repaired"),
    ]
    page = read([_report(results)])
    assert "All laws hold but the known failures" in page.words and "1 known failure" in page.words
    assert "treated as a constant" in page.words
    assert "was repaired" in page.words and "known failure that holds now" in page.words


def test_under_strict_a_law_that_was_not_tried_is_broken() -> None:
    results = [_law(laws()[0], "skipped", "absent: rev_cumsum"), passed(laws()[1])]
    assert "1 of 2 checks broken" in read([_report(results, strict=True)]).words
    page = read([_report(results)])
    assert "All laws hold" in page.words and "absent: rev_cumsum" in page.words


def test_what_was_not_tried_is_neither_counted_nor_a_row() -> None:
    def row(feature: str, value: str) -> Row:
        return Row(feature=feature, sentence=feature, cells={"float32": Cell(value=value, gradient=value)})

    envelope = Envelope(
        op="rev_cumsum", rows=(row("one step", "right"), row("no steps", "not tried")), summary="Right."
    )
    one, other, *more = laws()
    absent = [_law(law, "skipped", "absent: it") for law in (other, *more)]
    page = read([_report([_law(one, "failed", "off"), *absent], diagnosis=Diagnosis(envelopes=(envelope,)))])
    assert "✗ 1 of 1 check broken" in page.words and "rev_cumsum: 1 law, 1 of 1 check broken" in page.words
    assert "one step" in page.words and "no steps" not in page.words
    assert "Kinds of call that were not tried at all: 1." in page.words


def _told_in(width: int, monkeypatch: pytest.MonkeyPatch, report: TargetReport) -> list[str]:
    monkeypatch.delenv("COLUMNS", raising=False)
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    show(console, report)
    return console.export_text().split("\n")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_has_wrapped_lines_with_an_indentation(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    size = {"nature": "number", "worst": 1e6, "error": 0.9, "wrong": 0.5, "distance": 2.0}
    arrays = tuple(ArrayOutcome(where=f"gradient of argument {n}", **size) for n in range(6))
    cause = Cause(sentence="It is wrong. " * 12, ops=("mlstm",), kind="value", arrays=arrays)
    found = replace(FOUND, kind=BreakKind("h", "number"))
    results = [_law(LAWS["mlstm.value"], "failed", "off", counterexamples=(found,)), *_absent()]
    report = _report(results, "a kernel.py", Diagnosis(causes=(cause,)))
    lines = _told_in(width, monkeypatch, report)
    assert max(map(cell_len, lines)) <= width
    first = next(number for number, line in enumerate(lines) if line.startswith("1. It is wrong."))
    assert re.match(r" {4}\S", lines[first + 1])
    arrays_at = next(number for number, line in enumerate(lines) if line.startswith("    arrays"))
    assert re.match(r" {14}\S", lines[arrays_at + 1])
    again = next(number for number, line in enumerate(lines) if line.startswith("    again"))
    command = []
    for line in lines[again:]:
        command.append(line[14:].removesuffix("\\"))
        if not line.endswith("\\"):
            break
    assert shlex.split(" ".join(command)) == shlex.split(report.reproduce(report.results[0]))


def test_every_status_has_a_sign_and_is_counted() -> None:
    assert set(MARKS) == set(STATUSES)
    results = [_law(law, status) for law, status in zip(laws(), STATUSES, strict=False)]
    page = read([_report(results), _report(results[:3], "other")])
    for each in results:
        sign, word = MARKS[each.status]
        assert f"{sign} 1 {word}" in page.words


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 0.0, 5e-324, 1.7e308])
def test_no_number_is_too_odd(number: float) -> None:
    found = replace(FOUND, got=number, expected=number, allowed=number, ulp=number)
    broken = _law(laws()[0], "failed", "off", worst=number, counterexamples=(found,), seconds=number)
    assert "1 of 2 checks broken" in read([_report([broken, passed(laws()[1])])]).words


LAWS = {law.id: law for law in all_laws()}


def _shown(report: TargetReport, **how: Any) -> list[str]:
    console = Console(record=True, width=200, file=io.StringIO())
    show(console, report, **how)
    return console.export_text().strip().split("\n")


def _absent() -> list[LawResult]:
    others = (law for law in LAWS.values() if law.op != "mlstm")
    return [_law(law, "skipped", f"absent: {law.op}") for law in others]


def test_the_last_line_of_a_quick_run_says_what_it_did_not_judge() -> None:
    passed = _law(LAWS["mlstm.value"], "passed", examples=4)
    last = _shown(_report([passed, *_absent()], quick=True, max_steps=70))[-1]
    count, names = re.match(r"not judged by --quick: (\d+) laws, such as ([^;]*);", last).groups()
    others = {law.name for law in LAWS.values() if law.op == "mlstm"} - {"value"}
    assert int(count) == len(others) and set(names.split(", ")) <= others and "packed" in names
    assert "; float64, bfloat16, float16; sequences of more than 70 steps" in last
    assert not any("not judged by" in line for line in _shown(_report([passed])))


def test_operations_that_a_target_lacks_have_one_line_and_no_row() -> None:
    passed = _law(LAWS["mlstm.value"], "passed", examples=4)
    for verbose in (False, True):
        lines = _shown(_report([passed, *_absent()]), verbose=verbose)
        assert sum("gru" in line for line in lines) == 1


def _differing() -> TargetReport:
    off = ArrayOutcome(where="gradient of input", nature="number", worst=1e6, error=0.94, wrong=0.5, distance=2.0)
    found = Counterexample(case="case", kind=BreakKind("gradient of input", "number"), problem="off", arrays=(off,))
    law = LAWS["gru.clipping"]
    return _report([_law(law, "differs", examples=4, counterexamples=(found,))])


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
    broken = _law(LAWS["mlstm.value"], "failed", "off")
    lines = _shown(_report([broken], diagnosis=Diagnosis(causes=(cause,), envelopes=(envelope,))))
    said = "of 6 other kinds of call, 3 right, 2 refused, 1 not tried; --json shows all of them"
    assert any(said in line for line in lines)


def _inverse() -> Any:
    return np.linalg.inv(np.zeros((2, 2)))


def test_an_exception_is_placed_at_the_targets_own_line() -> None:
    try:
        _inverse()
    except np.linalg.LinAlgError as error:
        assert place_of(error) == f"test_report.py:{_inverse.__code__.co_firstlineno + 1}"
    assert place_of(ValueError()) == ""


def test_a_case_says_in_words_what_its_arrays_lack() -> None:
    case = MLSTMCase(1, 3, 1, 2, 2, removed=("normaliser above its floor", "large input gates"))
    assert "|n·q̂| at its floor in every step, no large input gates" in case.describe()


def told_of(kind: BreakKind, problem: str) -> str:
    found = Counterexample(case="S=3", kind=kind, problem=problem)
    law = next(each for each in all_laws() if each.id == "mlstm.value")
    result = LawResult(law=law, dtype="float32", status="failed", counterexamples=(found, found))
    told = io.StringIO()
    show(Console(file=told, width=400), _report([result]))
    return told.getvalue()


def test_an_assertion_is_told_once_how_to_be_a_refusal() -> None:
    problem = 'raised AssertionError: S 13 is "odd" (kernel.py:12)'
    said = told_of(BreakKind("AssertionError", "exception"), problem)
    wanted = 'in place of the AssertionError at kernel.py:12, with: raise NotImplementedError("S 13 is \\"odd\\"")'
    assert said.count("NotImplementedError") == 1 and wanted in said, said
    bare = told_of(BreakKind("ValueError", "exception"), "raised ValueError")
    assert 'in place of the ValueError, with: raise NotImplementedError("not supported")' in bare
    for kind, other in (
        (BreakKind("KeyError", "exception"), "raised KeyError: 'x' (kernel.py:12)"),
        (BreakKind("h", "number"), "h: off"),
    ):
        assert "NotImplementedError" not in told_of(kind, other)


def test_kinks_are_told_of_laws_that_held_alone() -> None:
    held, broken = (_law(laws()[0], status, kinks=2, elements=100) for status in ("passed", "failed"))
    for result, told in ((held, True), (broken, False)):
        said = io.StringIO()
        show(Console(file=said, width=400), _report([result]))
        assert ("2.0 % of the elements" in said.getvalue()) == told
