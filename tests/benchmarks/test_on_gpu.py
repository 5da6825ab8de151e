"""``benchmarks/on_gpu.sh``: its stages, time, archive and exit status, and rehearsals of what may go wrong on a GPU."""

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from itertools import chain
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import calls, large, running, sanitize, stages
from benchmarks.gpu import tests as sharded
from benchmarks.gpu.processes import descendants
from benchmarks.gpu.shard import records
from benchmarks.gpu.stages import STAGES, Stage
from conformance.laws import all_laws

ROOT = Path(__file__).resolve().parents[2]
SLEEP = "import time; time.sleep(60)"


def stage(*codes: str, summary=lambda directory: "fine", **options) -> Stage:
    return Stage(lambda directory, dry: [["-c", code] for code in codes], summary, **options)


def run(one: Stage, directory: Path, limit: float = 60.0) -> running.Outcome:
    return running.run("some", one, directory, dry=False, limit=limit)


def test_a_stage_that_passes_leaves_its_log_and_its_outcome(tmp_path) -> None:
    outcome = run(stage("print('hello')", "print('again')"), tmp_path)
    assert (outcome.status, outcome.summary) == ("passed", "fine")
    assert "hello" in (tmp_path / "some.log").read_text() and "again" in (tmp_path / "some.log").read_text()
    assert json.loads((tmp_path / "some.outcome.json").read_text())["status"] == "passed"


def test_one_command_that_fails_fails_its_stage_and_ends_nothing(tmp_path) -> None:
    outcome = run(stage("raise SystemExit(3)", "print('still here')"), tmp_path)
    assert outcome.status == "failed"
    assert "still here" in (tmp_path / "some.log").read_text()


@pytest.mark.parametrize("together", [1, 2])
def test_what_takes_too_long_is_stopped(together, tmp_path) -> None:
    started = time.monotonic()
    outcome = run(stage(SLEEP, SLEEP, together=together), tmp_path, limit=1.5)
    assert outcome.status == "too long" and time.monotonic() - started < 20
    assert "stopped after" in (tmp_path / "some.log").read_text()


@pytest.mark.parametrize("name", ["calls", "kernels", "mlstm", "sanitize", "large", "conformance"])
def test_a_stage_without_a_result_has_not_passed(name, tmp_path) -> None:
    outcome = run(stage("pass", summary=STAGES[name].summary), tmp_path)
    assert outcome.status == "failed" and "left no result" in outcome.summary


def test_kernels_that_were_not_carried_are_counted(tmp_path, monkeypatch) -> None:
    cache = tmp_path / "triton"
    (cache / "old").mkdir(parents=True)
    (cache / "old" / "a.cubin").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    new = f"from pathlib import Path; p = Path({str(cache)!r}, 'new'); p.mkdir(); (p / 'b.cubin').touch()"
    assert run(stage(new), tmp_path).summary == "fine; 1 kernels compiled here"
    assert run(stage("pass"), tmp_path).summary == "fine"


def test_a_stage_takes_its_share_of_what_is_left() -> None:
    three = {"a": stage(share=20), "b": stage(share=60), "c": stage(share=120)}
    assert running.limits(three, 0, 400.0) == 40.0
    # The first took nothing: the second and third share it.
    assert running.limits(three, 1, 360.0) == 120.0
    assert running.limits(three, 2, 90.0) == 90.0
    assert sum(one.share for one in STAGES.values() if one.usual) <= running.SECONDS


WRONG = stage("raise SystemExit(1)", summary=lambda directory: "1 calls returned; wrong: gru float16 output 3.0e-01")
REHEARSALS = {
    "wrong": (WRONG, "failed", "wrong: gru float16 output"),
    "hang": (stage(SLEEP), "too long", "fine"),
    "crash": (stage("import os; os.abort()"), "failed", "fine"),
    "missing": (stage("pass", needs=("torch", "no_such_module")), "missing", "needs no_such_module"),
}


@pytest.mark.parametrize("name", REHEARSALS)
def test_a_run_ends_with_a_table_an_archive_and_a_status(name, tmp_path, monkeypatch, capsys) -> None:
    bad, status, summary = REHEARSALS[name]
    monkeypatch.setattr(running, "STAGES", {"good": stage("pass"), "bad": bad, "last": stage("pass")})
    assert running.main([str(tmp_path / "out"), "--seconds", "9"]) == 1
    good, ill, last = capsys.readouterr().out.splitlines()[-3:]
    assert good.startswith("good  passed") and last.startswith("last  passed")
    assert ill.startswith(f"bad   {status}") and summary in ill
    assert (tmp_path / "out" / running.TABLE).read_text().splitlines() == [good, ill, last]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {running.ARCHIVE, running.TABLE}
    with tarfile.open(tmp_path / "out" / running.ARCHIVE) as archive:
        names = set(archive.getnames())
    assert {"good.outcome.json", "bad.outcome.json", "last.outcome.json", running.TABLE} <= names


