"""One peer's section of ``docs/peers-details.md``: what was tried, what was confirmed, and a table of calls."""

import re
from collections.abc import Iterable
from typing import Any

from benchmarks.judged.findings import DTYPES, and_list, by_script, unconfirmed, unsure_cells, wrong_calls

SCRIPTS_PAGE = "peers-scripts.md"
DETAILS_PAGE = "peers-details.md"

ABOUT_THE_PEER = re.compile(r"^\w+ (refuses this call: (it refuses: )?|takes )")
"""The beginning of a reason that is the implementation's own, and not the framework's or this machine's."""


def section(peer: dict[str, Any], confirmations: dict[str, Any]) -> str:
    """The section of one peer, Markdown."""
    parts = [f"## {peer['name']}", _sentence(peer)]
    if "error" in peer:
        return "\n\n".join([*parts, f"```\n{peer['error'].strip()}\n```"]) + "\n"
    parts.append(_trial(peer))
    faults = [_fault(peer, name, checks, confirmations) for name, checks in by_script(peer, confirmations).items()]
    parts += ["\n".join(faults)] if faults else []
    open_laws = unconfirmed(peer, confirmations)
    if open_laws:
        parts.append(f"Broken, and not confirmed without gatespec: {_listed(open_laws)}.")
    for status, said in (("held", "Held"), ("contract", "Differs from gatespec's own contract")):
        if peer["laws"][status]:
            parts.append(f"{said} {_by_dtypes(peer['laws'][status])}.")
    parts += _not_served(peer)
    for op, envelope in peer["envelope"].items():
        parts.append("\n".join(_envelope(op, envelope, unsure_cells(peer, op, confirmations))))
    return "\n\n".join(parts) + "\n"


def _fault(peer: dict[str, Any], script: str, checks: list[tuple[str, str]], confirmations: dict[str, Any]) -> str:
    """A fault in one line, with its script and the checks that it breaks or the calls that show it."""
    said = confirmations[script]["short"]
    seen = _checks(peer, checks) if checks else _seen(wrong_calls(peer, confirmations).get(script, []))
    return f"- **{_as_a_sentence(said)}** ([script]({SCRIPTS_PAGE}#{anchor(script)})). {seen}"


def _as_a_sentence(clause: str) -> str:
    """The clause with a capital, unless its first word is a letter of the specification: N is not n."""
    return clause if re.match(r"(?!a\b)\w\b", clause) else clause[0].upper() + clause[1:]


def _sentence(peer: dict[str, Any]) -> str:
    about = peer["about"][0].upper() + peer["about"][1:]
    words = [f"{about}: `{peer['package']}` {peer['version']}, judged as `{peer['op']}`"]
    words += ["under Triton's interpreter"] if peer["interpreted"] else []
    return ", ".join(words) + (f"; {peer['note']}." if peer["note"] else ".")


def _trial(peer: dict[str, Any]) -> str:
    """The cases that were tried, when, and for how long."""
    said = [f"Judged {_effort(peer)}."]
    if peer["interrupted"]:
        said.append("That was the time limit: what was not reached is missing.")
    if peer["only"]:
        said.append(f"Only {_laws(peer['only'])} were tried.")
    again: dict[str, list[str]] = {}
    for law, how in peer.get("again", {}).items():
        again.setdefault(_effort(how), []).append(law)
    said += [f"Tried by themselves {how}: {_laws(laws)}." for how, laws in again.items()]
    return " ".join(said)


def _effort(how: dict[str, Any]) -> str:
    settings = how["settings"]
    cases = f"{settings['examples']} case{'' if settings['examples'] == 1 else 's'}"
    return (
        f"on {how['date']} with {cases} of each law in each dtype, of at most "
        f"{settings['max_steps']} steps, in {how['minutes']:.1f} minutes"
    )


def _not_served(peer: dict[str, Any]) -> list[str]:
    """The laws none of whose cases could be tried: a line for the peer's own reasons, and one for all others."""
    tried = {**peer["laws"]["held"], **peer["laws"]["broken"]}
    own: dict[str, list[str]] = {}
    others = []
    for law, by_dtype in peer["laws"]["not served"].items():
        reason = next(iter(by_dtype.values()))
        if law in tried:
            continue
        if ABOUT_THE_PEER.match(reason):
            own.setdefault(plain(ABOUT_THE_PEER.sub(_without_the_beginning, reason)), []).append(law)
        else:
            others.append(law)
    reasons = [f"{_laws(laws)} ({reason.rstrip('.')})" for reason, laws in own.items()]
    lines = [f"Not served: {'; '.join(reasons)}."] if reasons else []
    if others:
        lines.append(
            f"Not tried (this machine, the framework, the adapter or the time did not allow it): {_laws(others)}."
        )
    return lines


