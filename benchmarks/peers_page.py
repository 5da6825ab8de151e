"""Writes ``docs/peers.md`` from the results of `benchmarks.judged_peers`."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.peers_findings import NARROW, WIDE, by_script, take_away, unconfirmed

INTRODUCTION = """\
# Public implementations, judged

This page shows for which calls public implementations of the mLSTM and the GRU compute what
[the specification](spec.md) defines, and what they compute otherwise. It is for anyone who chooses or maintains one of
them, and for anyone who wants to see what [the conformance suite](conformance.md) finds in code that was not written
for it.

To choose an implementation, read its row in the [overview](#overview) and in the tables of
[calls](#where-they-are-right). To mend one, read its [section](#one-by-one), and run the
[scripts](#confirmed-without-gatespec) that show its faults: they need the implementation alone.

Each implementation is called through an [adapter](../benchmarks/peers/registry.py) that gives it gatespec's names and
refuses what it does not support; `python -m benchmarks run` times the same adapters. `make peers` installs the versions
of [`constraints/peers.txt`](../constraints/peers.txt), judges all of them, and writes
[`benchmarks/results/peers.json`](../benchmarks/results/peers.json) and, from it, this page.

The suite tries *laws*: `value` and `gradient` compare results with the definition, `finite` asks for results without
NaN at extreme gates, `vmap` for the same results under a transformation, and so on (`python -m conformance laws` lists
them). A law is *held*, *broken*, or *not served* if the implementation supports none of its cases. A broken law says
that a result differs from gatespec's definition by more than the suite's tolerance. That is a fault if the
implementation means to compute the same function. It may be a decision if it rounds to 16 bits on purpose or does not
offer a transformation. Each cause that is stated here has been confirmed by a script that does not use gatespec. Where
there is no such script, the page says *not confirmed* and states no cause: there the suite itself may be wrong.

Letters are those of [the specification](spec.md#words): S steps, N heads, head dims K and V (mLSTM) or H (GRU), gates i
and f, and the state (C, n, m). The mLSTM divides by a normaliser, the larger of |n·q̂| and its floor exp(−m).
"""

MATRIX = {
    "mlstm": (
        ("plain call", "plain"),
        ("initial state", "initial state"),
        ("final state", "final state"),
        ("state cotangents", "gradient of the final state"),
        ("forget gates of -inf", "f = −∞"),
        ("forget gates of -1e30", "f = −1e30"),
        ("large forget gates", "large f"),
        ("normaliser above its floor", "above the floor"),
        ("S not a multiple of the chunk", "any S"),
        ("packed", "packed"),
    ),
    "mlstm_step": (
        ("plain call", "plain"),
        ("forget gates of -inf", "f = −∞"),
        ("forget gates of -1e30", "f = −1e30"),
        ("input gates of -inf", "i = −∞"),
        ("large forget gates", "large f"),
        ("normaliser above its floor", "above the floor"),
    ),
    "gru": (
        ("plain call", "plain"),
        ("initial state", "initial state"),
        ("state cotangents", "gradient of the final state"),
        ("infinite gates", "f = ±∞"),
        ("S above 64", "S > 64"),
        ("grouped heads", "grouped heads"),
        ("clipping", "clipping"),
        ("packed", "packed"),
    ),
}
"""Features of an envelope that the table of all implementations shows, each with the head of its column."""

OVERVIEW = """\
A sentence says *right in* a dtype if values and gradients were right in all cases of the laws `value` and `gradient` in
that dtype; it then lists what scripts have confirmed, worst first. The numbers count laws. *Not confirmed* are those of
the broken laws that no script has confirmed.
"""

LEGEND = """\
Each cell is for float32, or for another dtype if float32 was not tried; the last column is for plain calls in 16
bits. ✓ right, ✗ wrong, ∂ right value and wrong gradient, – not served, blank not tried. Results in brackets are not
confirmed without gatespec, here and in the tables of each section: they come from experiments with one call or a few
each, and there the suite itself may be wrong.
"""
UNCONFIRMED = "not confirmed without gatespec"


def draw(document: dict[str, Any]) -> str:
    """The page of a document, Markdown."""
    peers, confirmations = document["peers"], document["confirmations"]
    parts = [
        INTRODUCTION,
        _when(document),
        "## Overview\n",
        OVERVIEW,
        _overview(peers, confirmations),
        *_missing(document["not judged"]),
        "## Where they are right\n",
        LEGEND,
        *(_matrix(op, peers, confirmations) for op in MATRIX),
        *_columns(peers),
        "## One by one\n",
        *(_one(peer, confirmations) for peer in peers),
        "## Confirmed without gatespec\n",
        *(_confirmation(name, found) for name, found in confirmations.items()),
    ]
    return "\n".join(parts).rstrip("\n") + "\n"


def _when(document: dict[str, Any]) -> str:
    machine, peers = document["machine"], document["peers"]
    dates = sorted({peer["date"] for peer in peers})
    settings = [peer["settings"] for peer in peers if "settings" in peer]
    examples = _range(each["examples"] for each in settings)
    steps = _range(each["max_steps"] for each in settings)
    where = f"a CPU ({machine['device']}, {machine['cores']} cores), Python {machine['python']}"
    return (
        f"Judged on {' and '.join(dates)} on {where}, with {examples} cases of each law in each dtype, of sequences "
        f"of at most {steps} steps. Longer sequences, rarer combinations and all that needs a GPU (streams, graphs, "
        "compiled Triton kernels) are left out: what is held here may still break there. Triton's kernels ran under "
        "its interpreter. Minutes are of one process on a machine that did other work as well.\n"
    )


def _range(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    return f"{found[0]}" if len(found) == 1 else f"{found[0]} to {found[-1]}" if found else "no"


def write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(draw(document), encoding="utf-8")


def _missing(names: list[str]) -> list[str]:
    return [f"Not judged yet: {', '.join(names)}.\n"] if names else []


def _overview(peers: list[dict[str, Any]], confirmations: dict[str, Any]) -> str:
    lines = [
        "| implementation | what it is | what to take away | held | broken | not confirmed | not served | minutes |",
        "|---" * 8 + "|",
    ]
    for peer in peers:
        words = [
            f"[{peer['name']}](#{_anchor(peer['name'])})",
            f"{peer['about']}; `{peer['package']}` {peer['version']}",
        ]
        if "error" in peer:
            words += [_plain(peer["error"].strip().splitlines()[-1] if peer["error"].strip() else ""), "", "", "", ""]
        else:
            laws, open_laws = peer["laws"], unconfirmed(peer, confirmations)
            words += [take_away(peer, confirmations), str(len(laws["held"].keys() - laws["broken"].keys()))]
            words += [str(len(laws["broken"])), str(len(open_laws)) if laws["broken"] else ""]
            words += [str(len(laws["not served"].keys() - laws["held"].keys() - laws["broken"].keys()))]
        lines.append(f"| {' | '.join(words)} | {peer['minutes']:.1f} |")
    return "\n".join(lines) + "\n"


def _matrix(op: str, peers: list[dict[str, Any]], confirmations: dict[str, Any]) -> str:
    rows = [(peer, peer["envelope"][op]["features"]) for peer in peers if peer.get("envelope", {}).get(op)]
    seen = {row["feature"] for _, features in rows for row in features}
    columns = [(feature, head) for feature, head in MATRIX[op] if feature in seen]
    if not columns:
        return ""
    lines = [f"| `{op}` | {' | '.join(head for _, head in columns)} | 16 bits |", "|---" * (2 + len(columns)) + "|"]
    for peer, features in rows:
        cells = {row["feature"]: row["cells"] for row in features}
        unsure = _unsure(peer, op, confirmations)
        marks = [_mark(cells.get(feature, {}), (*WIDE, *NARROW), unsure.get(feature, set())) for feature, _ in columns]
        marks.append(_mark(cells.get("plain call", {}), NARROW, unsure.get("plain call", set())))
        lines.append(f"| [{peer['name']}](#{_anchor(peer['name'])}) | {' | '.join(marks)} |")
    return "\n".join(lines) + "\n"


def _columns(peers: list[dict[str, Any]]) -> list[str]:
    """The meaning of each column of the tables of calls, in the words of the suite."""
    sentences: dict[str, str] = {}
    for peer in peers:
        for op, envelope in peer.get("envelope", {}).items():
            said = {row["feature"]: row["sentence"] for row in envelope["features"]}
            for feature, head in MATRIX.get(op, ()):
                if feature in said:
                    sentences.setdefault(head, said[feature])
    return ["The columns:\n", "\n".join(f"- *{head}*: {said}." for head, said in sentences.items()) + "\n"]


def _unsure(peer: dict[str, Any], op: str, confirmations: dict[str, Any]) -> dict[str, set[tuple[str, str]]]:
    """By feature, the dtypes and parts that an experiment found wrong and no script has confirmed."""
    return {
        feature: {
            (dtype, part)
            for dtype, parts in dtypes.items()
            for part, script in parts.items()
            if script is None or confirmations.get(script, {}).get("verdict") != "confirmed"
        }
        for feature, dtypes in peer["confirmed cells"][op].items()
    }


def _mark(cells: dict[str, Any], dtypes: Iterable[str], unsure: set[tuple[str, str]]) -> str:
    """The mark of the first of ``dtypes`` in which a feature was tried; in brackets if its failure is not confirmed."""
    for dtype in dtypes:
        cell = cells.get(dtype, {"value": "not tried", "gradient": "not tried"})
        if cell["value"] in ("right", "wrong", "not served"):
            break
    else:
        return ""
    if cell["value"] == "not served":
        return "–"
    part = next((part for part in ("value", "gradient") if cell[part] == "wrong"), None)
    mark = {"value": "✗", "gradient": "∂", None: "✓"}[part]
    return f"({mark})" if (dtype, part) in unsure else mark


def _one(peer: dict[str, Any], confirmations: dict[str, Any]) -> str:
    lines = [f"### {peer['name']}", "", f"{_sentence(peer)}"]
    if "error" in peer:
        return "\n".join([*lines, "", "```", peer["error"].strip(), "```", ""])
    lines += ["", f"**{take_away(peer, confirmations)}**", "", f"Judged on {_effort(peer)}."]
    if peer["only"]:
        lines[-1] += f" Only {', '.join(f'`{law}`' for law in peer['only'])} were tried."
    again: dict[str, list[str]] = {}
    for law, how in peer.get("again", {}).items():
        again.setdefault(_effort(how), []).append(f"`{law}`")
    for how, laws in again.items():
        lines += ["", f"Tried again, by themselves: {', '.join(laws)}, on {how}."]
    if peer["interrupted"]:
        lines += ["", f"It was interrupted after {peer['minutes']:.0f} minutes; what it had not reached is missing."]
    for number, (name, checks) in enumerate(by_script(peer, confirmations).items(), 1):
        link = f"[`{name}.py`](#{_anchor(name)})"
        lines += ["", f"{number}. **{_statement(confirmations[name])}** Confirmed by {link}. {_checks(peer, checks)}"]
    open_laws = unconfirmed(peer, confirmations)
    if open_laws:
        lines += ["", f"Broken, and {UNCONFIRMED}: {_listed(open_laws)}."]
    for status, said in (("held", "Held"), ("broken", "Broken"), ("contract", "Differs from gatespec's own contract")):
        laws = peer["laws"][status]
        if laws:
            lines += ["", f"{said}: {', '.join(f'`{law}`' + _dtypes(peer, dtypes) for law, dtypes in laws.items())}."]
    tried = {**peer["laws"]["held"], **peer["laws"]["broken"]}
    reasons: dict[str, list[str]] = {}
    for law, by_dtype in peer["laws"]["not served"].items():
        if law not in tried:
            reasons.setdefault(next(iter(by_dtype.values())), []).append(law)
    for reason, laws in reasons.items():
        lines += ["", f"Not served: {', '.join(f'`{law}`' for law in laws)} ({_plain(reason)})."]
    for op, envelope in peer["envelope"].items():
        lines += ["", *_envelope(op, envelope, _unsure(peer, op, confirmations))]
    return "\n".join(lines) + "\n"


def _effort(how: dict[str, Any]) -> str:
    settings = how["settings"]
    examples, steps = settings["examples"], settings["max_steps"]
    return f"{how['date']} with {examples} cases of each law in each dtype, of sequences of at most {steps} steps"


def _sentence(peer: dict[str, Any]) -> str:
    about = peer["about"][0].upper() + peer["about"][1:]
    words = [f"{about}: `{peer['package']}` {peer['version']}, judged as `{peer['op']}`"]
    words += ["under Triton's interpreter"] if peer["interpreted"] else []
    note = peer["note"]
    if peer["promises"]:
        words.append(f"where {' and '.join(f'`{promise}`' for promise in peer['promises'])}")
    return ", ".join(words) + (f"; {note}." if note else ".")


def _dtypes(peer: dict[str, Any], dtypes: Any) -> str:
    """The dtypes, unless they are all that were tried with the peer."""
    everything = {d for status in ("held", "broken") for each in peer["laws"][status].values() for d in each}
    return "" if set(dtypes) == everything else f" ({', '.join(dtypes)})"


def _listed(laws: dict[str, list[str]]) -> str:
    return ", ".join(f"`{law}` ({', '.join(dtypes)})" for law, dtypes in laws.items())


def _statement(confirmation: dict[str, Any]) -> str:
    return _plain(confirmation["states"]).rstrip(".") + "."


def _checks(peer: dict[str, Any], checks: list[tuple[str, str]]) -> str:
    """The checks in which the suite saw one fault, and the sizes of the smallest case that shows nothing else."""
    laws: dict[str, list[str]] = {}
    for law, dtype in checks:
        laws.setdefault(law, []).append(dtype)
    words = [f"It breaks {_listed(laws)}."]
    for cause in peer["causes"]:
        explained = {(each["id"].partition(".")[2], each["dtype"]) for each in cause["explains"]}
        if explained and explained <= set(checks) and cause["case"]:
            sizes = ", ".join(re.findall(r"\b[A-Z]=\d+", cause["case"]))
            words.append(f"The smallest case seen has {sizes}, in {cause['dtype']}.")
            break
    return " ".join(words)


def _envelope(op: str, envelope: dict[str, Any], unsure: dict[str, set[tuple[str, str]]]) -> list[str]:
    rows = envelope["features"]
    dtypes = list(dict.fromkeys(dtype for row in rows for dtype in row["cells"]))
    lines = [f"| `{op}` | {' | '.join(dtypes)} |", "|---" * (1 + len(dtypes)) + "|"]
    for row in rows:
        of_row = unsure.get(row["feature"], set())
        cells = [_cell(row["cells"], dtype, of_row) if dtype in row["cells"] else "" for dtype in dtypes]
        lines.append(f"| {row['feature']} | {' | '.join(cells)} |")
    return lines


def _cell(cells: dict[str, Any], dtype: str, unsure: set[tuple[str, str]]) -> str:
    """The verdict in one dtype, in brackets if it is not confirmed."""
    value, gradient = (
        f"({cells[dtype][part]})" if (dtype, part) in unsure else cells[dtype][part] for part in ("value", "gradient")
    )
    if not gradient or value == gradient:
        return value
    return f"value {value}, gradient {gradient}"


def _confirmation(name: str, found: dict[str, Any]) -> str:
    link = f"[`{found['script']}`](../{found['script']})"
    lines = [f"### {name}", "", f"{_plain(found['states'])} {link}, {found['verdict']}.", "", "```"]
    return "\n".join([*lines, found["output"], "```", ""])


def _plain(text: str) -> str:
    """The text on one line, for a table's cell."""
    return " ".join(text.split()).replace("|", "\\|")


def _anchor(title: str) -> str:
    """The anchor that GitHub and MkDocs make from a heading."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in "-_ ")
    return kept.replace(" ", "-")
