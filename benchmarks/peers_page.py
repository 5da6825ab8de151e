"""Writes ``docs/peers.md`` from the results of `benchmarks.judged_peers`."""

from pathlib import Path
from typing import Any

CAUSES = 5
"""Maximum number of causes that are shown for one implementation."""

INTRODUCTION = """\
# Public implementations, judged

What the conformance suite says of public implementations of the mLSTM and the GRU. For who chooses one, who maintains
one, and who wants to see what the suite finds in code that was not written for it.

Each implementation is called through an [adapter](../benchmarks/peers) that gives it gatespec's names and refuses what
it does not serve; the same adapters are timed by `python -m benchmarks run`. `make peers` installs the versions of
[`constraints/peers.txt`](../constraints/peers.txt), judges them all and writes this page and
[`benchmarks/results/peers.json`](../benchmarks/results/peers.json), from which it is drawn. A law is *held*, *broken*
or *not served*, where the implementation does not serve a single one of its cases. What is said about a fault has been
confirmed by a script that does not use gatespec; [below](#confirmed-without-gatespec) is what each printed.
"""


def draw(document: dict[str, Any]) -> str:
    """The Markdown page of a document."""
    machine, peers = document["machine"], document["peers"]
    parts = [
        INTRODUCTION,
        _when(document["date"], machine),
        "## Overview\n",
        _overview(peers),
        "## One by one\n",
        *(_one(peer, document["confirmations"]) for peer in peers),
        "## Confirmed without gatespec\n",
        *(_confirmation(name, found) for name, found in document["confirmations"].items()),
    ]
    return "\n".join(parts).rstrip("\n") + "\n"


def _when(date: str, machine: dict[str, Any]) -> str:
    where = f"a CPU ({machine['device']}, {machine['cores']} cores), Python {machine['python']}"
    return f"Judged on {date} on {where}. Triton's kernels ran under its interpreter, not compiled.\n"


def write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(draw(document), encoding="utf-8")


def _overview(peers: list[dict[str, Any]]) -> str:
    lines = [
        "| implementation | version | held | broken | not served | where it is right | minutes |",
        "|---" * 7 + "|",
    ]
    for peer in peers:
        name = f"[{peer['name']}](#{_anchor(peer['name'])})"
        if "error" in peer:
            words = ["", "", "", _plain(peer["error"].strip().splitlines()[-1] if peer["error"].strip() else "")]
        else:
            laws = peer["laws"]
            words = [str(len(laws["held"].keys() - laws["broken"].keys())), str(len(laws["broken"]))]
            words += [str(len(laws["not served"].keys() - laws["held"].keys() - laws["broken"].keys())), _right(peer)]
        lines.append(f"| {name} | {peer['version']} | {' | '.join(words)} | {peer['minutes']:.1f} |")
    return "\n".join(lines) + "\n"


def _right(peer: dict[str, Any]) -> str:
    return _plain(" ".join(envelope["summary"] for envelope in peer["envelope"].values()))


def _one(peer: dict[str, Any], confirmations: dict[str, Any]) -> str:
    lines = [f"### {peer['name']}", "", f"{_sentence(peer)}"]
    if "error" in peer:
        return "\n".join([*lines, "", "```", peer["error"].strip(), "```", ""])
    for number, cause in enumerate(peer["causes"][:CAUSES], 1):
        lines += ["", f"{number}. **{_plain(cause['sentence']).rstrip('.')}.** {_cause(cause)}"]
    if peer["causes"][CAUSES:]:
        lines += ["", f"And {len(peer['causes']) - CAUSES} more causes, in the data."]
    scripts = [f"[`{name}.py`](#{_anchor(name)}) ({confirmations[name]['verdict']})" for name in peer["confirmed"]]
    if scripts:
        lines += ["", f"Confirmed by {', '.join(scripts)}."]
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
        lines += ["", *_envelope(op, envelope)]
    return "\n".join(lines) + "\n"


def _sentence(peer: dict[str, Any]) -> str:
    how = "Triton, interpreted" if peer["interpreted"] else {"jax": "JAX", "torch": "PyTorch"}.get(peer["framework"])
    words = [f"`{peer['package']}` {peer['version']}", *([how] if how else []), f"judged as `{peer['op']}`"]
    note = peer["note"]
    return ", ".join(words) + (f"; {note}." if note else ".")


def _dtypes(peer: dict[str, Any], dtypes: Any) -> str:
    """The dtypes, unless they are all that were tried with the peer."""
    everything = {d for status in ("held", "broken") for each in peer["laws"][status].values() for d in each}
    return "" if set(dtypes) == everything else f" ({', '.join(dtypes)})"


def _cause(cause: dict[str, Any]) -> str:
    explains = [each["id"].partition(".")[2] for each in cause["explains"]]
    laws = ", ".join(f"`{law}`" for law in dict.fromkeys(explains))
    words = [f"Explains {len(explains)} broken checks, of {laws}."] if explains else []
    if cause.get("case"):
        words.append(f"Smallest case: {_plain(cause['case'])}, {cause['dtype']}.")
    return " ".join(words)


def _envelope(op: str, envelope: dict[str, Any]) -> list[str]:
    rows = envelope["features"]
    dtypes = list(dict.fromkeys(dtype for row in rows for dtype in row["cells"]))
    lines = [f"| `{op}` | {' | '.join(dtypes)} |", "|---" * (1 + len(dtypes)) + "|"]
    for row in rows:
        cells = [_cell(row["cells"][dtype]) if dtype in row["cells"] else "" for dtype in dtypes]
        lines.append(f"| {row['feature']} | {' | '.join(cells)} |")
    return lines


def _cell(cell: dict[str, Any]) -> str:
    value, gradient = cell["value"], cell["gradient"]
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
