"""Findings about one peer: the checks that scripts confirmed, those left open, and a sentence that sums them up."""

from collections.abc import Sequence
from typing import Any

from benchmarks.peers.faults import Calls

GROUPS = [str(calls) for calls in Calls]
WIDE, NARROW = ("float32", "float64"), ("bfloat16", "float16")
DTYPES = ("float64", "float32", *NARROW)

NUMERIC = ("value", "gradient", "sequence", "finite", "floor", "split_and_carry")
"""Laws about numbers: a cause that breaks one of them in float32 or float64 is listed first."""

VALUES = ("value", "sequence")
"""The laws that compare values with the definition: of sequences, and of one step."""


def by_script(peer: dict[str, Any], confirmations: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """The failed checks that a script has confirmed, by script; what ordinary calls show comes first.

    A script has no checks that has confirmed wrong kinds of calls alone, or a fault that no case met.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for law, scripts in peer["confirmed"].items():
        for dtype, script in scripts.items():
            if script is not None and _is_confirmed(script, confirmations):
                found.setdefault(script, []).append((law, dtype))
    calls = wrong_calls(peer, confirmations)
    for script in (*calls, *(each for each in peer["always"] if _is_confirmed(each, confirmations))):
        found.setdefault(script, [])

    def order(each: tuple[str, list[tuple[str, str]]]) -> tuple[int, int, int, int]:
        script, checks = each
        wide = [law for law, dtype in checks if dtype in WIDE]
        if not checks:
            wide = ["value"] if any(dtype in WIDE for _, dtype in calls.get(script, ())) else []
        group = GROUPS.index(confirmations[script].get("calls", GROUPS[0]))
        return group, -sum(law in NUMERIC[:3] for law in wide), -sum(law in NUMERIC for law in wide), -len(checks)

    return dict(sorted(found.items(), key=order))


def _is_confirmed(script: str, confirmations: dict[str, Any]) -> bool:
    return confirmations.get(script, {}).get("verdict") == "confirmed"


def wrong_calls(peer: dict[str, Any], confirmations: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """The kinds of calls, each with a dtype, whose errors a script has confirmed, by script."""
    found: dict[str, list[tuple[str, str]]] = {}
    for features in peer.get("confirmed cells", {}).values():
        for feature, dtypes in features.items():
            for dtype, parts in dtypes.items():
                for script in dict.fromkeys(parts.values()):
                    if script is not None and _is_confirmed(script, confirmations):
                        found.setdefault(script, []).append((feature, dtype))
    return found


def unconfirmed(peer: dict[str, Any], confirmations: dict[str, Any]) -> dict[str, list[str]]:
    """Broken laws, each with the dtypes in which no script has confirmed it."""
    sure = {check for checks in by_script(peer, confirmations).values() for check in checks}
    found = {
        law: [dtype for dtype in dtypes if (law, dtype) not in sure] for law, dtypes in peer["laws"]["broken"].items()
    }
    return {law: dtypes for law, dtypes in found.items() if dtypes}


def take_away(peer: dict[str, Any], confirmations: dict[str, Any]) -> str:
    """One sentence for a reader who chooses: the dtypes in which results are right, and what was confirmed to be wrong.

    What no script has confirmed is not stated; the sentence says only that it is open.
    """
    causes = [confirmations[script]["short"] for script in by_script(peer, confirmations)]
    held, broken = peer["laws"]["held"], peer["laws"]["broken"]
    plain = _plain_call(peer)
    right = [dtype for dtype in DTYPES if any(dtype in held.get(law, ()) for law in VALUES)]
    right = [dtype for dtype in right if (dtype, "value") not in plain]
    without_gradient = not ("gradient" in held or "gradient" in broken)
    both = [dtype for dtype in right if dtype in held.get("gradient", ()) and (dtype, "gradient") not in plain]
    values = [dtype for dtype in right if dtype not in both]
    parts = [
        f"{words} {and_list(dtypes)}" for words, dtypes in (("right in", both), ("right values in", values)) if dtypes
    ]
    if parts and without_gradient:
        parts.append("gradients not judged")
    elif not parts:
        compared = any(law in held or law in broken for law in VALUES)
        parts.append("found right in no dtype" if compared else "not compared with the definition")
    if unconfirmed(peer, confirmations):
        causes.append("some results are not confirmed")
    said = ", ".join(parts)
    reached = "was reached" if peer["interrupted"] else "it serves"
    said += f", but {'; '.join(causes)}" if causes else f", and every law that {reached} holds"
    return said[0].upper() + said[1:] + "."


def _plain_call(peer: dict[str, Any]) -> set[tuple[str, str]]:
    """The dtypes and parts in which a plain call is wrong, though the few cases of a law may have been right."""
    rows = [row for envelope in peer.get("envelope", {}).values() for row in envelope["features"]]
    cells = [row["cells"] for row in rows if row["feature"] == "plain call"]
    return {
        (dtype, part)
        for by_dtype in cells
        for dtype, cell in by_dtype.items()
        for part in ("value", "gradient")
        if cell[part] == "wrong"
    }


def recurring(peers: list[dict[str, Any]], confirmations: dict[str, Any]) -> dict[str, dict[str, list[str]]]:
    """Everything that scripts confirmed, in a few words: by script, the peers that do it. The commonest comes first."""
    found: dict[str, dict[str, list[str]]] = {}
    for peer in peers:
        for script in by_script(peer, confirmations) if "error" not in peer else ():
            scripts = found.setdefault(confirmations[script]["short"], {})
            scripts.setdefault(script, []).append(peer["name"])
    return dict(sorted(found.items(), key=lambda each: -sum(map(len, each[1].values()))))


def unsure_cells(peer: dict[str, Any], op: str, confirmations: dict[str, Any]) -> dict[str, set[tuple[str, str]]]:
    """By kind of call, the dtypes and parts that an experiment found wrong and no script has confirmed."""
    return {
        feature: {
            (dtype, part)
            for dtype, parts in dtypes.items()
            for part, script in parts.items()
            if script is None or not _is_confirmed(script, confirmations)
        }
        for feature, dtypes in peer["confirmed cells"][op].items()
    }


def and_list(words: Sequence[str]) -> str:
    """The words as an English list."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