def _without_the_beginning(found: re.Match[str]) -> str:
    return "it takes " if found.group(1).startswith("takes") else ""


def _laws(laws: Iterable[str]) -> str:
    return ", ".join(f"`{law}`" for law in laws)


def _by_dtypes(laws: dict[str, Any]) -> str:
    """The laws, by the dtypes for which something is said of them; most dtypes first."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for law, dtypes in laws.items():
        groups.setdefault(tuple(dtype for dtype in DTYPES if dtype in dtypes), []).append(law)
    ordered = sorted(groups.items(), key=lambda each: -len(each[0]))
    return "; ".join(f"in {and_list(dtypes)}: {_laws(of)}" for dtypes, of in ordered)


def _listed(laws: dict[str, list[str]]) -> str:
    return ", ".join(f"`{law}` ({', '.join(dtypes)})" for law, dtypes in laws.items())


def statement(confirmation: dict[str, Any]) -> str:
    """The fault that a script shows, as a sentence."""
    return plain(confirmation["states"]).rstrip(".") + "."


def _checks(peer: dict[str, Any], checks: list[tuple[str, str]]) -> str:
    """The checks in which the suite saw one fault, and the sizes of the smallest case that shows nothing else."""
    words = [f"Breaks {_listed(_by_first(checks))}."]
    for cause in peer["causes"]:
        explained = {(each["id"].partition(".")[2], each["dtype"]) for each in cause["explains"]}
        if explained and explained <= set(checks) and cause["case"]:
            sizes = ", ".join(re.findall(r"\b[A-Z]=\d+", cause["case"]))
            words.append(f"Smallest case seen: {sizes}, in {cause['dtype']}.")
            break
    return " ".join(words)


def _seen(calls: list[tuple[str, str]]) -> str:
    if not calls:
        return "No case of the suite showed it by itself."
    return f"Seen in calls of these kinds: {_kinds(calls)}."


def _by_first(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for first, second in pairs:
        found.setdefault(first, []).append(second)
    return found


def _kinds(calls: list[tuple[str, str]]) -> str:
    return "; ".join(f"{feature} ({', '.join(dtypes)})" for feature, dtypes in _by_first(calls).items())


def _envelope(op: str, envelope: dict[str, Any], unsure: dict[str, set[tuple[str, str]]]) -> list[str]:
    """The table of calls × dtype; kinds of calls with the same results share a row."""
    rows = envelope["features"]
    dtypes = list(dict.fromkeys(dtype for row in rows for dtype in row["cells"]))
    together: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        of_row = unsure.get(row["feature"], set())
        cells = tuple(_cell(row["cells"], dtype, of_row) if dtype in row["cells"] else "" for dtype in dtypes)
        together.setdefault(cells, []).append(row["feature"])
    lines = [f"| `{op}` | {' | '.join(dtypes)} |", "|---" * (1 + len(dtypes)) + "|"]
    return lines + [f"| {'; '.join(features)} | {' | '.join(cells)} |" for cells, features in together.items()]


def _cell(cells: dict[str, Any], dtype: str, unsure: set[tuple[str, str]]) -> str:
    """The verdict in one dtype; a part that is wrong is in brackets if that is not confirmed."""
    found = {part: cells[dtype][part] for part in ("value", "gradient") if cells[dtype][part]}
    if len(set(found.values())) == 1:
        (said,) = set(found.values())
        sure = {(dtype, part) in unsure for part in found}
        if len(sure) == 1:
            return f"({said})" if True in sure else said
    wrong = [
        f"({part} wrong)" if (dtype, part) in unsure else f"{part} wrong" for part in found if found[part] == "wrong"
    ]
    return ", ".join(wrong) or ", ".join(f"{part} {verdict}" for part, verdict in found.items())


def plain(text: str) -> str:
    """The text on one line, for a table's cell."""
    return " ".join(text.split()).replace("|", "\\|")


def anchor(title: str) -> str:
    """The anchor that GitHub and MkDocs make from a heading."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in "-_ ")
    return kept.replace(" ", "-")
