"""Saves the script of a failure with its arrays, and runs it once."""

import atexit
import pprint
import re
from dataclasses import replace
from pathlib import Path

from conformance.base.dtypes import Array
from conformance.base.exceptions import name_of
from conformance.base.result_form import WrongResultError
from conformance.base.tensors import CODES, pack
from conformance.failures._runs import Runs
from conformance.failures._script import Script, environment, heading, rendered
from conformance.failures._single_call import single_call_script
from conformance.failures._target_source import absolute, path_lines
from conformance.frameworks.implementation import Implementation
from conformance.judge.outcome import Counterexample, Found
from conformance.laws import Law
from conformance.laws.checker import LawError


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
) -> Counterexample:
    """Save a script that shows only this failure, and run it; if it does not fail again, a replay replaces it.

    Args:
        number: the number of the counterexample, if a law breaks in several ways.
        run: whether the script is run, which imports the target once more.
    """
    suffix = "" if number == 1 else f"-{number}"
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
    name = Path(target).stem if target.endswith(".py") else target
    return re.sub(r"[^\w.]+", "_", name)


def _shown(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
