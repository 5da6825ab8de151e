"""Writes ``docs/peers.md``, ``peers-details.md`` and ``peers-scripts.md`` from what `judged_peers` found."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.judged.findings import NARROW, VALUES, WIDE, recurring, take_away, unconfirmed, unsure_cells
from benchmarks.judged.section import DETAILS_PAGE, SCRIPTS_PAGE, anchor, plain, section, statement
from benchmarks.peers.faults import Calls

INTRODUCTION = """\
# Public implementations, judged

This page shows for which calls public implementations of the mLSTM, the sLSTM, the GRU, linear attention and the delta
rule compute what [the specification](spec.md) defines, and what else they compute. It is for anyone who chooses or
maintains one of them. Every fault that it states has been shown by a [script](peers-scripts.md) that needs the
implementation alone. What was tried on each implementation, law by law, is on a [page of its own](peers-details.md).
"""

DETAILS_INTRODUCTION = """\
# Public implementations: what was tried

This page lists, for each implementation that [the suite judged](peers.md), the laws that it holds, breaks or does not
serve, the faults that scripts have confirmed, and the kinds of calls for which it is right. It is for anyone who wants
to know how far a line of that page reaches. [How to read it](peers.md#how-to-read-this-page) is explained there.
"""

FOUND = """\
Letters are those of [the specification](spec.md#words): gates i and f, output h, and the state (C, n, m), whose m is
the stabiliser. The mLSTM divides by a normaliser, the larger of |n·q̂| and its floor exp(−m). Linear attention has a log
decay g, and output o.
"""

AFTER_FOUND = """\
Rounding to 16 bits, or not supporting a transformation, may be a decision of the authors. The [overview](#overview) has
a line about each implementation, the tables of [calls](#where-they-are-right) show for which calls each is right, and
its [section](peers-details.md) lists all that was tried. The GRUs of PyTorch, flashrnn and Flax always apply the reset
gate after the product with the state. The law `reset_after` judges them at any H, and the other laws of `gru` at H = 1,
where both forms are the same function.
"""

HOW_TO_READ = """\
[The conformance suite](conformance.md) tries *laws*: `value` and `gradient` compare results with the definition,
`finite` asks for results without NaN at extreme gates, `vmap` for the same results under a transformation, and so on
(`gatespec laws` lists them). A law is *held*, *broken*, or *not served* if the implementation supports
none of its cases. Broken means that a result differs from gatespec's definition by more than the suite's tolerance,
which is a fault if the implementation means to compute the same function. Where no script has shown why a law breaks,
the page says *not confirmed* and states no cause: the suite itself may be wrong there. What gatespec alone
prescribes, as the cap of the floor exp(−m) at m = 64, counts neither as held nor as broken. Some implementations take
only some calls: their adapters refuse all others, which are *not served*, and the tables of calls show which.

S is the number of steps, N that of heads; head dims are K and V (mLSTM, linear attention) or H (GRU). *16 bits* are
bfloat16 and float16.
"""

AGAIN = """\
Each implementation is called through an [adapter](../benchmarks/peers/registry.py) that gives it gatespec's names and
refuses what it does not support; `python -m benchmarks run` times the same adapters. `make peers` installs the versions
of [`constraints/peers.txt`](../constraints/peers.txt), judges all of them, and writes
[`benchmarks/results/peers.json`](../benchmarks/results/peers.json) and, from it, this page.
"""

SCRIPTS_INTRODUCTION = """\
# Public implementations: the scripts

This page lists the scripts that show, without gatespec, what [public implementations](peers.md) compute otherwise than
[the specification](spec.md) defines. It is for anyone who wants to check such a statement or to report it. Each script
needs the implementation alone, compares it with itself, with a difference quotient of its own forward pass, or with the
formula written out, and prints its verdict: `python benchmarks/peers/confirm/NAME.py`. Below each is its output with
the versions of [`constraints/peers.txt`](../constraints/peers.txt).
"""

FRAMEWORKS = {"torch": "PyTorch", "jax": "JAX", "numpy": "NumPy"}

DTYPE = "float32"
"""The dtype for which implementations are told apart: all of them take it."""

LINEAR_ATTENTION = (
    ("plain call", "plain"),
    ("initial state", "initial state"),
    ("state cotangents", "gradient of the final state"),
    ("infinite gates", "g = −∞"),
    ("large gates", "large g"),
    ("S above 64", "S > 64"),
    ("grouped heads", "grouped heads"),
    ("packed", "packed"),
)
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
    "slstm": (
        ("plain call", "plain"),
        ("initial state", "initial state"),
        ("state cotangents", "gradient of the final state"),
        ("infinite gates", "i, f = ±∞"),
        ("S above 64", "S > 64"),
        ("clipping", "clipping"),
        ("packed", "packed"),
    ),
    **dict.fromkeys(("simple_gla", "gla", "gated_delta_rule", "kimi_delta_attention"), LINEAR_ATTENTION),
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
that dtype, and in a plain call; it then lists what scripts have shown, as in the table above. The numbers count laws.
"""

LEGEND = """\
Each cell is for float32, or for float64 if float32 was not tried; the last column is for plain calls in 16 bits.
✓ right, ✗ wrong, ∂ right value and wrong gradient, – not served, blank not tried. Results in brackets are not confirmed
without gatespec, here and in the tables of the details: they come from experiments with one call or a few each, and
there the suite itself may be wrong.
"""


def draw(document: dict[str, Any]) -> str:
    """The page of a document, Markdown."""
    peers, confirmations = document["peers"], document["confirmations"]
    parts = [
        INTRODUCTION,
        "## What was found\n",
        FOUND,
        summary(peers, confirmations),
        AFTER_FOUND,
        "## Overview\n",
        OVERVIEW,
        _overview(peers, confirmations),
        *_missing(document["not judged"]),
        "## How to read this page\n",
        HOW_TO_READ,
        _when(document),
        "## Where they are right\n",
        LEGEND,
        *(_matrix(op, peers, confirmations) for op in MATRIX),
        *_columns(peers),
        "## Judge them again\n",
        AGAIN,
    ]
    return "\n".join(parts).rstrip("\n") + "\n"


def draw_details(document: dict[str, Any]) -> str:
    """The page with a section for each implementation, Markdown."""
    sections = (section(peer, document["confirmations"]) for peer in document["peers"])
    return "\n".join([DETAILS_INTRODUCTION, *sections]).rstrip("\n") + "\n"


def draw_scripts(document: dict[str, Any]) -> str:
    """The page with what the scripts printed, Markdown."""
    found = document["confirmations"].items()
    return "\n".join([SCRIPTS_INTRODUCTION, *(_confirmation(*each) for each in found)]).rstrip("\n") + "\n"


def _when(document: dict[str, Any]) -> str:
    machine, peers = document["machine"], document["peers"]
    dates = sorted({peer["date"] for peer in peers})
    settings = [peer["settings"] for peer in peers if "settings" in peer]
    examples = _range(each["examples"] for each in settings)
    steps = _range(each["max_steps"] for each in settings)
    where = f"a CPU ({machine['device']}, {machine['cores']} cores), Python {machine['python']}"
    used = [f"{said} {number}" for name, said in FRAMEWORKS.items() for number in _versions(peers, name)]
    return (
        f"Judged on {' and '.join(dates)} on {', '.join([where, *used])}, with {examples} cases of each law in each "
        f"dtype, of sequences of at most {steps} steps. Longer sequences, rarer combinations and all that needs a GPU "
        "(streams, graphs, compiled Triton kernels) are left out: what is held here may still break there. Triton's "
        "kernels ran under its interpreter. Minutes are of one process on a machine that did other work as well.\n"
    )


def _versions(peers: list[dict[str, Any]], package: str) -> list[str]:
    return sorted({peer["versions"][package] for peer in peers if package in peer.get("versions", {})})


def _range(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    return f"{found[0]}" if len(found) == 1 else f"{found[0]} to {found[-1]}" if found else "no"


def write(path: Path, document: dict[str, Any]) -> None:
    """Writes the page to ``path``, and the pages of the details and of the scripts next to it."""
    path.write_text(draw(document), encoding="utf-8")
    path.with_name(DETAILS_PAGE).write_text(draw_details(document), encoding="utf-8")
    path.with_name(SCRIPTS_PAGE).write_text(draw_scripts(document), encoding="utf-8")


def _link(peer: dict[str, Any]) -> str:
    """The name of a peer with a link to its section."""
    return f"[{peer['name']}]({DETAILS_PAGE}#{anchor(peer['name'])})"


def _missing(names: list[str]) -> list[str]:
    return [f"Not judged yet: {', '.join(names)}.\n"] if names else []


def summary(peers: list[dict[str, Any]], confirmations: dict[str, Any]) -> str:
    """Two tables, Markdown: implementations by what is right in float32, and faults by the calls that show them."""
    return f"{_verdicts(peers, confirmations)}\n{_faults(peers, confirmations)}"


def _verdicts(peers: list[dict[str, Any]], confirmations: dict[str, Any]) -> str:
    groups: dict[str, list[str]] = {}
    for peer in peers:
        groups.setdefault(_verdict(peer, confirmations), []).append(peer["name"])
    order = sorted(groups.items(), key=lambda each: -len(each[1]))
    lines = [f"| in {DTYPE}, with gates of moderate size | implementations |", "|---|---|"]
    return "\n".join([*lines, *(f"| {said} ({len(names)}) | {_by_family(names)} |" for said, names in order)]) + "\n"


def _verdict(peer: dict[str, Any], confirmations: dict[str, Any]) -> str:
    if "error" in peer:
        return "without a result"
    doubtful = {law for law, dtypes in unconfirmed(peer, confirmations).items() if DTYPE in dtypes}
    if doubtful & {*VALUES, "gradient"}:
        return "values or gradients beyond the suite's tolerance, which no script has confirmed"
    held, broken = (
        {law for law, dtypes in peer["laws"][kind].items() if DTYPE in dtypes} for kind in ("held", "broken")
    )
    if broken & {*VALUES}:
        return "values wrong"
    if not held & {*VALUES}:
        return "not compared with the definition"
    if "gradient" in broken:
        return "values right, gradients wrong"
    return "values and gradients right" if "gradient" in held else "values right, without gradients"


def _faults(peers: list[dict[str, Any]], confirmations: dict[str, Any]) -> str:
    lines = ["| what scripts have shown | implementations, each with its script |", "|---|---|"]
    found = recurring(peers, confirmations)
    for calls in Calls:
        of_group = {short: scripts for short, scripts in found.items() if _calls(scripts, confirmations) == calls}
        lines += [f"| **{calls}** | |"] if of_group else []
        for short, scripts in of_group.items():
            where = (_by_family(names, f"{SCRIPTS_PAGE}#{anchor(script)}") for script, names in scripts.items())
            lines.append(f"| {short} | {'; '.join(where)} |")
    return "\n".join(lines) + "\n"


def _calls(scripts: Iterable[str], confirmations: dict[str, Any]) -> str:
    return confirmations[next(iter(scripts))]["calls"]


def _by_family(names: list[str], link: str = "") -> str:
    """The names of peers, those of one package and framework behind its name, which stands once and bears the link."""
    families: dict[str, list[str]] = {}
    for name in names:
        family, _, member = name.partition(" ")
        if member.startswith("JAX "):
            family, member = f"{family} JAX", member.removeprefix("JAX ")
        families.setdefault(family, []).append(member)
    return "; ".join(
        f"{f'[{family}]({link})' if link else family}{':' if members[1:] else ''} {', '.join(members)}".strip()
        for family, members in families.items()
    )


def _overview(peers: list[dict[str, Any]], confirmations: dict[str, Any]) -> str:
    lines = ["| implementation | what it is | what to take away | held | broken | not served |", "|---" * 6 + "|"]
    for peer in peers:
        words = [
            _link(peer),
            f"{peer['about']}; `{peer['package']}` {peer['version']}",
        ]
        if "error" in peer:
            words += [plain(peer["error"].strip().splitlines()[-1] if peer["error"].strip() else ""), "", "", ""]
        else:
            laws = peer["laws"]
            words += [take_away(peer, confirmations), str(len(laws["held"].keys() - laws["broken"].keys()))]
            words += [str(len(laws["broken"]))]
            words += [str(len(laws["not served"].keys() - laws["held"].keys() - laws["broken"].keys()))]
        lines.append(f"| {' | '.join(words)} |")
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
        unsure = unsure_cells(peer, op, confirmations)
        marks = [_mark(cells.get(feature, {}), WIDE, unsure.get(feature, set())) for feature, _ in columns]
        marks.append(_mark(cells.get("plain call", {}), NARROW, unsure.get("plain call", set())))
        lines.append(f"| {_link(peer)} | {' | '.join(marks)} |")
    return "\n".join(lines) + "\n"


def _columns(peers: list[dict[str, Any]]) -> list[str]:
    """The meaning of each column of the tables of calls, in the words of the suite."""
    envelopes = [envelope for peer in peers for envelope in peer.get("envelope", {}).values()]
    said = {row["feature"]: row["sentence"] for envelope in envelopes for row in envelope["features"]}
    heads = {head: said[feature] for columns in MATRIX.values() for feature, head in columns if feature in said}
    return ["The columns:\n", "\n".join(f"- *{head}*: {sentence}." for head, sentence in heads.items()) + "\n"]


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


def _confirmation(name: str, found: dict[str, Any]) -> str:
    link = f"[`{found['script']}`](../{found['script']})"
    return f"## {name}\n\n{statement(found)} {link}, {found['verdict']}.\n\n```\n{found['output']}\n```\n"
