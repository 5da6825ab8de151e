"""``pytest --pyargs conformance --conformance-implementation=…``, from outside the repository."""

import importlib.metadata
import inspect
import os
import subprocess
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import reference
from conformance import pytest_plugin
from conformance.base.exceptions import UsageError
from conformance.base.options import OFFERED, RunOptions
from conformance.cli import run_command
from conformance.command.test_laws import LawTests
from conformance.judge.selection import options_of

ROOT = Path(reference.__file__).resolve().parents[1]
PLUGIN = "conformance.pytest_plugin"
LOADED = {"conformance", PLUGIN, "conformance.base", "conformance.base.options"}
SCANS = """
from reference import rev_cumsum as exact

def rev_cumsum(x):
    return exact(x) + {value}
"""


def pytest_in(
    directory: Path, *arguments: str, path: Path = ROOT, tests: tuple[str, ...] = ("--pyargs", "conformance")
) -> subprocess.CompletedProcess[str]:
    # Loaded by name in an environment that was installed before the entry point was there.
    installed = any(each.value == PLUGIN for each in importlib.metadata.entry_points(group="pytest11"))
    plugins = ("-p", "no:cacheprovider", *(() if installed else ("-p", PLUGIN)))
    command = [sys.executable, "-m", "pytest", *plugins, *tests, "-rsxX", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join({str(path): 0, str(ROOT): 0})}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(SCANS.format(value=0))
    return path


SMALL = ("--conformance-op=rev_cumsum", "--conformance-dtype=float32", "--conformance-examples=2")


def test_without_an_implementation_the_laws_are_skipped_with_a_sentence(tmp_path: Path) -> None:
    done = pytest_in(tmp_path)
    assert done.returncode == 0 and "1 skipped" in done.stdout, done.stdout + done.stderr
    assert "name a target to judge: pytest --pyargs conformance --conformance-implementation=mypkg" in done.stdout


@pytest.mark.parametrize("tests", [(), ("--pyargs", "json"), ("test_own.py",)])
def test_a_run_that_would_collect_no_law_says_what_to_add(target: Path, tests: tuple[str, ...]) -> None:
    (target.parent / "test_own.py").write_text("def test_own():\n    pass\n")
    done = pytest_in(target.parent, "--conformance-implementation=kernels", *SMALL, tests=tests)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    said = "add --pyargs conformance, as in pytest --pyargs conformance --conformance-implementation=kernels"
    assert said in " ".join((done.stdout + done.stderr).split())


def test_the_laws_run_by_their_path_and_next_to_other_tests(target: Path) -> None:
    (target.parent / "test_own.py").write_text("def test_own_value():\n    pass\n")
    laws = str(ROOT / "conformance" / "command" / "test_laws.py")
    for tests in (("test_own.py", "--pyargs", "conformance"), ("test_own.py", laws)):
        done = pytest_in(target.parent, "--conformance-implementation=kernels", *SMALL, "-k", "value", tests=tests)
        assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr


def test_each_law_and_dtype_is_a_test(target: Path) -> None:
    done = pytest_in(target.parent, "--conformance-implementation=kernels", *SMALL, "-v", "-k", "value or gradient")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_law[rev_cumsum.value-float32]" in done.stdout and "1 passed" in done.stdout
    assert "only if it offers rev_cumsum_backward" in done.stdout, "a skip says why"


@pytest.mark.skipif(find_spec("xdist") is None, reason="pytest-xdist is not installed here")
def test_the_laws_run_in_several_processes(target: Path) -> None:
    done = pytest_in(target.parent, "--conformance-implementation=kernels", *SMALL, "-k", "value", "-n", "2")
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
    assert "judges in two processes" not in done.stdout


def test_the_laws_run_without_xdist(target: Path) -> None:
    done = pytest_in(target.parent, "--conformance-implementation=kernels", *SMALL, "-k", "value", "-p", "no:xdist")
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
    assert "-n 2 with pytest-xdist judges in two processes" in done.stdout


def test_a_failure_is_told_as_on_the_command_line(target: Path) -> None:
    target.write_text(SCANS.format(value=1))
    done = pytest_in(target.parent, f"--conformance-implementation={target}", *SMALL, "-k", "rev_cumsum.value")
    assert done.returncode == 1, done.stdout + done.stderr
    for said in ("The value is the reference's.", "first wrong at [", "ran once and failed again", "--law value"):
        assert said in done.stdout
    assert "Traceback" not in done.stdout
    assert (target.parent / "reports" / "failures" / "kernels-rev_cumsum.value-float32.py").exists()