def test_stages_are_named_and_status_0_says_that_all_passed(tmp_path, monkeypatch, capsys) -> None:
    some = {"good": stage("pass"), "bad": stage("raise SystemExit(1)"), "rare": stage("pass", usual=False)}
    monkeypatch.setattr(running, "STAGES", some)
    assert running.main([str(tmp_path), "good", "rare"]) == 0
    assert running.main([str(tmp_path)]) == 1
    assert "rare" not in (tmp_path / running.TABLE).read_text()
    with pytest.raises(SystemExit) as error:
        running.main([str(tmp_path), "other"])
    assert error.value.code == 2
    assert "there is no stage 'other'; expected some of good, bad, rare" in capsys.readouterr().err


RUN = """
import sys
from benchmarks.gpu import running
from benchmarks.gpu.stages import Stage
nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
one = lambda code: Stage(lambda directory, dry: [["-c", code]], lambda directory: "fine")
running.STAGES = {"good": one("pass"), "slow": one(nested), "last": one("pass")}
sys.exit(running.main(sys.argv[1:]))
"""


def slow_run(tmp_path) -> tuple[subprocess.Popen, list[int]]:
    """A run that is in its second stage, and its descendants."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path)], env=environment, stdout=subprocess.PIPE)
    end = time.monotonic() + 30
    while len(below := descendants(started.pid)) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    assert len(below) == 2
    return started, below


def gone(pids: list[int]) -> bool:
    end = time.monotonic() + 10
    while any(exists(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(exists(pid) for pid in pids)


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks at /proc")


@needs_proc
def test_a_run_that_is_ended_keeps_what_it_has_and_stops_its_children(tmp_path) -> None:
    started, below = slow_run(tmp_path)
    started.terminate()
    output, _ = started.communicate(timeout=30)
    assert started.returncode == 1
    assert output.decode().splitlines()[-1].startswith("last  no time")
    assert (tmp_path / running.TABLE).read_text().startswith("good  passed")
    assert gone(below)


@needs_proc
def test_children_end_with_a_run_that_is_killed(tmp_path) -> None:
    started, below = slow_run(tmp_path)
    started.send_signal(signal.SIGKILL)
    started.communicate(timeout=30)
    assert gone(below[:1])
    for pid in below[1:]:
        if exists(pid):
            os.kill(pid, signal.SIGKILL)
    with tarfile.open(tmp_path / running.ARCHIVE) as archive:
        assert "good.outcome.json" in archive.getnames()


TESTS = """
import os, time
def test_passes(): pass
def test_fails(): assert 1 == 2
def test_hangs(): time.sleep(60)
def test_crashes(): os.abort()
def test_loses_the_gpu(): raise RuntimeError("CUDA error: an illegal memory access was encountered")
def test_after_them(): pass
"""
LOST = "from benchmarks.gpu import shard\nshard._context_is_lost = lambda: True\n"


def test_tests_go_on_after_a_hang_a_crash_and_a_lost_gpu(tmp_path, monkeypatch) -> None:
    folder, out, tools = tmp_path / "folder", tmp_path / "out", tmp_path / "tools"
    for each in (folder, out, tools):
        each.mkdir()
    (folder / "test_many.py").write_text(TESTS)
    (folder / "conftest.py").write_text(LOST)
    (tools / "compute-sanitizer").write_text('#!/bin/sh\necho "sanitized $@"\n')
    (tools / "compute-sanitizer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(ROOT)
    assert sharded.main(["kernels", str(out), str(folder), "--limit", "3"]) == 1
    outcomes = {row["test"].rpartition("::")[2]: row["outcome"] for row in records(out / "kernels-0.jsonl")}
    assert outcomes == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_hangs": "hung",
        "test_crashes": "crashed (status -6)",
        "test_loses_the_gpu": "context lost",
        "test_after_them": "passed",
    }
    log = (out / "kernels-0.log").read_text()
    assert "test_many.py::test_hangs" in log and "Timeout (0:00:03)!" in log and "in test_hangs" in log
    assert "test_many.py::test_loses_the_gpu" in (out / "kernels-0.sanitizer.log").read_text()
    assert stages._tests_summary("kernels", out).startswith("2 passed, 1 failed, 1 hung, 1 crashed (status -6), 1 cont")


def test_processes_share_the_tests(tmp_path, monkeypatch) -> None:
    (tmp_path / "test_many.py").write_text("def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(ROOT)
    assert sharded.main(["some", str(tmp_path), str(tmp_path), "--shards", "2"]) == 0
    tests = [{row["test"][-1] for row in records(tmp_path / f"some-{n}.jsonl")} for n in range(2)]
    assert tests == [{"a", "c"}, {"b"}]
    (tmp_path / "test_many.py").write_text("1 / 0")
    assert sharded.main(["broken", str(tmp_path), str(tmp_path)]) == 1


def test_the_script_says_how_it_is_called(tmp_path) -> None:
    script = ["bash", str(ROOT / "benchmarks" / "on_gpu.sh")]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 2 and "bash benchmarks/on_gpu.sh DIR [--seconds N] [--dry-run] [STAGE …]" in done.stderr
    assert all(name in done.stderr for name in STAGES)


@pytest.mark.long
def test_the_whole_script_runs_dry(tmp_path) -> None:
    """Every stage, as far as a CPU can run it, and what is taken home from it."""
    environment = {**os.environ, "PYTHON": sys.executable}
    command = ["bash", str(ROOT / "benchmarks" / "on_gpu.sh"), str(tmp_path / "out"), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(tmp_path / "out" / running.ARCHIVE) as archive:
        archive.extractall(tmp_path / "home", filter="data")
    assert json.loads((tmp_path / "home" / "versions.json").read_text())["torch"] == importlib.metadata.version("torch")
    assert len(json.loads((tmp_path / "home" / "large.json").read_text())) == 4
    # A package to compare with that was not carried is a row that says so.
    rows = json.loads((tmp_path / "home" / "mlstm-mlstm_kernels.json").read_text())["rows"]
    assert any("is not installed" in (row["reason"] or "") for row in rows if not row["own"])


def test_the_page_has_every_stage_with_its_share() -> None:
    rows = re.findall(r"^\| (`[^|]+) \| ([\d, ]+) \|", (ROOT / "docs" / "on-a-gpu.md").read_text(), re.MULTILINE)
    found = {
        name.strip("`"): float(share)
        for names, shares in rows
        for name, share in zip(names.split(", "), shares.split(", "), strict=True)
    }
    assert found == {name: one.share for name, one in STAGES.items() if one.usual}


def test_every_stage_is_commands_that_exist(tmp_path) -> None:
    for name, one in STAGES.items():
        for dry in (False, True):
            for module, *_ in (command[1:] for command in one.commands(tmp_path, dry)):
                assert module.partition(".")[0] in ("conformance", "benchmarks"), name
    assert {*stages.CALLS} == {*calls.CALLS}
    assert {*chain.from_iterable(stages.DEVICE_LAWS.values())} <= {law.name for law in all_laws()}


@pytest.mark.parametrize("name", ["kernels", "pallas"])
def test_the_tests_of_kernels_run_on_the_gpu(name, tmp_path) -> None:
    """There are tests of nothing but an interpreter."""
    (words,) = STAGES[name].commands(tmp_path, False)
    folder = Path(words[4])
    assert folder.name == "kernels" and (folder / "test_interpreter.py").exists()
    assert words[words.index("--ignore") + 1] == "test_interpreter.py"
    assert words[words.index("--shards") + 1] == str(stages._cores())


def test_a_call_that_is_wrong_fails(monkeypatch, tmp_path) -> None:
    path = tmp_path / "call-rev_cumsum.json"
    words = ["rev_cumsum", "--device", "cpu", "--tiny", "--dtype", "float32", "--json", str(path)]
    assert calls.main(words) == 0
    right = calls.by_torch
    monkeypatch.setattr(calls, "by_torch", lambda *x, **options: {k: 1.01 * y for k, y in right(*x, **options).items()})
    assert calls.main(words) == 1
    assert stages._calls_summary("call", tmp_path).startswith("1 calls returned; wrong: rev_cumsum float32 gradient 0")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("========= ERROR SUMMARY: 0 errors", "0 errors"),
        ("========= ERROR SUMMARY: 3 errors", "3 errors"),
        ("========= RACECHECK SUMMARY: 1 hazard displayed", "1 errors"),
        ("", "no summary (status 0)"),
    ],
)
def test_a_sanitizers_summary_is_read(text, found, tmp_path, monkeypatch, capsys) -> None:
    assert sanitize.check("memcheck", "gru-16") == "compute-sanitizer is not on the PATH"
    (tmp_path / "compute-sanitizer").write_text(f'#!/bin/sh\necho "{text}"\n')
    (tmp_path / "compute-sanitizer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert sanitize.main(["memcheck", "gru-16", "--json", str(tmp_path / "sanitize-memcheck-gru.json")]) == int(
        found != "0 errors"
    )
    assert found in stages._sanitize_summary(tmp_path)


def test_a_last_sequence_that_differs_is_found() -> None:
    x = torch.ones(3, 4, requires_grad=True)
    # A sum that takes the batch along.
    wrong = large._compare("sum", lambda x: x.cumsum(0), [x.detach()], torch.ones(3, 4))
    right = large._compare("sum", lambda x: x.cumsum(1), [x.detach()], torch.ones(3, 4))
    assert not wrong.passed and "differ by" in wrong.found
    assert right.passed and right.found == "equal" and right.elements == 12
