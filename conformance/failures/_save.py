"""Saves the script of a failure with its arrays, and runs it once in a process of its own, to see if it fails again.

Importing a framework takes seconds of computation, and what follows takes a tenth of a second. Where the system can
copy a process, scripts are therefore run by an interpreter that has imported the framework already (`_preloaded`).
"""

import atexit
import json
import os
import pprint
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.base.dtypes import Array
from conformance.base.exceptions import name_of
from conformance.base.result_form import WrongResultError
from conformance.base.tensors import CODES, pack
from conformance.failures._script import Script, environment, heading, rendered
from conformance.failures._single_call import single_call_script
from conformance.failures._target_source import absolute, path_lines
from conformance.frameworks.implementation import Implementation
from conformance.frameworks.targets import file_and_attribute
from conformance.judge.outcome import Counterexample, Found
from conformance.laws import Law
from conformance.laws.checker import LawError
from conformance.operations import specification_of

SECONDS = 60.0
"""Seconds that a script may take: it loads a framework and, if the framework compiles, compiles one call."""

ALL_SECONDS = 120.0
"""Seconds that all scripts of one process may take; a target that breaks every law has hundreds of them."""

COMPUTED = 40.0
"""Of these, seconds of computation."""

PRELOADED = {
    "numpy": ("numpy", "safetensors.numpy"),
    "torch": ("numpy", "torch", "safetensors.torch", "torch.fx.experimental.symbolic_shapes"),
    "jax": ("numpy", "jax", "jax.numpy", "safetensors.numpy"),
}
"""The modules that scripts import, by framework, and those that PyTorch imports at the first gradient."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """A script that has ended.

    Attributes:
        status: its exit status, negative for a signal.
        output, errors: what it printed.
        computed: seconds of computation.
    """

    status: int
    output: str
    errors: str
    computed: float


class Preloaded:
    """An interpreter that has imported the modules that scripts for a framework import.

    Args:
        modules: their names.
    """

    def __init__(self, modules: tuple[str, ...]):
        program = Path(__file__).with_name("_preloaded.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program), *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._importing: float | None = None

    def run(self, path: Path, limit: float) -> Done:
        """Run a script.

        Raises:
            TimeoutError: it took longer.
            OSError, ValueError: the interpreter does not answer.
        """
        end, computed = time.monotonic() + limit, 0.0
        if self._importing is None:
            computed = self._importing = float(self._line(end))
        assert self._process.stdin is not None
        self._process.stdin.write(f"{path.resolve()}\n".encode())
        self._process.stdin.flush()
        status, output, errors, seconds = json.loads(self._line(end))
        return Done(status=status, output=output, errors=errors, computed=computed + seconds)

    def _line(self, end: float) -> bytes:
        answers = self._process.stdout
        assert answers is not None
        if not select.select([answers], [], [], max(0.0, end - time.monotonic()))[0]:
            raise TimeoutError
        line = answers.readline()
        if not line:
            raise OSError("the interpreter has ended")
        return line

    def close(self) -> None:
        """End it, and the script that it is running."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


class Runs:
    """Runs scripts, each once, while there is time."""

    def __init__(self) -> None:
        self.left, self.computed = ALL_SECONDS, COMPUTED
        self._preloaded: dict[str, Preloaded] = {}

    def fails(self, path: Path, marker: str, ends: bool, framework: str) -> tuple[bool | None, str]:
        """Whether the script fails as it should, and a description of the run.

        Args:
            ends: whether it fails by ending its process, with any exit status.
            framework: the framework that it imports, and nothing of this suite; empty if it imports the suite.
        """
        if self.left <= 0 or self.computed <= 0:
            return None, "not run: earlier scripts used up the time for scripts"
        start, limit = time.monotonic(), min(SECONDS, self.left)
        try:
            done = self._done(path, limit, framework)
        except TimeoutError:
            return None, f"ran once and was stopped after {limit:.0f} s"
        finally:
            self.left -= time.monotonic() - start
        self.computed -= done.computed
        if done.status != 0 and marker in done.errors:
            return True, "ran once and failed again"
        if ends and not done.output.strip().endswith("holds here"):
            return True, f"ran once and ended in the same way (exit status {done.status})"
        if done.status == 0:
            return False, (
                "the script did not fail again: the target is not deterministic, or it fails only after other calls "
                "in the same process"
            )
        last = (done.errors.strip().splitlines() or [f"exit status {done.status}"])[-1][:200]
        return False, f"the script failed in another way: {last}"

    def _done(self, path: Path, limit: float, framework: str) -> Done:
        """Run a script, if possible in a copy of an interpreter that has imported its framework."""
        if framework not in PRELOADED or not hasattr(os, "fork"):
            return _alone(path, limit)
        if framework not in self._preloaded:
            self._preloaded[framework] = Preloaded(PRELOADED[framework])
        try:
            return self._preloaded[framework].run(path, limit)
        except TimeoutError:
            self._close(framework)
            raise
        except (OSError, ValueError):
            self._close(framework)
            return _alone(path, limit)

    def _close(self, framework: str) -> None:
        self._preloaded.pop(framework).close()

    def close(self) -> None:
        """End the interpreters that are kept."""
        for framework in list(self._preloaded):
            self._close(framework)


