"""The HTML report as text: whatever a run comes to, it is one well-formed page that loads nothing and runs nothing."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from conformance.base.options import RunOptions
from conformance.judge.outcome import STATUSES, Counterexample, KnownOutcome, LawResult
from conformance.laws import Law, all_laws
from conformance.report import TargetReport
from conformance.report.html import MARKS, render
from conformance.tolerance.compared import BreakKind

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
    return result(law, dtype, "passed", examples=3, worst=0.25, **fields)


def test_where_all_laws_hold_it_says_so_and_shows_no_failure() -> None:
    page = read([target([passed(law) for law in laws()])])
    assert "All laws hold" in page.words and "Failures" not in page.words
    assert f"✓ {len(laws())} holds" in page.words


@pytest.mark.parametrize(
    "reports", [[], [target([])], [target([result(laws()[0], "float32", "skipped", "absent: it")])]]
)
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


def test_a_thousand_failures_are_all_there() -> None:
    dtypes = ("float64", "float32", "bfloat16", "float16")
    every = list({law.id: law for law in all_laws()}.values())
    results = [
        result(law, dtype, "failed", "off", examples=3, worst=7.0, counterexamples=(FOUND,))
        for law in every
        for dtype in dtypes
    ]
    reports = [target(results, f"package_number_{at}.implementation") for at in range(4)]
    text = render(reports)
    assert text.count("assert 1 &lt; 2") == 4 * len(every) * len(dtypes)
    assert f"{4 * len(results)} of {4 * len(results)} checks broken" in text
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
    assert "All laws hold but the known failures" in page.words and "1 known failure" in page.words
    assert "treated as a constant" in page.words and "https://example.org/12" in page.links
    assert "was repaired" in page.words and "known failure that holds now" in page.words


def test_under_strict_a_law_that_was_not_tried_is_broken() -> None:
    results = [result(laws()[0], "float32", "skipped", "absent: rev_cumsum"), passed(laws()[1])]
    assert "1 of 2 checks broken" in read([target(results, strict=True)]).words
    page = read([target(results)])
    assert "All laws hold" in page.words and "absent: rev_cumsum" in page.words


def test_every_status_has_a_sign_and_is_counted() -> None:
    assert set(MARKS) == set(STATUSES)
    results = [result(law, "float32", status) for law, status in zip(laws(), STATUSES, strict=False)]
    page = read([target(results), target(results[:3], "other")])
    for each in results:
        sign, word = MARKS[each.status]
        assert f"{sign} 1 {word}" in page.words


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 0.0, 5e-324, 1.7e308])
def test_no_number_is_too_odd(number: float) -> None:
    found = replace(FOUND, got=number, expected=number, allowed=number, ulp=number)
    broken = result(laws()[0], "float32", "failed", "off", worst=number, counterexamples=(found,), seconds=number)
    assert "1 of 2 checks broken" in read([target([broken, passed(laws()[1])])]).words
