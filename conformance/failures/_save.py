"""Saves the script of a failure with its arrays, and runs it once."""

import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from conformance.failures._law_replay import replay_script
from conformance.failures._script import Script
from conformance.failures._single_call import single_call_script
from conformance.implementation import Implementation
from conformance.laws import Law
from conformance.outcome import Counterexample
from conformance.search import Scene
from conformance.tensors import pack

SECONDS = 60.0
"""Seconds that a script may take: it loads a framework and, if the framework compiles, compiles one call."""

ALL_SECONDS = 120.0
"""Seconds that all scripts of one process may take; a target that breaks every law has hundreds of them."""

COMPUTED = 40.0
"""Of these, seconds of computation: about ten scripts that import PyTorch."""


class _Runner:
    """Runs scripts, each once, while there is time."""

    def __init__(self) -> None:
        self.left, self.computed = ALL_SECONDS, COMPUTED

    def fails(self, path: Path, marker: str, ends: bool) -> tuple[bool | None, str]:
        """Whether the script fails as it should, and a description of the run.

        Args:
            ends: whether it fails by ending its process, with any exit status.
        """
        if self.left <= 0 or self.computed <= 0:
            return None, "not run: earlier scripts used up the time for scripts"
        start, before = time.monotonic(), _computed_by_children()
        limit = min(SECONDS, self.left)
        try:
            done = subprocess.run(
                [sys.executable, str(path)], capture_output=True, text=True, errors="replace", timeout=limit
            )
        except subprocess.TimeoutExpired:
            return None, f"ran once and was stopped after {limit:.0f} s"
        finally:
            self.left -= time.monotonic() - start
            self.computed -= _computed_by_children() - before
        if done.returncode != 0 and marker in done.stderr:
            return True, "ran once and failed again"
        if ends and not done.stdout.strip().endswith("holds here"):
            return True, f"ran once and ended in the same way (exit status {done.returncode})"
        if done.returncode == 0:
            return False, (
                "the script did not fail again: the target is not deterministic, or it fails only after other calls "
                "in the same process"
            )
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:200]
        return False, f"the script failed in another way: {last}"


def _computed_by_children() -> float:
    """Seconds; 0 where the system does not tell."""
    times = os.times()
    return times.children_user + times.children_system


_runner = _Runner()


def save(
    implementation: Implementation,
    law: Law,
    dtype: str,
    found: Counterexample,
    scene: Scene,
    directory: Path,
    number: int = 1,
    run: bool = True,
) -> Counterexample:
    """Save a script that shows only this failure, and run it; if it does not fail again, a replay replaces it.

    Args:
        number: the number of the counterexample, if a law breaks in several ways.
        run: whether the script is run, which imports the target once more.
    """
    suffix = "" if number == 1 else f"-{number}"
    path = directory / f"{_stem(implementation.name)}-{law.id}-{dtype}{suffix}.py"
    again = replay_script(implementation, law, dtype, found, scene)
    first = single_call_script(implementation, law, dtype, found, scene)
    kept, failed, note = again, None, ""
    for script in (first, again):
        if script is None:
            continue
        kept = script
        try:
            _write(path, script)
        except OSError as error:
            return replace(found, script_note=f"no script was saved: {error}")
        if not run:
            note = "not run, to save time in a quick run"
            break
        ends = found.kind.nature in ("exit", "abort")
        if found.kind.nature == "timeout":
            note = "not run: the call does not return"
            break
        failed, note = _runner.fails(path, script.marker, ends)
        if failed is not False:
            break
    return replace(found, script=_shown(path), script_text=kept.text, script_note=note, script_failed=failed)


def _write(path: Path, script: Script) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script.text, encoding="utf-8")
    path.with_suffix(".safetensors").write_bytes(pack(script.tensors))


def _stem(target: str) -> str:
    name = Path(target).stem if target.endswith(".py") else target
    return re.sub(r"[^\w.]+", "_", name)


def _shown(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