def _alone(path: Path, limit: float) -> Done:
    before = _computed_by_children()
    try:
        done = subprocess.run(
            [sys.executable, str(path)], capture_output=True, text=True, errors="replace", timeout=limit
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    computed = _computed_by_children() - before
    return Done(status=done.returncode, output=done.stdout, errors=done.stderr, computed=computed)


def _computed_by_children() -> float:
    """Seconds; 0 where the system does not tell."""
    times = os.times()
    return times.children_user + times.children_system


def replay_script(implementation: Implementation, law: Law, dtype: str, found: Found) -> Script:
    """The script; the inputs of every call that the law made are saved next to it."""
    tensors = {}
    for number, record in enumerate(found.calls):
        call = record.call
        arrays = {**call.arrays, **{f"d_{name}": x for name, x in call.cotangents.items()}}
        tensors |= {f"{number}.{name}": x for name, x in arrays.items() if isinstance(x, Array) and x.dtype in CODES}
    case = pprint.pformat(found.counterexample.stored, width=110, compact=True, sort_dicts=False)
    lines = rendered(
        "replay",
        preparation=[*environment(), *path_lines(Path(__file__).parents[2])],
        case=case,
        target=absolute(implementation.name),
        law=law.id,
        dtype=dtype,
        framework=implementation.framework,
        device=implementation.device,
        kernel_backend=implementation.kernel_backend,
        spec=specification_of(law.op),
    )
    marker = f"{law.id} is broken"
    if not isinstance(found.error, LawError | WrongResultError):
        marker = f"{marker}: raised {name_of(found.error)}"
    return Script("\n".join([*heading(law, dtype, found.counterexample), *lines]) + "\n", tensors, marker)


_runs = Runs()
atexit.register(_runs.close)


def save(
    implementation: Implementation,
    law: Law,
    dtype: str,
    found: Found,
    directory: Path,
    number: int = 1,
    run: bool = True,
    label: str = "",
) -> Counterexample:
    """Save a script that shows only this failure, and run it; if it does not fail again, a replay replaces it.

    Args:
        number: the number of the counterexample, if a law breaks in several ways.
        run: whether the script is run, which imports the target once more.
        label: the end of the script's name, if it does not show the case that a law found.
    """
    suffix = f"-{label}" if label else "" if number == 1 else f"-{number}"
    path = directory / f"{_stem(implementation.name)}-{law.id}-{dtype}{suffix}.py"
    again = replay_script(implementation, law, dtype, found)
    first = single_call_script(implementation, law, dtype, found)
    counterexample, kept, failed, note = found.counterexample, again, None, ""
    for script in (first, again):
        if script is None:
            continue
        kept = script
        try:
            _write(path, script)
        except OSError as error:
            return replace(counterexample, script_note=f"no script was saved: {error}")
        if not run:
            note = "not run, to save time in a quick run"
            break
        nature = counterexample.kind.nature
        if nature == "timeout":
            note = "not run: the call does not return"
            break
        framework = "" if script is again else implementation.framework
        failed, note = _runs.fails(path, script.marker, nature in ("exit", "abort"), framework)
        if failed is not False:
            break
    return replace(counterexample, script=_shown(path), script_text=kept.text, script_note=note, script_failed=failed)


def _write(path: Path, script: Script) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script.text, encoding="utf-8")
    path.with_suffix(".safetensors").write_bytes(pack(script.tensors))


def _stem(target: str) -> str:
    file, attribute = file_and_attribute(target)
    name = target if file is None else ".".join(filter(None, (file.stem, attribute)))
    return re.sub(r"[^\w.]+", "_", name)


def _shown(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
