"""Failures and causes as lines of text: a word and what it says; a failure takes at most fifteen lines."""

import json
import math
import re
from collections.abc import Mapping

from conformance.diagnosis.cause import Cause
from conformance.diagnosis.causes import array_line
from conformance.judge.outcome import Counterexample, LawResult
from conformance.report import TargetReport

NAMED = 4
"""Maximum number of checks that are named as explained by a cause; the others are counted."""

MOST_KINKS = 0.01
"""The share of elements at a kink that a law may have; at a kink the gradient of either side passes."""

_BRANCHES = (("above", "floor"), ("carry", "write", "m0"))
_SAID = {
    "above": "|n·q̂| above its floor",
    "floor": "at it",
    "carry": "m by carry",
    "write": "by write",
    "m0": "by m₀",
}


def headline(result: LawResult) -> str:
    return f"{result.law.id} in {result.dtype}: {result.law.sentence}"


def lines(report: TargetReport, result: LawResult) -> list[tuple[str, str]]:
    """The failure as pairs of a word and its text; a headline comes before them."""
    found = result.counterexample
    told = [("law", result.law.equation)]
    if found is None:
        told.append((result.status, result.reason or ""))
    else:
        told.append(("case", found.case))
        told += _numbers(result)
        if result.elements:
            told.append(("branches", f"{branches(result.branches)}; {kinks(result)}".removeprefix("; ")))
    told.append(("again", report.reproduce(result)))
    return told if found is None else told + _script(found)


def _script(found: Counterexample | Cause) -> list[tuple[str, str]]:
    said = ", ".join(filter(None, (found.script, found.script_note)))
    return [("script", said)] if said else []


def _numbers(result: LawResult) -> list[tuple[str, str]]:
    found = result.counterexample
    assert found is not None
    if found.index is None or found.expected is None or found.allowed is None or found.got is None:
        return [("problem", found.problem)]
    told = [
        ("array", f"{found.where}, first wrong at {list(found.index)}"),
        ("got", f"{found.got!r}"),
        ("expected", f"{found.expected!r} ± {found.allowed:.3g}"),
    ]
    error = abs(found.got - found.expected)
    if math.isfinite(error) and found.allowed > 0:
        ulp = "" if found.ulp is None else f"{found.ulp:.3g} roundoffs, "
        worst = "" if result.worst is None else f"; the worst element seen, {result.worst:.3g}"
        told.append(("error", f"{ulp}{error / found.allowed:.3g} times its tolerance{worst}"))
    return told


def branches(spread: Mapping[str, float]) -> str:
    """The branches that the elements took, in per cent of the elements that had the choice."""
    groups = []
    for names in _BRANCHES:
        total = sum(spread.get(name, 0) for name in names)
        if total:
            groups.append(", ".join(f"{_SAID[name]} {100 * spread.get(name, 0) / total:.0f} %" for name in names))
    return "; ".join(groups)


def kinks(result: LawResult) -> str:
    return f"{result.kinks} of {result.elements} elements at a kink, where the gradient of either side passes"


def text(report: TargetReport, result: LawResult) -> str:
    """The failure as plain text."""
    return "\n".join([headline(result), *(f"    {word:<9} {said}" for word, said in lines(report, result))])


def lines_of_cause(cause: Cause) -> list[tuple[str, str]]:
    """The details of a cause; its sentence comes before them."""
    named = ", ".join(str(check) for check in cause.explains[:NAMED])
    more = len(cause.explains) - NAMED
    explained = f"{counted(len(cause.explains), 'check')}: {named}{f' and {more} more' if more > 0 else ''}"
    explained = explained if cause.explains else "found by experiment; no case of a law shows it"
    told = [("explains", explained), ("case", f"{cause.case} ({cause.dtype})")]
    if cause.problem:
        told.append(("problem", cause.problem))
    if cause.arrays:
        told.append(("arrays", array_line(cause.arrays)))
    told += [("pattern", f"{name} {said}") for name, said in cause.patterns.items()]
    return told + _script(cause)


DELIBERATE = ("AssertionError", "ValueError", "TypeError", "RuntimeError")
"""Exceptions by which a function may mean that it does not serve a call."""

_RAISED = re.compile(r"raised (?P<name>\w+)(?:: (?P<text>.*?))?(?: \((?P<place>[^()]+:\d+)\))?")


def how_to_refuse(report: TargetReport) -> str:
    """The sentence by which a target learns to refuse calls in which it raised; empty if no exception may mean that."""
    for found in (each for result in report.failures for each in result.counterexamples):
        raised = _RAISED.fullmatch(found.problem)
        if found.kind.nature != "exception" or found.where not in DELIBERATE or raised is None:
            continue
        error = f"{found.where} at {raised['place']}" if raised["place"] else found.where
        line = f"raise NotImplementedError({json.dumps(raised['text'] or 'not supported', ensure_ascii=False)})"
        return (
            f"if {report.target} is not meant to serve such calls, let it refuse them, in place of the {error}, "
            f"with: {line}. Refused calls count as not served, not as wrong"
        )
    return ""


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


SIGNS = {"right": "✓", "wrong": "✗", "not served": "refused", "not tried": "·"}


def shown_cell(value: str, gradient: str) -> str:
    """A cell in a few characters: one sign if value and gradient agree, else both."""
    if not gradient or gradient == value:
        return SIGNS[value]
    return f"value {SIGNS[value]} gradient {SIGNS[gradient]}"
