"""``gatespec``: exit statuses, reports, targets, and what a wrong call is told to type instead."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner, Result

import reference
from conformance import __version__
from conformance.base.options import EXAMPLES, INTERPRETED_EXAMPLES, INTERPRETED_STEPS, MAX_STEPS, RunOptions
from conformance.cli import main
from conformance.judge.outcome import LawResult
from conformance.judge.selection import options_of
from conformance.laws import Kind, all_laws
from conformance.report import TargetReport
from tests.conformance.judging import in_terminal

ROOT = Path(reference.__file__).resolve().parents[1]
QUICK = ("--op", "rev_cumsum", "--dtype", "float32", "--examples", "4", "--max-steps", "33")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


SCANS = """
import numpy as np
from reference import rev_cumsum as exact

def rev_cumsum(x):
    return {value}

def rev_cumsum_backward(x, *, dy):
    return {{"x": np.cumsum(dy, axis=-1, dtype=np.float64)}}
"""


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "third_party.py"
    path.write_text(SCANS.format(value="exact(x)[..., ::-1]"))
    return path


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "sound.py"
    path.write_text(SCANS.format(value="exact(x)"))
    return path


def test_a_target_that_holds_every_law_exits_0_and_is_reported(tmp_path: Path) -> None:
    paths = {kind: tmp_path / f"report.{kind}" for kind in ("json", "html")}
    options = [word for kind, path in paths.items() for word in (f"--{kind}", str(path))]
    result = invoke("run", "reference", *QUICK, *options)
    assert result.exit_code == 0, result.output
    (report,) = json.loads(paths["json"].read_text())
    assert {"target", "versions", "device", "seed", "summary", "laws"} <= set(report)
    assert report["target"] == "reference" and report["seed"] == 0 and report["device"] == "cpu"
    assert {"passed", "failed", "skipped"} <= set(report["summary"])
    passed = [law for law in report["laws"] if law["status"] == "passed"]
    assert report["summary"]["passed"] == len(passed) > 0 and report["summary"]["failed"] == 0
    for law in passed:
        fields = {"id", "op", "law", "kind", "dtype", "status", "reason", "examples", "worst_error", "counterexample"}
        assert fields <= set(law)
        assert law["id"] == f"{law['op']}.{law['law']}" and law["examples"] > 0
    page = paths["html"].read_text()
    assert "reference" in page and "://" not in page and "<script" not in page


@pytest.mark.parametrize("quick", [("--quick",), ()], ids=["quick", "whole"])
def test_the_script_of_a_cause_is_of_the_case_that_it_shows(quick: tuple[str, ...], tmp_path: Path) -> None:
    target, report = tmp_path / "flawed.py", tmp_path / "report.json"
    target.write_text(SCANS.format(value="exact(x) if x.shape[-1] % 8 else exact(x)[..., ::-1]"))
    options = ("--law", "value", "--dtype", "float32", "--failures", str(tmp_path / "scripts"), "--json", str(report))
    assert invoke("run", str(target), "--op", "rev_cumsum", *options, *quick).exit_code == 1
    (cause,) = json.loads(report.read_text())[0]["causes"]
    said = " ".join(Path(cause["script"]).read_text().split())
    assert f"The smallest case found: {cause['case']}. Exit status 1" in said
    done = subprocess.run([sys.executable, cause["script"]], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "rev_cumsum.value is broken" in done.stderr, done.stderr


def test_a_broken_file_outside_the_repository_exits_1_and_is_explained(broken: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "conformance", "run", str(broken), "--dtype", "float32", "--examples", "5"]
    command += ["--op", "rev_cumsum", "--op", "mlstm"]
    report, page = (tmp_path / name for name in ("report.json", "page.html"))
    done = subprocess.run(
        [*command, "--json", str(report), "--html", str(page)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "✗ rev_cumsum.value in float32: The value is the reference's." in done.stdout
    for said in ("y_t = Σ_{s≥t} x_s", "times its tolerance", "reports/failures/", "ran once and failed again"):
        assert said in done.stdout
    assert f"gatespec run {broken} --op rev_cumsum --law value --dtype float32 --seed 0" in done.stdout
    assert re.search("absent: .*mlstm", done.stdout)
    (entry,) = json.loads(report.read_text())
    value = next(law for law in entry["laws"] if law["id"] == "rev_cumsum.value")
    assert value["status"] == "failed" and value["worst_error"] > 1
    assert "S=2" in value["counterexample"]["case"], "the smallest sequence that can be reversed has two steps"
    assert "rev_cumsum.value" in page.read_text()


def test_a_run_leaves_no_semaphore_of_its_target(sound: Path) -> None:
    sound.write_text(f"import multiprocessing\n{sound.read_text()}\nLOCK = multiprocessing.RLock()\n")
    command = [sys.executable, "-m", "conformance", "run", str(sound), *QUICK]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "leaked" not in done.stderr, done.stderr


def test_the_command_in_a_failure_reproduces_it(broken: Path) -> None:
    first = invoke("run", str(broken), "--op", "rev_cumsum", "--law", "value", "--dtype", "float32", "--examples", "7")
    (line,) = [line for line in first.output.splitlines() if "gatespec run" in line]
    again = invoke(*line.split("gatespec ")[1].split())
    problem = [line for line in first.output.splitlines() if line.startswith("    got")]
    assert problem and problem[0] in again.output and again.exit_code == 1


def test_the_command_works_next_to_a_package_of_the_same_name(tmp_path: Path) -> None:
    """``python -m conformance`` would take that package."""
    command = Path(sys.executable).with_name("gatespec")
    if not command.exists():
        pytest.skip("gatespec is not installed")
    (tmp_path / "conformance").mkdir()
    (tmp_path / "conformance" / "__init__.py").write_text("")
    done = subprocess.run([command, "laws"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "mlstm.value" in done.stdout, done.stderr


@pytest.mark.parametrize(("typed", "found"), [("ru", "plain,run"), ("run --known", "plain,--known-failures")])
def test_tab_completes_commands_and_options(typed: str, found: str) -> None:
    environment = {"_GATESPEC_COMPLETE": "bash_complete", "COMP_WORDS": f"gatespec {typed}"}
    environment["COMP_CWORD"] = str(len(typed.split()))
    code = "import sys; sys.argv = ['gatespec']; from conformance.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == [found], done.stderr
    assert "_GATESPEC_COMPLETE=bash_source gatespec" in invoke("--help").output


def test_the_version_is_that_of_the_package() -> None:
    assert invoke("--version").output == f"gatespec, version {__version__}\n"


def test_one_broken_target_among_several_exits_1(broken: Path, sound: Path) -> None:
    result = invoke("run", str(sound), str(broken), "--op", "rev_cumsum", "--law", "value", "--examples", "3")
    assert result.exit_code == 1
    assert "sound.py:4passed,0failed" in "".join(result.output.split())


def test_a_skip_is_no_failure_unless_strict(sound: Path) -> None:
    arguments = ("run", str(sound), "--op", "rev_cumsum", "--dtype", "float64", "--examples", "2")
    assert "absent: rev_cumsum_off" in invoke(*arguments).output
    assert invoke(*arguments).exit_code == 0
    assert invoke(*arguments, "--strict").exit_code == 1


def test_no_law_at_all_exits_2(sound: Path) -> None:
    result = invoke("run", str(sound), "--op", "gru", "--examples", "2")
    assert result.exit_code == 2 and "no law was judged on" in result.output


def test_a_numpy_target_without_a_backward_has_its_gradient_laws_skipped(tmp_path: Path) -> None:
    path = tmp_path / "forward.py"
    path.write_text("from reference import rev_cumsum\n")
    result = invoke("run", str(path), "--op", "rev_cumsum", "--dtype", "float64", "--examples", "2")
    assert result.exit_code == 0
    said = " ".join(result.output.split())
    assert "checks left out" in said and "only if it offers rev_cumsum_backward" in said


@pytest.mark.parametrize("target", ["reference:rev_cumsum", "reference._scan"])
def test_a_function_and_a_module_are_targets(target: str) -> None:
    result = invoke("run", target, "--op", "rev_cumsum", "--law", "value", "--examples", "2")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("stem", "held"),
    [("kernel", "class Fast:\n    rev_cumsum = staticmethod(wrong)"), ("a-kernel", "Fast = {'rev_cumsum': wrong}")],
)
def test_an_attribute_of_a_file_is_a_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stem: str, held: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"{stem}.py").write_text(f"from reference import rev_cumsum\n\n\ndef wrong(x):\n    return -x\n\n\n{held}\n")
    result = invoke("run", f"{stem}.py:Fast", "--law", "value", *QUICK)
    assert result.exit_code == 1 and "ran once and failed again" in result.output, result.output
    script, *_ = (tmp_path / "reports" / "failures").glob(f"{stem.replace('-', '_')}.Fast-rev_cumsum.value-*.py")
    done = subprocess.run([sys.executable, script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "rev_cumsum.value is broken: y" in done.stderr, done.stderr
    absent = invoke("run", f"{stem}.py:Slow", *QUICK)
    assert absent.exit_code == 2 and f"{stem}.py has no attribute 'Slow'" in absent.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run",), "gatespec run torch_impl"),
        (("torch_impl",), "type: gatespec run torch_impl"),
        (("run", "no_such_module"), "a path that ends in .py"),
        (("run", "no/such/file.py"), "give the path of a Python file that exists"),
        (("run", "reference:nothing"), "reference has no attribute 'nothing'"),
        (("run", "json"), "offers none of the contract's names"),
        (("run", "reference", "--op", "mlstn"), "name one of rev_cumsum"),
        (("run", "reference", "--law", "values"), "`gatespec laws` lists the names"),
        (("run", "reference", "--op", "gru", "--law", "chunk_invariance"), "no law is named chunk_invariance"),
        (("run", "reference", "--dtype", "float8"), "'float16'"),
        (("run", "reference", "--seed", "x"), "give an integer, or `random`"),
        (("run", "reference", "--examples", "0"), "x>=1"),
        (("run", "reference", "--device", "cuda"), "leave out --device cuda"),
        (("run", "reference", "--json", "no/such/report.json"), "there is no directory no/such; make it first"),
        (("run", "reference", "--max-steps", "0"), "x>=1"),
        (("run", "reference", "--jobs", "0"), "x>=1"),
        (("run", "reference", "--jobs", "two"), "is not a valid integer"),
        (("run", "reference", "--timeout", "nan"), "--timeout"),
        (("run", "reference", "--timeout", "0"), "--timeout"),
        (("run", "reference", "--examples", "inf"), "--examples"),
        (("run", "reference", "--max-steps", "-1"), "--max-steps"),
        (("run", "reference", "--quick", "--law", "memory"), "leave out --quick"),
        (("run", "reference", "--failures", "/proc/no/such"), "give another one"),
        (("run", "reference", "--known-failures", "no/such/file.txt"), "it has lines such as: mlstm.gradient bfloat16"),
        (("run", "reference", "--json", "/proc/no/report.json"), "--json /proc/no/report.json cannot be"),
        (("run", "reference", "--framework", "keras"), "'numpy', 'torch', 'jax'"),
        (("run", "reference", "--nosuch"), "No such option"),
        (("run", "reference", "--promise", "S > 0"), "let the target raise NotImplementedError for such calls"),
        (("run", "reference", "--known", "known.txt"), "--known-failures"),
        (("laws", "--op", "mlstn"), "name one of rev_cumsum"),
    ],
)
def test_a_wrong_call_exits_2_and_says_what_to_type(arguments: tuple[str, ...], said: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


@pytest.mark.parametrize("option", ["--json", "--html", "--known-failures"])
def test_a_path_that_is_no_file_is_refused_before_anything_runs(option: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/full")):
        if path == Path("/dev/full") and option != "--known-failures":
            continue
        result = invoke("run", "reference", option, str(path))
        assert result.exit_code == 2 and str(path) in result.output, result.output


def test_a_report_that_cannot_be_written_is_no_success(sound: Path, broken: Path) -> None:
    for target, status in ((sound, 2), (broken, 1)):
        result = invoke("run", str(target), "--op", "rev_cumsum", "--quick", "--jobs", "1", "--json", "/dev/full")
        assert result.exit_code == status and "cannot be written (No space left on device)" in result.output


def test_two_options_never_write_the_same_file(tmp_path: Path) -> None:
    one, same = str(tmp_path / "a"), str(tmp_path / "." / "b" / ".." / "a")
    (tmp_path / "a").write_text("")
    for first, second in (("--json", "--html"), ("--known-failures", "--json")):
        result = invoke("run", "reference", first, one, second, same)
        assert result.exit_code == 2 and "name the same file" in result.output, result.output


def test_the_laws_are_listed_with_kind_sentence_and_equation() -> None:
    result = invoke("laws")
    said = " ".join(result.output.split())
    assert result.exit_code == 0
    for law in all_laws():
        assert f"{law.id} ({law.kind})" in said and " ".join(law.equation.split()) in said


def test_ids_are_unique_and_every_law_says_something() -> None:
    laws = all_laws()
    assert len({law.id for law in laws}) == len(laws)
    for law in laws:
        assert law.sentence.endswith(".") and law.equation and (law.cases is None) != (law.rows is None)
        assert law.kind in get_args(Kind) and law.functions


def test_a_law_whose_shapes_do_not_fit_the_steps_allowed_is_no_crash() -> None:
    pytest.importorskip("jax")
    options = ("--op", "gru", "--law", "grouped_heads", "--dtype", "float32", "--max-steps", "12", "--examples", "2")
    result = invoke("run", "jax_impl", *options)
    assert result.exit_code == 0, result.output


def test_a_missing_room_breaks_no_other_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "conformance.vectors.command", None)
    result = invoke("vectors")
    assert result.exit_code == 2 and "`vectors` needs conformance.vectors.command" in " ".join(result.output.split())
    assert invoke("--help").exit_code == 0 and invoke("laws").exit_code == 0


def test_a_quick_run_tries_values_and_gradients_alone(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    result = invoke("run", "reference", "--quick", "--op", "gru", "--op", "rev_cumsum", "--json", str(report))
    assert result.exit_code == 0, result.output
    (judged,) = json.loads(report.read_text())
    assert {"rev_cumsum.value", "gru.value", "gru.gradient"} <= {law["id"] for law in judged["laws"]}
    assert {law["dtype"] for law in judged["laws"]} == {"float32"} and judged["settings"]["quick"]
    of_gru = (law for law in judged["laws"] if law["id"].startswith("gru."))
    assert max(point["steps"] for law in of_gru for point in law["points"]) < 200


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_only_workers_import_the_framework(framework: str, tmp_path: Path) -> None:
    """An object of the framework in what a worker sends would import all of it in the command's process too."""
    version = pytest.importorskip(framework).__version__
    code = (
        "import sys\nfrom conformance.__main__ import main\n"
        f"try:\n    main()\nfinally:\n    print({framework!r} in sys.modules)"
    )
    options = ("--failures", tmp_path, "--law", "value", *QUICK)
    command = [sys.executable, "-c", code, "run", f"{framework}_impl", *map(str, options)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[-1] == "False"
    assert f"{framework} {version}" in " ".join(done.stdout.split())


def test_a_random_seed_is_printed_and_gives_the_same_run_again(sound: Path, tmp_path: Path) -> None:
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    law = ("--op", "rev_cumsum", "--law", "value", "--dtype", "float32", "--examples", "4")
    first = invoke("run", str(sound), *law, "--seed", "random", "--json", str(paths[0]))
    seed = json.loads(paths[0].read_text())[0]["seed"]
    assert f"seed {seed}" in " ".join(first.output.split())
    invoke("run", str(sound), *law, "--seed", str(seed), "--json", str(paths[1]))
    points = [json.loads(path.read_text())[0]["laws"][0]["points"] for path in paths]
    assert points[0] == points[1] and points[0]


def test_under_a_kernel_interpreter_there_are_fewer_and_shorter_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.delenv("GATESPEC_PALLAS_INTERPRET", raising=False)
    slow = options_of(kernel_backend="triton")
    assert (slow.examples, slow.max_steps) == (INTERPRETED_EXAMPLES, INTERPRETED_STEPS)
    for usual in (
        options_of(kernel_backend="triton", device="cuda"),
        options_of(kernel_backend="pallas"),
        options_of(),
    ):
        assert (usual.examples, usual.max_steps) == (EXAMPLES, MAX_STEPS)
    asked = options_of(kernel_backend="triton", examples=3, max_steps=65)
    assert (asked.examples, asked.max_steps) == (3, 65)


def test_the_command_that_runs_a_failure_again_says_all_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    law = next(law for law in all_laws() if law.id == "mlstm.gradient")
    settings = RunOptions(examples=3, max_steps=9, seed=5, kernel_backend="triton", quick=True)
    facts = {"target": "a file.py", "framework": "torch", "device": "cuda", "versions": {}}
    report = TargetReport(**facts, options=settings, results=[], seconds=1.0, named_framework="torch")
    assert report.reproduce(LawResult(law=law, dtype="float32", status="failed")) == (
        "TRITON_INTERPRET=1 gatespec run 'a file.py' --op mlstm --law gradient --dtype float32 --seed 5 "
        "--examples 3 --max-steps 9 --device cuda --framework torch --kernel-backend triton --quick"
    )


@pytest.mark.parametrize("text", ["exact(x)[..., ::-1]", "exact(x) / zero"])
def test_a_cause_is_among_the_first_lines_of_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    in_terminal(monkeypatch, 80)
    path = tmp_path / "third_party.py"
    path.write_text(SCANS.format(value=text))
    lines = invoke("run", str(path), "--failures", str(tmp_path), *QUICK).output.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("1. ") for line in lines[:40])


def test_a_target_that_cannot_be_imported_says_why_first(tmp_path: Path) -> None:
    path = tmp_path / "deep.py"
    path.write_text("def f(n):\n    return f(n - 1) if n else missing\n\n\nf(60)\n")
    result = invoke("run", str(path))
    assert result.exit_code == 2
    assert f"{path} cannot be imported: NameError: name 'missing' is not defined" in result.output.splitlines()[0]


def test_a_message_is_wrapped_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    in_terminal(monkeypatch, 60)
    lines = invoke("run", "no_such_module").output.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("Error: "))
    assert max(map(len, lines)) <= 60 and all(line.startswith("    ") for line in lines[at + 1 :])


def test_a_quick_run_sees_a_scale_that_is_1_for_a_head_of_one(tmp_path: Path) -> None:
    path = tmp_path / "scaled_twice.py"
    path.write_text(
        "import reference\n\n\n"
        "def mlstm(q, k, v, i, f, **options):\n"
        "    return reference.mlstm(q, k / k.shape[-1] ** 0.5, v, i, f, **options)\n"
    )
    result = invoke("run", str(path), "--quick", "--op", "mlstm", "--failures", str(tmp_path))
    assert result.exit_code == 1 and "✗ mlstm.value in float32" in result.output
