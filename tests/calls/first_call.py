"""A call that is the first one of its process, when nothing that a target prepares once has been prepared yet."""

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

from conformance.base.call import Call
from conformance.frameworks.implementation import Implementation, Results
from conformance.laws.checker import LawError

LIMIT = 300.0
"""Seconds, enough to import a framework and compile kernels."""


def in_new_process(implementation: Implementation, kind: str, call: Call) -> tuple[Results, Results] | None:
    """Outputs and gradients of `Implementation.transformed`, as the first call in a new process.

    Returns:
        The results; None if the call raises.

    Raises:
        LawError: the process ends in another way, or does not end.
    """
    with tempfile.TemporaryDirectory() as name:
        given, results = Path(name) / "given", Path(name) / "results"
        target = (implementation.name, implementation.framework, implementation.device)
        given.write_bytes(pickle.dumps((target, kind, call)))
        command = [sys.executable, "-m", __name__, str(given), str(results)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
        except subprocess.TimeoutExpired as error:
            raise LawError("the first call of a process", f"did not end within {LIMIT:.0f} s") from error
        if not results.exists():
            last = ended.stderr.strip().rpartition("\n")[2]
            raise LawError("the first call of a process", f"ended it with status {ended.returncode}: {last}")
        return pickle.loads(results.read_bytes())


def first_call_of(given: Path, results: Path) -> None:
    """The main function of the new process: make the call in ``given`` and write its results to ``results``."""
    from conformance.frameworks.targets import load

    target, kind, call = pickle.loads(given.read_bytes())
    implementation = load(*target)
    try:
        found = implementation.transformed(kind, call)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        found = None
    results.write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    first_call_of(Path(sys.argv[1]), Path(sys.argv[2]))
