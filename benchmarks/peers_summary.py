"""The beginning of ``docs/peers.md``: which implementations are right, and every fault that was confirmed, once."""

from collections.abc import Iterable
from typing import Any

from benchmarks.peers.faults import Calls
from benchmarks.peers_findings import VALUES, recurring
from benchmarks.peers_section import SCRIPTS_PAGE, anchor

DTYPE = "float32"
"""The dtype for which implementations are told apart: all of them take it."""


def summary(peers: list[dict[str, Any]], confirmations: dict[str, Any]) -> str:
    """Two tables, Markdown: implementations by what is right in float32, and faults by the calls that show them."""
    return f"{_verdicts(peers)}\n{_faults(peers, confirmations)}"


def _verdicts(peers: list[dict[str, Any]]) -> str:
    groups: dict[str, list[str]] = {}
    for peer in peers:
        groups.setdefault(_verdict(peer), []).append(peer["name"])
    order = sorted(groups.items(), key=lambda each: -len(each[1]))
    lines = [f"| in {DTYPE}, with gates of moderate size | implementations |", "|---|---|"]
    return "\n".join([*lines, *(f"| {said} ({len(names)}) | {_by_family(names)} |" for said, names in order)]) + "\n"


def _verdict(peer: dict[str, Any]) -> str:
    if "error" in peer:
        return "without a result"
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
