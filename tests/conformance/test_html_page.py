"""The HTML report as text: whatever a run comes to, it is one well-formed page that loads nothing and runs nothing."""

import math
import re
from dataclasses import fields, replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from conformance.cases import (
    COTANGENTS,
    GATES,
    GRU_GATES,
    FwbwCase,
    GRUCase,
    Limits,
    MLSTMCase,
    SumCase,
    gate_sums,
    sums,
)
from conformance.comparison import Point
from conformance.draws import sampled
from conformance.dtypes import FLOATING
from conformance.known_failures import KnownOutcome
from conformance.laws import Law, all_laws
from conformance.options import RunOptions
from conformance.outcome import BreakKind, Counterexample, LawResult
from conformance.report import TargetReport, html
from conformance.report.html import render
from conformance.report.html._formatting import MARKS

LIMITS = [Limits(stratum, True, "float32", 200) for stratum in ("small", "chunk")]
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


def result(law: Law, dtype: str, status: str, reason: str | None = None, **fields: Any) -> LawResult:
    return LawResult(law=law, dtype=dtype, status=status, reason=reason, **fields)


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


def target(results: list[LawResult], name: str = "sound", **settings: Any) -> TargetReport:
    facts = {"target": name, "framework": "numpy", "device": "cpu", "versions": {"numpy": "2.4"}}
    return TargetReport(**facts, options=RunOptions(**settings), results=results, seconds=1.5)


def laws(op: str = "rev_cumsum") -> list[Law]:
    return [law for law in all_laws() if law.op == op]


def passed(law: Law, dtype: str = "float32", **fields: Any) -> LawResult:
    return result(law, dtype, "passed", examples=3, worst=0.25, points=(Point(8, 0.25, 1.5),), **fields)


def test_where_all_laws_hold_it_says_so_and_shows_no_failure() -> None:
    page = read([target([passed(law) for law in laws()])])
    assert "All laws hold" in page.words and "Broken laws" not in page.words and "broken" not in page.ids
    assert f"{len(laws())} checks (a law in a dtype) on 1 target" in page.words


@pytest.mark.parametrize(
    "reports", [[], [target([])], [target([result(laws()[0], "float32", "skipped", "absent: it")])]]
)
def test_where_nothing_ran_it_does_not_say_that_laws_hold(reports: list[TargetReport]) -> None:
    page = read(reports)
    assert "All laws hold" not in page.words and "No law ran" in page.words


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
    words = dict.fromkeys(("reason", "cause", "case"), HOSTILE)
    known = (KnownOutcome(**words, link="javascript:alert(1)", fails=True),)
    broken = result(
        law,
        HOSTILE,
        "failed",
        HOSTILE,
        examples=1,
        worst=3.0,
        counterexamples=(found,),
        branches={HOSTILE: 1.0},
        points=(Point(1, 3.0, 1.0),),
    )
    other = replace(law, name="other")
    reports = [
        replace(
            target([broken, result(other, "float32", "known", HOSTILE, expected_failures=known)], HOSTILE),
            device=HOSTILE,
        ),
        replace(target([result(law, "float32", "skipped", HOSTILE)], HOSTILE), versions={HOSTILE: HOSTILE}),
    ]
    page = read(reports)
    assert "<script>alert('x')</script>" in page.words and "<img src=x onerror=alert(1)>" in page.words
    assert "javascript:alert(1)" in page.words


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, 1.7e308])
def test_no_number_is_too_odd(number: float) -> None:
    odd = replace(FOUND, got=number, expected=number, allowed=number, ulp=number)
    points = (Point(0, number, number), Point(1, abs(number), abs(number)), Point(2**40, 0.5, 2.0))
    broken = result(
        laws()[0],
        "float32",
        "failed",
        "off",
        examples=3,
        worst=number,
        counterexamples=(odd,),
        points=points,
        seconds=number,
    )
    page = read([replace(target([broken, passed(laws()[1])]), seconds=number)])
    shown = {math.inf: "∞", -math.inf: "−∞"}.get(number, "NaN" if math.isnan(number) else str(number))
    assert shown in page.words
    for place in re.findall(r' (?:d|x|y|width|height|transform|viewBox)="([^"]*)"', render([target([broken])])):
        assert "nan" not in place and "inf" not in place


def test_a_thousand_failures_are_all_there() -> None:
    dtypes = ("float64", "float32", "bfloat16", "float16")
    points = tuple(Point(1 + at, 0.1 * at, float(at)) for at in range(40))
    every = list({law.id: law for law in all_laws()}.values())
    results = [
        result(law, dtype, "failed", "off", examples=3, worst=7.0, counterexamples=(FOUND,), points=points)
        for law in every
        for dtype in dtypes
    ]
    reports = [target(results, f"package_number_{at}.implementation") for at in range(4)]
    text = render(reports)
    assert text.count("assert 1 &lt; 2") == 4 * len(every) * len(dtypes)
    assert f"{4 * len(results)} checks are broken, of {len(every)} laws" in text
    assert len(text) < 2_750 * 4 * len(results)


def test_known_failures_stand_apart_with_reason_and_link() -> None:
    one, other, *_ = laws()
    call, link = {"cause": "y", "case": "S=4"}, "https://example.org/12"
    fails = KnownOutcome(reason="treated as a constant", link=link, **call, fails=True)
    holds = KnownOutcome(reason="was repaired", link="", **call, fails=False)
    results = [
        result(
            one,
            "float32",
            "known",
            fails.said,
            examples=3,
            worst=2.0,
            counterexamples=(FOUND,),
            expected_failures=(fails,),
        ),
        replace(passed(other), status="fixed", expected_failures=(holds,)),
    ]
    page = read([target(results)])
    assert "All laws hold but the known failures" in page.words and "1 known failure," in page.words
    assert "treated as a constant" in page.words and "https://example.org/12" in page.links
    assert "was repaired" in page.words and "known failure that holds now" in page.words
    assert "broken" not in page.ids


