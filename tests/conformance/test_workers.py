"""Several processes: the same results in the same order as one, and no hang where one of them dies."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import reference
from conformance import workers
from conformance.options import RunOptions
from conformance.runner import run
from conformance.selection import agenda
from conformance.targets import load

ROOT = Path(reference.__file__).resolve().parents[1]
SCANS = """
import os
import numpy as np
from reference import rev_cumsum as exact, rev_cumsum_off

def rev_cumsum(x):
    {body}
    return exact(x)
"""


def scans(directory: Path, body: str) -> str:
    path = directory / "scans.py"
    path.write_text(SCANS.format(body=body))
    return str(path)


def load_module(name: str, path: Path) -> None:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def test_results_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    target = scans(tmp_path, "x = x[..., ::-1] if x.ndim == 2 else x")
    settings = RunOptions(ops=("rev_cumsum", "rev_cumsum_off"), dtypes=("float64", "float32"), examples=3)
    implementation = load(target, None, "cpu")
    items = agenda(implementation, settings)
    # Hypothesis would mix into its draws what constants it finds in modules imported so far.
    constants = tmp_path / "constants.py"
    constants.write_text(f"SIZES = {list(range(2, 400))}\n")
    load_module("constants_of_no_meaning", constants)
    one = list(run(implementation, settings))
    two = list(workers.run_in_processes(workers.Target(target, None, "cpu"), items, settings, 2))
    assert [(result.law.id, result.dtype) for result in two] == [(law.id, dtype) for law, dtype in items]
    assert [replace(result, seconds=0.0) for result in one] == [replace(result, seconds=0.0) for result in two]
    assert any(result.status == "failed" for result in two) and any(result.status == "passed" for result in two)


def test_a_process_that_dies_is_a_failed_law_and_the_others_go_on(tmp_path: Path) -> None:
    target = scans(tmp_path, "os.kill(os.getpid(), 9) if x.size > 20 and x.dtype == np.float64 else None")
    settings = RunOptions(ops=("rev_cumsum",), laws=("value", "linearity"), dtypes=("float64", "float32"), examples=12)
    items = agenda(load(target, None, "cpu"), settings)
    results = list(workers.run_in_processes(workers.Target(target, None, "cpu"), items, settings, 2))
    assert len(results) == len(items) == 4
    died = [result for result in results if result.status == "failed"]
    assert died and all(result.dtype == "float64" for result in died)
    assert all(result.reason == "the process that tried it died (SIGKILL)" for result in died)


def test_a_debugger_or_an_accelerator_or_little_work_means_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    target = load("reference", None, "cpu")
    items, cuda = agenda(target, RunOptions()), SimpleNamespace(eager=True, device="cuda")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(sys, "gettrace", lambda: None)
    assert workers.usual(target, items) == 2
    assert workers.usual(cuda, items) == 1 and workers.usual(target, items[:5]) == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert workers.usual(target, items) == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(sys, "gettrace", lambda: print)
    assert workers.usual(target, items) == 1


@pytest.mark.skipif(os.name != "posix", reason="signals as a terminal sends them")
def test_control_c_ends_all_processes(tmp_path: Path) -> None:
    started = tmp_path / "started"
    target = scans(tmp_path, f"open({str(started)!r}, 'a').close(); __import__('time').sleep(30)")
    # A test run that was put into the background ignores the signal, and what it starts would too.
    heed = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    run = [sys.executable, "-m", "conformance", "run", target, "--op", "rev_cumsum", "--jobs", "2"]
    command = [sys.executable, "-c", heed, *run]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    # Its stderr ends when the last process that holds it has ended.
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and b"Interrupted while judging" in said
