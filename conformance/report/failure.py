"""A failure in at most fifteen lines: the law, the smallest case, the first bad element, how to reproduce it."""

import math
from collections.abc import Mapping

from conformance.judge.outcome import LawResult
from conformance.report import TargetReport

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
    told += [("known", outcome.said) for outcome in result.expected_failures]
    told.append(("again", report.reproduce(result)))
    if found is not None and (found.script or found.script_note):
        told.append(("script", ", ".join(filter(None, (found.script, found.script_note)))))
    return told


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
