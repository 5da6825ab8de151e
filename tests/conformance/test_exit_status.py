"""Whatever a target does, the command ends with a sentence and the right exit status."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conformance.cli import main

SCAN = """
import os, sys
import numpy as np
from reference import rev_cumsum as exact

def rev_cumsum(x):
    {body}
    return exact(x)

def rev_cumsum_backward(x, *, dy):
    return {{"x": {factor} * np.cumsum(dy, axis=-1, dtype=np.float64)}}
"""
ARGUMENTS = ("--op", "rev_cumsum", "--quick", "--jobs", "1", "--timeout", "3")


def run(directory: Path, text: str, *arguments: str) -> Result:
    path = directory / "kernel.py"
    path.write_text(text)
    return CliRunner().invoke(main, ["run", str(path), *ARGUMENTS, "--failures", str(directory / "f"), *arguments])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("if x.size > 20: sys.exit(0)", "called sys.exit(0)"),
        ("if x.size > 20: os._exit(0)", "ended the process (exit status 0)"),
        ("if x.size > 20: os.abort()", "ended the process (SIGABRT)"),
        ("while x.size > 20: pass", "did not return"),
    ],
    ids=["sys.exit", "os._exit", "abort", "hang"],
)
def test_a_call_that_ends_or_never_ends_is_a_failure(tmp_path: Path, body: str, said: str) -> None:
    report = tmp_path / "report.json"
    result = run(tmp_path, SCAN.format(body=body, factor=1), "--json", str(report))
    assert result.exit_code == 1 and said in result.output, result.output
    (told,) = json.loads(report.read_text())
    value = next(law for law in told["laws"] if law["law"] == "value")
    assert said in value["counterexample"]["problem"] and value["counterexample"]["stored"]["kind"] == "SumCase"
    # The script is there too, for whoever wants to see it alone.
    assert value["counterexample"]["script"] is not None


def test_a_wrong_gradient_behind_a_refusal_exits_1(tmp_path: Path) -> None:
    refusal = "if x.shape[-1] == 0: raise NotImplementedError('no steps')"
    text = SCAN.format(body=refusal, factor=2).replace("dy):", f"dy):\n    {refusal}")
    result = run(tmp_path, text)
    assert result.exit_code == 1 and "gradient of x" in result.output
    assert run(tmp_path, text.replace("2 * np", "np")).exit_code == 0


FAILING_SUITE = """
import conformance.laws.checker as checker
planted = compile("def failing(self, *given): raise KeyError('cu_seqlens')", checker.__file__, "exec")
exec(planted, vars(checker))
checker.Checker.vjp = checker.failing
"""


def test_an_exception_of_the_suite_accuses_no_target(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    text = FAILING_SUITE + SCAN.format(body="", factor=1)
    result = run(tmp_path, text, "--json", str(report))
    assert result.exit_code == 3, result.output
    assert "the suite itself raised KeyError: 'cu_seqlens' (checker.py:1)" in result.output
    (told,) = json.loads(report.read_text())
    assert told["summary"]["failed"] == 0 and told["summary"]["suite_failed"] > 0 and not told["causes"]
    # What is seen to be wrong stays wrong.
    assert run(tmp_path, text.replace("return exact(x)", "return -exact(x)")).exit_code == 1
    # The same exception of the target is its own.
    raising = SCAN.format(body="raise KeyError('cu_seqlens')", factor=1)
    assert run(tmp_path, raising, "--law", "value").exit_code == 1


def test_a_law_that_is_not_served_fails_under_strict_alone(tmp_path: Path) -> None:
    text = SCAN.format(body="if x.dtype == np.float32: raise NotImplementedError('float64 only')", factor=1)
    both = ("--dtype", "float32", "--dtype", "float64")
    served = run(tmp_path, text, *both)
    assert served.exit_code == 0 and "not served" in served.output
    assert run(tmp_path, text, *both, "--strict").exit_code == 1
    alone = run(tmp_path, text, "--dtype", "float32", "--law", "value")
    assert alone.exit_code == 2 and "no law was judged" in alone.output


def test_only_values_and_only_gradients(tmp_path: Path) -> None:
    text = SCAN.format(body="pass", factor=2)
    assert run(tmp_path, text, "--only", "values").exit_code == 0
    assert run(tmp_path, text, "--only", "gradients").exit_code == 1


def test_a_framework_that_was_guessed_is_said_first(tmp_path: Path) -> None:
    first = run(tmp_path, SCAN.format(body="pass", factor=1)).output.splitlines()[0]
    assert first.endswith("as numpy (guessed from its imports; --framework overrides it)")
    assert "guessed" not in run(tmp_path, SCAN.format(body="pass", factor=1), "--framework", "numpy").output


PLAIN = "if x.shape == (8,){once}: {end}"
"""No law draws this call; it is the first with which causes are looked for."""


@pytest.mark.parametrize(
    "end", ["os._exit(3)", "os.abort()", "time.sleep(60)", "sys.exit(3)"], ids=["exit", "abort", "hang", "sys.exit"]
)
def test_causes_are_found_of_a_target_that_dies_while_they_are_looked_for(tmp_path: Path, end: str) -> None:
    flag = tmp_path / "died"
    body = PLAIN.format(once=f" and not os.path.exists({str(flag)!r})", end=f"open({str(flag)!r}, 'w'); {end}")
    report = tmp_path / "report.json"
    text = SCAN.format(body=body, factor=2).replace("import os", "import time, os")
    result = run(tmp_path, text, "--json", str(report))
    assert flag.exists() and result.exit_code == 1, result.output
    (told,) = json.loads(report.read_text())
    assert "gradient of x is 2 × what it should be" in told["causes"][0]["sentence"]
    assert told["causes"][0]["explains"] == [{"id": "rev_cumsum.gradient", "dtype": "float32"}]


def test_a_target_that_keeps_dying_while_causes_are_looked_for_is_reported_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(SCAN.format(body="if x.shape == (16,): os.abort()", factor=2))
    words = ["--op", "rev_cumsum", "--law", "gradient", "--dtype", "float32", "--examples", "8", "--max-steps", "13"]
    result = CliRunner().invoke(main, ["run", str(tmp_path / "kernel.py"), *words, "--failures", str(tmp_path / "f")])
    said = " ".join(result.output.split())
    assert result.exit_code == 1 and "the process that looked for causes ended 4 times" in said, result.output
    assert "breaks the law “gradient”" in said


def test_a_quick_run_saves_scripts_and_runs_none(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    run(tmp_path, SCAN.format(body="x = x + 1", factor=2), "--json", str(report))
    (told,) = json.loads(report.read_text())
    found = [each for law in told["laws"] for each in law["counterexamples"]]
    assert {each["script_note"] for each in found} == {"not run, to save time in a quick run"}
    assert len(found) > 1 and all(Path(each["script"]).exists() for each in found)


UNKIND = """
import argparse
import numpy as np
from reference import rev_cumsum as exact

