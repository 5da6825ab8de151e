"""Judges public implementations: runs the suite on each, with a time limit, and the scripts that confirm faults."""

import contextlib
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.peers.faults import cell_text, check_text
from benchmarks.peers.registry import PEERS, Peer
from benchmarks.speed.results import machine

ROOT = Path(__file__).parents[2]
CONFIRM = ROOT / "benchmarks" / "peers" / "confirm"
FORMAT = 1
WORDS = 400
"""Maximum length of the text of an error that is stored."""

SECONDS_TO_WRITE = 30.0
"""Time limit for an interrupted process to write its results."""

TOO_SLOW = "a call took longer than the time limit of this table"

_OF_A_SCRIPT = ("script", "script_note")


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Limits on the trial of one peer.

    Attributes:
        minutes: how long it may take; it is then interrupted, and its results so far are kept.
        examples: cases per law and dtype.
        max_steps: the longest sequence.
        timeout: seconds that one case may take.
        laws: the only ones that are tried; empty for all.
    """

    minutes: float = 4.5
    examples: int = 3
    max_steps: int = 70
    timeout: float = 60.0
    laws: tuple[str, ...] = ()


def command(peer: Peer, report: Path, effort: Effort) -> list[str]:
    """The command that judges one peer."""
    words = [
        sys.executable,
        "-m",
        "benchmarks.judged.one_peer",
        peer.name,
        str(report),
        "--examples",
        str(effort.examples),
    ]
    words += ["--max-steps", str(effort.max_steps), "--timeout", str(effort.timeout)]
    return [*words, *(word for law in effort.laws for word in ("--law", law))]


def judged(peer: Peer, effort: Effort) -> dict[str, Any]:
    """The suite's result for one peer: laws by status, causes and envelope, or the reason why there is none."""
    found: dict[str, Any] = {
        "name": peer.name,
        "about": peer.about,
        "op": peer.op,
        "package": peer.package,
        "version": _version(peer.package),
        "framework": peer.framework,
        "interpreted": peer.interpreted,
        "note": peer.note,
        "target": f"benchmarks.peers.{peer.target}",
        "date": datetime.now(UTC).date().isoformat(),
        "only": list(effort.laws),
    }
    environment = {**os.environ, "TRITON_INTERPRET": "1"} if peer.interpreted else dict(os.environ)
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        start = time.monotonic()
        _, said = _run(command(peer, report, effort), 60 * effort.minutes, environment)
        found["minutes"] = round((time.monotonic() - start) / 60, 2)
        if not report.exists():
            said = said.strip() or f"no result within {effort.minutes:g} minutes"
            return found | {"error": said[-WORDS:]}
        target = json.loads(report.read_text(encoding="utf-8"))
    return found | _kept(target)


def _kept(target: dict[str, Any]) -> dict[str, Any]:
    """The part of a report that a reader of the table needs."""
    laws: dict[str, dict[str, Any]] = {"held": {}, "broken": {}, "not served": {}, "contract": {}}
    for law in target["laws"]:
        if law["status"] == "skipped" and law["reason"].startswith("absent"):
            continue
        where = law["counterexample"] or {}
        slow = where.get("nature") == "timeout"
        if law["status"] == "passed":
            laws["held"].setdefault(law["law"], []).append(law["dtype"])
        elif slow:
            # On a loaded machine, or under an interpreter, this says nothing about the law.
            laws["not served"].setdefault(law["law"], {})[law["dtype"]] = TOO_SLOW
        elif law["status"] in ("failed", "differs"):
            said = where.get("where") or where.get("problem") or ""
            kind = "contract" if law["status"] == "differs" else "broken"
            laws[kind].setdefault(law["law"], {})[law["dtype"]] = said[:WORDS]
        else:
            laws["not served"].setdefault(law["law"], {})[law["dtype"]] = (law["reason"] or law["status"])[:WORDS]
    return {
        "versions": target["versions"],
        "seed": target["seed"],
        "settings": target["settings"],
        "summary": target["summary"],
        "interrupted": target["interrupted"],
        "laws": laws,
        # The suite's scripts were in a temporary directory; they are made again from the stored case.
        "causes": [
            {name: x for name, x in cause.items() if name not in _OF_A_SCRIPT} for cause in target.get("causes", [])
        ],
        "envelope": target.get("envelope", {}),
    }


