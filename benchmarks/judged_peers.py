"""Judges public implementations: runs the suite on each, with a time limit, and the scripts that confirm faults."""

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.peers.registry import PEERS, Peer
from benchmarks.results import machine

ROOT = Path(__file__).parents[1]
CONFIRM = ROOT / "benchmarks" / "peers" / "confirm"
FORMAT = 1
WORDS = 400
"""Maximum length of the text of an error that is stored."""

_OF_A_SCRIPT = ("script", "script_note")


def command(peer: Peer, report: Path, failures: Path, options: Sequence[str]) -> list[str]:
    """The command that runs the suite on a peer."""
    words = [sys.executable, "-m", "conformance", "run", f"benchmarks.peers.{peer.target}", "--op", peer.op]
    words += ["--framework", peer.framework, "--json", str(report), "--failures", str(failures), *options]
    for option, names in (("--dtype", peer.dtypes), ("--law", peer.laws)):
        words += [word for name in names for word in (option, name)]
    return words


def judged(peer: Peer, minutes: float, options: Sequence[str] = ()) -> dict[str, Any]:
    """The suite's result for one peer: laws by status, causes and envelope, or the reason why there is none."""
    found: dict[str, Any] = {
        "name": peer.name,
        "op": peer.op,
        "package": peer.package,
        "version": _version(peer.package),
        "framework": peer.framework,
        "interpreted": peer.interpreted,
        "note": peer.note,
        "target": f"benchmarks.peers.{peer.target}",
    }
    environment = {**os.environ, "TRITON_INTERPRET": "1"} if peer.interpreted else dict(os.environ)
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        words = command(peer, report, Path(directory) / "failures", options)
        start = time.monotonic()
        status, said = _run(words, 60 * minutes, environment)
        found["minutes"] = round((time.monotonic() - start) / 60, 2)
        if not report.exists():
            limit = f"no result within {minutes:g} minutes"
            return found | {"error": limit if status is None else said[-WORDS:]}
        (target,) = json.loads(report.read_text(encoding="utf-8"))
    return found | _kept(target)


def _kept(target: dict[str, Any]) -> dict[str, Any]:
    """The part of a report that a reader of the table needs."""
    laws: dict[str, dict[str, Any]] = {"held": {}, "broken": {}, "not served": {}, "contract": {}}
    for law in target["laws"]:
        if law["status"] == "skipped" and law["reason"].startswith("absent"):
            continue
        where = law["counterexample"] or {}
        if law["status"] == "passed":
            laws["held"].setdefault(law["law"], []).append(law["dtype"])
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
        "laws": laws,
        # The suite's scripts were in a temporary directory; they are made again from the stored case.
        "causes": [
            {name: x for name, x in cause.items() if name not in _OF_A_SCRIPT} for cause in target.get("causes", [])
        ],
        "envelope": target.get("envelope", {}),
    }


def confirmed(script: str, seconds: float = 300.0) -> dict[str, Any]:
    """The result of a script that confirms a fault: whether the fault is still there, and the script's output."""
    path = CONFIRM / f"{script}.py"
    status, said = _run([sys.executable, "-W", "ignore", str(path)], seconds, dict(os.environ))
    title = path.read_text(encoding="utf-8").partition('"""')[2].partition("\n")[0]
    verdict = {0: "gone", 1: "confirmed"}.get(-1 if status is None else status, "failed to run")
    if "Traceback" in said:
        verdict = "failed to run"
    return {"script": str(path.relative_to(ROOT)), "states": title, "verdict": verdict, "output": said.strip()}


def _run(words: list[str], seconds: float, environment: dict[str, str]) -> tuple[int | None, str]:
    """Exit status and output of a process; None if it takes longer, and then it and its children are ended."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
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


def document(kept: dict[str, Any], peer: Peer, entry: dict[str, Any], scripts: dict[str, Any]) -> dict[str, Any]:
    """``kept`` with a peer's new entry, at the position that the registry gives the peer, and its scripts."""
    entries = {each["name"]: each for each in kept.get("peers", [])} | {peer.name: entry}
    confirmations = {**kept.get("confirmations", {}), **scripts}
    return {
        "format": FORMAT,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine("cpu", {}),
        "peers": [{**entries[each.name], "confirmed": list(each.confirmed)} for each in PEERS if each.name in entries],
        "confirmations": {name: confirmations[name] for name in sorted(confirmations)},
    }