argparse.ArgumentParser().parse_args()
print("imported → ✓", flush=True)

def rev_cumsum(x):
    print("called", flush=True)
    return exact(x)
"""


def started(path: Path, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    path.write_text(UNKIND)
    selected = ("--op", "rev_cumsum", "--law", "value", "--quick", "--jobs", "1", "--failures", str(path.parent / "f"))
    return subprocess.Popen(
        [sys.executable, "-m", "conformance", "run", str(path), *selected, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
    )


def test_a_target_that_parses_arguments_and_an_encoding_without_signs(tmp_path: Path) -> None:
    process = started(tmp_path / "kernel.py", PYTHONIOENCODING="ascii")
    output = process.communicate()[0].decode("ascii")
    assert process.returncode == 0, output
    assert r"imported \u2192 \u2713" in output and r"\u2713" in output.partition("rev_cumsum")[2]


def test_a_reader_that_leaves_does_not_change_the_verdict(tmp_path: Path) -> None:
    process = started(tmp_path / "kernel.py", "--json", str(tmp_path / "report.json"))
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait() == 0
    assert json.loads((tmp_path / "report.json").read_text())[0]["summary"]["passed"] == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize(("status", "change"), [(2, ""), (1, "x = x + 1")], ids=["held", "broken"])
def test_a_full_disk_makes_no_law_broken_and_no_run_a_success(tmp_path: Path, status: int, change: str) -> None:
    path, report = tmp_path / "kernel.py", tmp_path / "report.json"
    path.write_text(SCAN.format(body=change or "pass", factor=1))
    selected = ("--law", "rev_cumsum.value", "--quick", "--jobs", "1", "--failures", str(tmp_path / "f"))
    with Path("/dev/full").open("wb") as full:
        process = subprocess.run(
            [sys.executable, "-m", "conformance", "run", str(path), *selected, "--json", str(report)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert process.returncode == status, process.stderr
    assert process.stderr == "Error: standard output is incomplete: No space left on device\n"
    assert json.loads(report.read_text())[0]["summary"]["passed"] == (status == 2)


@pytest.mark.parametrize("factor", [1, 2])
def test_settings_that_a_call_changes_do_not_disturb_the_suite(tmp_path: Path, factor: int) -> None:
    change = "import warnings; warnings.simplefilter('error'); sys.setrecursionlimit(4321); os.chdir('/')"
    text = SCAN.format(body=change, factor=factor)
    before = os.getcwd()
    result = run(tmp_path, text)
    assert result.exit_code == factor - 1 and "Traceback" not in result.output, result.output
    assert os.getcwd() == before and "rev_cumsum" in result.output
