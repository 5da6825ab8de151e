"""Several processes: the same results in the same order as one, and no hang where one of them dies."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import reference
from conformance.base.options import RunOptions
from conformance.command.run import usual_jobs
from conformance.frameworks.targets import info_of, load
from conformance.judge.outcome import LawResult
from conformance.judge.runner import run
from conformance.judge.selection import agenda, options_of
from conformance.judge.workers import TargetFailedError, Workers
from conformance.tolerance.compared import BreakKind

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


def in_workers(target: str, options: RunOptions, processes: int = 1) -> list[LawResult]:
    pool = Workers(target, None, "cpu", options.timeout)
    try:
        return list(pool.results(agenda(pool.info(), options), options, processes))
    finally:
        pool.stop()


def same(x: Any, y: Any) -> bool:
    """Whether two results are equal, in which a NaN is one like any other."""
    if is_dataclass(x) and type(x) is type(y):
        return all(same(getattr(x, each.name), getattr(y, each.name)) for each in fields(x))
    if isinstance(x, list | tuple) and type(x) is type(y):
        return len(x) == len(y) and all(map(same, x, y))
    return x == y or (isinstance(x, float) and isinstance(y, float) and x != x and y != y)


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
    two = in_workers(target, settings, 2)
    assert [(result.law.id, result.dtype) for result in two] == [(law.id, dtype) for law, dtype in items]
    assert same([replace(result, seconds=0.0) for result in one], [replace(result, seconds=0.0) for result in two])
    assert any(result.status == "failed" for result in two) and any(result.status == "passed" for result in two)


def test_a_case_that_ends_its_process_is_the_counterexample_and_the_others_go_on(tmp_path: Path) -> None:
    target = scans(tmp_path, "os.kill(os.getpid(), 9) if x.size > 20 and x.dtype == np.float64 else None")
    options = RunOptions(ops=("rev_cumsum",), laws=("value", "linearity"), dtypes=("float64", "float32"), examples=12)
    results = in_workers(target, options, 2)
    assert len(results) == 4
    died = [result for result in results if result.status == "failed"]
    assert died and all(result.dtype == "float64" for result in died)
    for result in died:
        (found,) = result.counterexamples
        assert found.kind == BreakKind("SIGKILL", "abort") and found.problem == "ended the process (SIGKILL)"
        assert result.examples > 5, "the cases after the one that ended the process are tried too"
    assert all(result.status == "passed" for result in results if result.dtype == "float32")


SLOW_COMPILER = """
import time
import jax
from jax_impl import rev_cumsum

compiled = jax.stages.Lowered.compile

def slowly(self, *arguments, **options):
    time.sleep(5)
    return compiled(self, *arguments, **options)

jax.stages.Lowered.compile = slowly
"""


def test_compiling_a_call_does_not_count_as_the_call(tmp_path: Path) -> None:
    target = tmp_path / "scans.py"
    target.write_text(SLOW_COMPILER)
    options = RunOptions(
        ops=("rev_cumsum",), laws=("value",), dtypes=("float32",), examples=1, quick=True, max_steps=7, timeout=4.0
    )
    (result,) = in_workers(str(target), options)
    assert result.status == "passed" and result.examples


def test_a_target_whose_every_call_hangs_is_given_up(tmp_path: Path) -> None:
    # The calls of one element are those by which the suite sees in which dtype a NumPy target computes.
    target = scans(tmp_path, "while x.size != 1: pass")
    options = RunOptions(ops=("rev_cumsum",), examples=4, timeout=1.0)
    start = time.monotonic()
    results = in_workers(target, options)
    assert [result.status for result in results].count("failed") <= 4
    rest = [result for result in results if result.status == "skipped" and "not tried" in (result.reason or "")]
    assert len(rest) > 10 and len({result.reason for result in rest}) == 1
    assert time.monotonic() - start < 60


def test_a_quick_run_asks_an_operation_that_hung_no_second_time(tmp_path: Path) -> None:
    target = scans(tmp_path, "while x.size != 1: pass")
    with open(target, "a") as file:
        file.write("\nfrom reference import gru\n\ndef mlstm(*arrays, **options):\n    while True: pass\n")
    settings = options_of(ops=("rev_cumsum", "mlstm", "gru"), quick=True, examples=2, timeout=4.0)
    start = time.monotonic()
    results = {result.law.id: result for result in in_workers(target, settings)}
    ended = {result.law.op: result for result in results.values() if result.status == "failed"}
    assert set(ended) == {"rev_cumsum", "mlstm"}
    assert {found.kind.nature for result in ended.values() for found in result.counterexamples} == {"timeout"}
    assert [result.status for result in results.values()].count("failed") == 2
    assert time.monotonic() - start < 60
    assert options_of(quick=True).timeout == 30 and options_of().timeout == 180


def test_a_target_that_can_be_imported_only_once_ends_soon(tmp_path: Path) -> None:
    flag = str(tmp_path / "called")
    target = scans(tmp_path, f"open({flag!r}, 'w'); os.abort()")
    Path(target).write_text(f"import os\nif os.path.exists({flag!r}): os.abort()\n{Path(target).read_text()}")
    results = in_workers(target, RunOptions(ops=("rev_cumsum",), dtypes=("float32",), examples=4))
    failed = [result for result in results if result.status == "failed"]
    assert len(failed) == 2 and all("ended (SIGABRT)" in (result.reason or "") for result in failed)
    (reason,) = {result.reason for result in results if result.status == "skipped"}
    assert reason is not None and reason.startswith("not tried: rev_cumsum.")


def test_what_was_found_before_a_process_ended_is_kept(tmp_path: Path) -> None:
    body = "os.abort() if x.shape[-1] > 1000 else None; x = x[..., ::-1] if x.ndim == 2 else x"
    options = RunOptions(ops=("rev_cumsum",), laws=("value",), dtypes=("float32",), examples=12)
    (result,) = in_workers(scans(tmp_path, body), options)
    assert {found.kind.nature for found in result.counterexamples} == {"number", "abort"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def rev_cumsum(x) return x", "SyntaxError"),
        ("import no_such_module_at_all", "No module named 'no_such_module_at_all'"),
        ("import sys\nsys.exit(0)", "sys.exit(0)"),
        ("import os\nos.abort()", "SIGABRT"),
        ("raise KeyError('k')", "KeyError: 'k'"),
    ],
)
def test_a_target_that_cannot_be_imported_is_told_with_its_own_traceback(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "target.py"
    path.write_text(text)
    pool = Workers(str(path), None, "cpu", 60.0)
    with pytest.raises(TargetFailedError) as raised:
        pool.info()
    assert said in str(raised.value) and "conformance" not in str(raised.value).replace(str(tmp_path), "")


def test_an_accelerator_or_little_work_means_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    target = load("reference", None, "cpu")
    cpu, items = info_of(target, None), agenda(target, RunOptions())
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert usual_jobs(cpu, items) == 2
    assert usual_jobs(replace(cpu, device="cuda"), items) == 1 and usual_jobs(cpu, items[:5]) == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert usual_jobs(cpu, items) == 1


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
    assert process.returncode == 130 and b"Interrupted while judging" in said, said