def test_a_wrong_call_says_what_to_type(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, "--conformance-implementation=no_such_module")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR and "a path that ends in .py" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("op", ["mlstn"], "name one of rev_cumsum"),
        ("law", ["valeu"], "lists the names"),
        ("dtype", ["float8"], "name one of float64"),
        ("examples", 0, "--conformance-examples 0 is too few; give 1 or more"),
        ("max_steps", -1, "--conformance-max-steps -1 is too few"),
        ("known_failures", "no/such/file.txt", "it has lines such as: mlstm.gradient bfloat16"),
    ],
)
def test_wrong_options_say_what_to_type(option: str, value: object, said: str) -> None:
    given = {f"conformance_{each.name.replace('-', '_')}": [] if each.several else each.default for each in OFFERED}
    given |= {"conformance_implementation": ["reference"], "conformance_quick": False, "conformance_contract": False}
    given[f"conformance_{option}"] = value
    with pytest.raises(UsageError, match=said):
        LawTests.of(given.get)


class Options(dict[str, dict[str, Any]]):
    """The options that a plugin adds to pytest, by name."""

    def getgroup(self, *_: str) -> "Options":
        return self

    def addoption(self, name: str, **settings: Any) -> None:
        self[name.removeprefix("--conformance-")] = settings


def test_every_option_of_a_run_is_offered_and_documented() -> None:
    added = Options()
    pytest_plugin.pytest_addoption(added)  # pyright: ignore[reportArgumentType]
    typed = {name.removeprefix("--") for option in run_command.params for name in option.opts}
    guide = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    for option in OFFERED:
        assert option.name in typed
        assert (option.name in added) == option.pytest
        assert f"`-{option.name}`" in guide or option.name == "op" or not option.pytest, option.name
    taken = {*inspect.signature(options_of).parameters, *(field.name for field in fields(RunOptions))} - {"given"}
    own = "shrink_seconds"  # Of the suite's own, not a user's.
    assert {option.field for option in OFFERED} == taken - {own}


def test_known_failures_are_xfailed_and_one_that_passes_fails(target: Path) -> None:
    target.write_text(SCANS.format(value=1))
    known = target.with_name("known.txt")
    known.write_text("rev_cumsum.value float32  # starts at one\nrev_cumsum.valeu  # of no law")
    arguments = (f"--conformance-implementation={target}", *SMALL, "-k", "rev_cumsum.value")
    done = pytest_in(target.parent, *arguments, f"--conformance-known-failures={known}")
    assert done.returncode == 0 and "1 xfailed" in done.stdout, done.stdout + done.stderr
    assert "known: starts at one" in done.stdout
    assert "the known failure `rev_cumsum.valeu` is the id of no law" in done.stdout
    target.write_text(SCANS.format(value="0.0"))
    done = pytest_in(target.parent, *arguments, f"--conformance-known-failures={known}")
    assert done.returncode == 1 and "passes now: remove `rev_cumsum.value float32`" in done.stdout, done.stdout
    known.write_text("rev_cumsum.value")
    done = pytest_in(target.parent, *arguments, f"--conformance-known-failures={known}")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR and "has no reason" in done.stdout + done.stderr


def test_the_plugin_imports_nothing_until_it_is_asked_for() -> None:
    code = (
        "import sys, pytest; before = {*sys.modules}; import conformance.pytest_plugin; print({*sys.modules} - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    own = eval(done.stdout)
    assert own == LOADED


def test_an_unrelated_run_asks_the_plugin_for_no_more(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n\ndef test_other():\n"
        f"    assert {{n for n in sys.modules if n.startswith('conformance')}} == {LOADED}\n"
        "    assert 'numpy' not in sys.modules\n"
    )
    # Other plugins of this environment may import NumPy.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", PLUGIN, "-q", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_without_the_extra_the_run_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conftest.py").write_text(
        "import conformance.command.requirements as requirements\n\nrequirements.find_spec = lambda name: None\n"
    )
    monkeypatch.setenv("PYTEST_PLUGINS", "conftest")
    done = pytest_in(tmp_path, "--conformance-implementation=reference", path=tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert 'the extra "conformance" has what it needs' in done.stdout + done.stderr