def merged(before: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """An entry in which some laws were tried again, or for the first time, with everything else of the one before.

    The table of features is the newer one, if there is one. ``again`` says when and how these laws were tried.
    """
    if not new["only"] or "laws" not in new or "laws" not in before:
        return new
    tried = set(new["only"])
    laws = {
        status: {law: x for law, x in of.items() if law not in tried} | new["laws"][status]
        for status, of in before["laws"].items()
    }
    causes = []
    for cause in before["causes"]:
        others = [each for each in cause["explains"] if each["id"].partition(".")[2] not in tried]
        causes += [cause | {"explains": others}] if others else []
    how = {name: new[name] for name in ("date", "settings", "minutes", "interrupted")}
    kept = {name: x for name, x in before.items() if name != "summary"}  # It counts what is no longer there.
    return kept | {
        "only": [*before["only"], *(law for law in new["only"] if law not in before["only"])] if before["only"] else [],
        "again": before.get("again", {}) | dict.fromkeys(new["only"], how),
        "laws": laws,
        "causes": [*new["causes"], *causes],
        "envelope": new["envelope"] or before["envelope"],
    }


def confirmed(script: str, seconds: float) -> dict[str, Any]:
    """The result of a script that confirms a fault: whether the fault is still there, and the script's output."""
    path = CONFIRM / f"{script}.py"
    status, said = _run([sys.executable, "-W", "ignore", str(path)], seconds, dict(os.environ))
    verdict = {0: "gone", 1: "confirmed"}.get(-1 if status is None else status, "failed to run")
    if "Traceback" in said:
        verdict = "failed to run"
    return {"script": str(path.relative_to(ROOT)), "states": title(path), "verdict": verdict, "output": said.strip()}


def title(script: Path) -> str:
    """The first line of a script's docstring: the fault that it shows."""
    return script.read_text(encoding="utf-8").partition('"""')[2].partition("\n")[0]


def _run(words: list[str], seconds: float, environment: dict[str, str]) -> tuple[int | None, str]:
    """Exit status and output of a process; None if it takes longer: it is interrupted, and killed if it goes on."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS_TO_WRITE)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output.seek(0)
        return status, output.read()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def chosen(names: Iterable[str]) -> list[Peer]:
    """The peers whose name contains one of ``names``; all peers if there are none.

    Raises:
        ValueError: no peer's name contains one of the names.
    """
    names = list(names)
    for name in names:
        if not any(name in peer.name for peer in PEERS):
            raise ValueError(f"no peer's name holds {name!r}; there are {', '.join(peer.name for peer in PEERS)}")
    return [peer for peer in PEERS if not names or any(name in peer.name for name in names)]


def document(kept: dict[str, Any], entry: dict[str, Any] | None, scripts: dict[str, Any]) -> dict[str, Any]:
    """``kept`` with a new entry at its position in the registry, and with new results of scripts."""
    entries = {each["name"]: each for each in (*kept.get("peers", []), *([entry] if entry is not None else []))}
    confirmations = {**kept.get("confirmations", {}), **scripts}
    wanted = {each.script: each for peer in PEERS if peer.name in entries for each in peer.confirmed}
    return {
        "format": FORMAT,
        "machine": machine("cpu", {}) if entry is not None else kept["machine"],
        "peers": [_with_confirmations(entries[peer.name], peer) for peer in PEERS if peer.name in entries],
        "not judged": [peer.name for peer in PEERS if peer.name not in entries],
        "confirmations": {
            name: {
                **confirmations[name],
                "states": title(CONFIRM / f"{name}.py"),
                "short": wanted[name].short,
                "calls": str(wanted[name].calls),
            }
            for name in sorted(wanted.keys() & confirmations.keys())
        },
    }


def _with_confirmations(entry: dict[str, Any], peer: Peer) -> dict[str, Any]:
    """An entry with what the peer is and, for each failed check and wrong cell, the script that confirms it."""
    entry = {**entry, "about": peer.about, "note": peer.note}
    if "laws" not in entry:
        return entry
    confirmed: dict[str, dict[str, str | None]] = {}
    for law, dtypes in entry["laws"]["broken"].items():
        for dtype, where in dtypes.items():
            text = check_text(law, dtype, where)
            scripts = (each.script for each in peer.confirmed if re.search(each.checks, text))
            confirmed.setdefault(law, {})[dtype] = next(scripts, None)
    cells = {op: _cells(envelope["features"], peer) for op, envelope in entry["envelope"].items()}
    always = [each.script for each in peer.confirmed if each.always]
    return {**entry, "confirmed": confirmed, "confirmed cells": cells, "always": always}


def _cells(features: list[dict[str, Any]], peer: Peer) -> dict[str, dict[str, dict[str, str | None]]]:
    """The wrong cells of a table of features: for each feature, dtype and part, the script that confirms it."""
    found: dict[str, dict[str, dict[str, str | None]]] = {}
    for row in features:
        for dtype, cell in row["cells"].items():
            for part in ("value", "gradient"):
                if cell[part] == "wrong":
                    text = cell_text(part, dtype, row["feature"])
                    scripts = (each.script for each in peer.confirmed if re.search(each.cells, text))
                    found.setdefault(row["feature"], {}).setdefault(dtype, {})[part] = next(scripts, None)
    return found
