"""The failures, law by law: the smallest case, the first bad element, the command and the script to reproduce it."""

from markupsafe import Markup, escape

from conformance.known_failures import KnownOutcome
from conformance.laws import Law
from conformance.outcome import LawResult
from conformance.report.failure import lines
from conformance.report.html._columns import Column, operations
from conformance.report.html._formatting import apart

_ELSEWHERE = ("law", "known", "again", "script")


Failure = tuple[Column, Law, list[tuple[LawResult, str]]]
"""A target, a law, and its results there with their statuses: one for each dtype in which it broke."""


def failures(targets: list[Column], statuses: tuple[str, ...]) -> list[Failure]:
    """Every law with a result of one of these statuses, ordered by target and then by operation."""
    found = []
    for target in targets:
        for law in (law for laws in operations([target]).values() for law in laws):
            broken = [(result, status) for result, status in target.of(law.id) if status in statuses]
            found += [(target, law, broken)] if broken else []
    return found


def note(outcome: KnownOutcome) -> tuple[str, str, str]:
    """Of a known failure, whether its stored case still fails, why it is known, and where that is discussed."""
    text = f"{outcome.reason} (in {outcome.cause}: {outcome.case})"
    # Anything but a web address stays text: links on the page must not do anything but lead elsewhere.
    link = outcome.link if outcome.link.startswith(("https://", "http://")) else ""
    text += f" {outcome.link}" if outcome.link and not link else ""
    return "known" if outcome.fails else "holds now", text, link


def headline(result: LawResult) -> Markup:
    """The failure in one line."""
    found = result.counterexample
    if found is None or found.got is None:
        return escape(result.reason or (found.problem if found is not None else ""))
    at = f"{found.where}{list(found.index)}" if found.index is not None else found.where
    return Markup("{} is {}, expected {}").format(at, *apart(found.got, found.expected))


def facts(target: Column, result: LawResult) -> list[tuple[str, str]]:
    """The terminal's text on the failure, without the parts that the page shows elsewhere."""
    told = [(word, said) for word, said in lines(target.report, result) if word not in _ELSEWHERE]
    told.append(("examples", str(result.examples)))
    found = result.counterexample
    if found is not None and not found.script and found.script_note:
        told.append(("script", found.script_note))
    return told