def test_under_strict_a_law_that_was_not_tried_is_broken() -> None:
    results = [result(laws()[0], "float32", "skipped", "absent: rev_cumsum"), passed(laws()[1])]
    assert "1 check is broken, of 1 law" in read([target(results, strict=True)]).words
    page = read([target(results)])
    assert "All laws hold" in page.words and "absent: rev_cumsum" in page.words


def test_headline_cards_and_table_count_the_same() -> None:
    every = laws()
    statuses = ("failed", "failed", "passed", "not served", "not promised", "skipped", "differs")
    results = [result(law, dtype, status) for law, status in zip(every, statuses, strict=False) for dtype in FLOATING]
    reports = [target(results), target(results[:5], "other")]
    text = unescape(render(reports))
    asked = [each for report in reports for each in report.results]
    for status, mark in MARKS.items():
        count = sum(each.status == status for each in asked)
        word = mark.word if count == 1 else mark.many
        told = re.search(rf"[:,] (\d+) {re.escape(word)}[,<]", text)
        assert int(told[1] if told else 0) == count
        on_cards = re.findall(rf"</span> (\d+) (?:{re.escape(mark.word)}|{re.escape(mark.many)})</span>", text)
        assert sum(map(int, on_cards)) == count
        cells = re.findall(r'<tr class="law">.*?</tr>', text, re.DOTALL)
        assert sum(f'class="unseen">{mark.word}</span>' in cell for row in cells for cell in row.split("<td")) == count
    assert f"{len(asked)} checks (a law in a dtype) on 2 targets" in text
    assert f"{8 + 5} checks are broken, of 2 laws" in text


def test_each_verdict_has_a_look_of_its_own() -> None:
    assert len({(mark.kind, mark.sign) for mark in MARKS.values()}) == len(MARKS)
    kinds = {status: MARKS[status].kind for status in ("not served", "not promised", "skipped", "failed", "passed")}
    assert len(set(kinds.values())) == len(kinds)
    style = render([target([])])
    assert all(f".{kind}" in style for kind in kinds.values())


@pytest.mark.parametrize(
    ("got", "expected", "shown"),
    [
        (0.291, 0.29, "0.29<mark>1</mark>, expected 0.29<mark>0</mark>"),
        (1.00001, 1.0, "1.0000<mark>1</mark>, expected 1.0000<mark>0</mark>"),
        (2.5e-9, 2.5e-7, "<mark>2.50</mark>e-09, expected <mark>2.50</mark>e-07"),
        (150.0, 15.0, "<mark>150</mark>, expected <mark>15.0</mark>"),
        (math.nan, 0.25, "NaN, expected 0.25"),
    ],
)
def test_two_numbers_are_shown_with_the_digits_that_differ(got: float, expected: float, shown: str) -> None:
    broken = result(laws()[0], "float32", "failed", counterexamples=(replace(FOUND, got=got, expected=expected),))
    assert f"y[0, 2] is {shown}" in render([target([broken])])


def test_the_words_of_cases_and_verdicts_are_explained() -> None:
    source = (Path(html.__file__).parent / "templates" / "glossary.html").read_text(encoding="utf-8")
    glossary = dict(re.findall("<dt>(.+?)</dt><dd>(.+?)</dd>", source))
    words = {word for each in glossary for word in (each, *each.split(", "))}
    classes = (MLSTMCase, GRUCase, SumCase, FwbwCase)
    of_cases = {field.name.replace("_", " ") for each in classes for field in fields(each)}
    # Told by what they hold: the regimes of gates and values; of the fwbw interface, the configuration is spelled out.
    of_cases -= {"gates", "values", "inner", "use initial state", "return state", "stabilize correctly", "keep"}
    families = (gate_sums, sums)
    drawn = {case.values for family in families for limits in LIMITS for case in sampled(family(limits), 0, 40)}
    assert drawn == {"ordinary", "small", "same sign", "wide", "resets", "extreme"}
    regimes = {*GATES, *GRU_GATES, *drawn}
    verdicts = {mark.word for status, mark in MARKS.items() if status != "fixed"}
    assert of_cases | regimes | verdicts <= words
    meanings = " ".join(glossary.values())
    assert all(word in meanings for word in (*COTANGENTS, "strided", "reversed", "transposed", "broadcast"))
    page = read([target([])])
    assert all(word in page.words for word in words)


def test_branches_that_are_short_of_data_are_marked() -> None:
    law = next(law for law in all_laws() if law.id == "mlstm.gradient")
    few = {"above": 95.0, "floor": 5.0, "carry": 98.0, "write": 2.0, "m0": 50.0}
    page = read([target([passed(law, elements=100, kinks=3, branches=few)])])
    words = " ".join(page.words.split())
    assert "written 2 % ▲" in words and "m from m₀ 50 %" in words and "3 % at a kink ▲" in words
    assert "|n·q̂| above its floor 95 %" in words and "on its floor 5 %" in words and "on its floor 5 % ▲" not in words


def test_targets_of_one_name_are_told_apart() -> None:
    names = ("a/kernels.py", "b/kernels.py", "c/gru.py", "torch_impl", "torch_impl")
    reports = [target([passed(laws()[0])], name) for name in names]
    assert read(reports).tags.count("article") == 5
    text = render(reports)
    for name in ("a/kernels.py", "b/kernels.py", "gru.py", "torch_impl (1)", "torch_impl (2)"):
        assert f'title="{name}, rev_cumsum.value in float32: holds' in text
