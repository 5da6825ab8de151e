"""``benchmarks/on_gpu.sh``: its stages, limits and exit status, with commands that need no GPU."""

import importlib.metadata
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import large
from benchmarks.gpu import stages as on_gpu

ROOT = Path(__file__).resolve().parents[2]


def stage(*codes: str, summary=lambda directory: "fine", **options) -> on_gpu.Stage:
    return on_gpu.Stage(lambda directory, dry: [["-c", code] for code in codes], summary, **options)


def test_a_stage_that_passes_leaves_its_log_and_its_outcome(tmp_path) -> None:
    outcome = on_gpu.run("some", stage("print('hello')", "print('again')"), tmp_path, dry=False)
    assert (outcome.status, outcome.summary) == ("passed", "fine")
    assert "hello" in (tmp_path / "some.log").read_text() and "again" in (tmp_path / "some.log").read_text()
    assert json.loads((tmp_path / "some.outcome.json").read_text())["status"] == "passed"


def test_one_command_that_fails_fails_its_stage_and_ends_nothing(tmp_path) -> None:
    outcome = on_gpu.run("some", stage("raise SystemExit(3)", "print('still here')"), tmp_path, dry=False)
    assert outcome.status == "failed"
    assert "still here" in (tmp_path / "some.log").read_text()


@pytest.mark.parametrize("together", [False, True])
def test_what_takes_too_long_is_stopped(together, tmp_path) -> None:
    started = time.monotonic()
    slow = stage("import time; time.sleep(60)", "import time; time.sleep(60)", together=together)
    outcome = on_gpu.run("some", slow, tmp_path, dry=False, limit=0.5)
    assert outcome.status == "too long" and time.monotonic() - started < 20
    assert "stopped after" in (tmp_path / "some.log").read_text()


def test_a_stage_without_a_result_has_not_passed(tmp_path) -> None:
    nothing = on_gpu.STAGES["kernels"].summary, on_gpu.STAGES["mlstm"].summary, on_gpu.STAGES["conformance"].summary
    for summary in (on_gpu._large_summary, *nothing):
        outcome = on_gpu.run("some", stage("pass", summary=summary), tmp_path, dry=False)
        assert outcome.status == "failed" and "left no result" in outcome.summary


def test_what_is_missing_is_named(tmp_path) -> None:
    outcome = on_gpu.run("some", stage("pass", needs=("torch", "no_such_module")), tmp_path, dry=False)
    assert (outcome.status, outcome.summary) == ("missing", "needs no_such_module")


def test_the_exit_status_and_the_table(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(
        on_gpu, "STAGES", {"good": stage("pass"), "bad": stage("raise SystemExit(1)"), "last": stage("pass")}
    )
    assert on_gpu.main([str(tmp_path)]) == 1
    good, bad, last = capsys.readouterr().out.splitlines()[-3:]
    assert good.startswith("good  passed") and bad.startswith("bad   failed") and last.startswith("last  passed")
    assert on_gpu.main([str(tmp_path), "good", "last"]) == 0
    with pytest.raises(SystemExit) as error:
        on_gpu.main([str(tmp_path), "other"])
    assert error.value.code == 2
    assert "there is no stage 'other'; expected some of good, bad, last" in capsys.readouterr().err


def test_the_script_says_how_it_is_called(tmp_path) -> None:
    script = ["bash", str(ROOT / "benchmarks" / "on_gpu.sh")]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 2 and "bash benchmarks/on_gpu.sh DIR [STAGE …]" in done.stderr
    assert all(name in done.stderr for name in on_gpu.STAGES)
    environment = {**os.environ, "PYTHON": sys.executable}
    command = [*script, str(tmp_path / "out"), "--dry-run", "versions", "large"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "out" / "versions.json").read_text())["torch"] == importlib.metadata.version("torch")
    assert len(json.loads((tmp_path / "out" / "large.json").read_text())) == 4


def test_every_stage_is_commands_that_exist(tmp_path) -> None:
    for name, one in on_gpu.STAGES.items():
        for dry in (False, True):
            for module, *_ in (command[1:] for command in one.commands(tmp_path, dry)):
                assert module.partition(".")[0] in ("pytest", "conformance", "benchmarks"), name


@pytest.mark.parametrize("name", ["kernels", "pallas"])
def test_the_tests_of_kernels_run_on_the_gpu(name, tmp_path) -> None:
    """The tests' own conftest keeps JAX to the CPU, and there are tests of nothing but an interpreter."""
    commands = on_gpu.STAGES[name].commands(tmp_path, False)
    assert len(commands) == on_gpu._cores()
    for words in commands:
        cut = Path(words[words.index("--confcutdir") + 1])
        assert cut.name == "kernels" and Path(words[-1]) == cut and cut.is_dir()
        assert f"--ignore={cut / 'test_interpreter.py'}" in words


def test_shards_share_the_tests(tmp_path) -> None:
    (tmp_path / "test_many.py").write_text("def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass\n")
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", ".", "-p", "benchmarks.gpu.shard"]
    counts = []
    for number in range(2):
        words = [*command, "-q", "-p", "no:cacheprovider", f"--shard={number}/2", str(tmp_path / "test_many.py")]
        done = subprocess.run(
            words, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        counts.append(done.stdout.splitlines()[-1])
    assert counts[0].startswith("2 passed, 1 deselected") and counts[1].startswith("1 passed, 2 deselected")


def test_a_last_sequence_that_differs_is_found() -> None:
    x = torch.ones(3, 4, requires_grad=True)
    # A sum that takes the batch along.
    wrong = large._compare("sum", lambda x: x.cumsum(0), [x.detach()], torch.ones(3, 4))
    right = large._compare("sum", lambda x: x.cumsum(1), [x.detach()], torch.ones(3, 4))
    assert not wrong.passed and "differ by" in wrong.found
    assert right.passed and right.found == "equal" and right.elements == 12
