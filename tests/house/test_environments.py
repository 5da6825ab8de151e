"""`tools/environments.py`: what is made from the Pythons of a machine, what is left out, and how a set-up resumes."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "environments.py"
HERE = "{}.{}".format(*sys.version_info)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the Makefile needs bash")


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool as a module, with another directory for a repository."""
    spec = importlib.util.spec_from_file_location("environments", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "environments", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


NEED_BOTH = "the suite's own tests (they need both frameworks)"
NO_311 = "JAX 0.10 (.venv has Python 3.13, and it needs 3.11)"
NO_TYPES = "the type check (it needs both frameworks)"
ONE_PYTHON = {"python": "3.13", "torch": "2.15.0", "jax": "0.12.0.1", "newest_jax": None, "reasons": {}}


@pytest.mark.parametrize(
    ("held", "line", "pallas"),
    [
        ({"python": "3.11", "torch": "2.13.0+cpu", "jax": "0.10.2", "newest_jax": "0.12.0.1"}, None, ".venv-jax"),
        (
            {"python": "3.11", "torch": "2.13.0+cpu", "jax": "0.10.2"},
            "left out: the newest JAX and the Pallas kernels (no Python from 3.12 on was found)",
            None,
        ),
        ({}, f"left out: {NO_311}", ".venv"),
        (
            {"torch": None, "reasons": {"torch": "no wheel for Python 3.13"}},
            f"left out: torch_impl (no wheel for Python 3.13); {NEED_BOTH}; {NO_311}; {NO_TYPES}",
            ".venv",
        ),
        (
            {"python": "3.11", "jax": "0.10.2", "newest_jax": "0.12.0.1", "torch": None},
            f"left out: torch_impl (PyTorch is not installed); {NEED_BOTH}; {NO_TYPES}",
            ".venv-jax",
        ),
        (
            {"jax": None},
            f"left out: jax_impl (JAX is not installed); {NEED_BOTH}; {NO_311}; {NO_TYPES}",
            None,
        ),
    ],
)
def test_what_is_left_out_is_one_line(tool: ModuleType, held: dict, line: str | None, pallas: str | None) -> None:
    facts = tool.Facts(**(ONE_PYTHON | held))
    assert tool.left_out(facts) == line
    assert tool.pallas_environment(facts) == pallas
    assert tool.is_type_checked(facts) == ("type check" not in (line or ""))


def test_what_a_framework_would_be_needed_for_is_not_run(tool: ModuleType) -> None:
    both, alone = tool.Facts(**ONE_PYTHON), tool.Facts(**(ONE_PYTHON | {"torch": None}))
    assert tool.targets(both) == ["reference", "torch_impl", "jax_impl"] and tool.tests(both) == ["tests"]
    assert tool.targets(alone) == ["reference", "jax_impl"]
    assert tool.tests(alone) == ["tests/reference", "tests/calls", "tests/house", "tests/both", "tests/jax"]
    assert all((ROOT / folder).is_dir() for folder in tool.tests(alone))


class Machine:
    """Stands in for the commands that a set-up runs: each is noted; the one at `fails` is not carried out."""

    def __init__(self, tool: ModuleType, fails: int | None = None) -> None:
        self.commands: list[list[str]] = []
        self.tool, self.fails = tool, fails

    def __call__(self, command: list[str]) -> None:
        if len(self.commands) == self.fails:
            raise self.tool.SetupError("interrupted")
        self.commands.append(command)
        if command[1:3] == ["-m", "venv"]:
            python = Path(command[3], "bin", "python")
            python.parent.mkdir(parents=True)
            python.write_text(f"#!/bin/sh\necho {HERE}\n")
            python.chmod(0o755)

    @property
    def made_anew(self) -> bool:
        return any(command[1:3] == ["-m", "venv"] for command in self.commands)


def environment(tool: ModuleType) -> object:
    return tool.Environment(
        directory=".venv", python=sys.executable, version=HERE, torch=None, jax=True, extras=("dev",)
    )


@pytest.mark.parametrize("fails", [0, 1, 2])
def test_an_interrupted_set_up_is_repeated_by_the_same_command(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    monkeypatch.setattr(tool, "_call", Machine(tool, fails))
    with pytest.raises(tool.SetupError):
        tool.make(environment(tool), False, lambda line: None)
    assert not tool.is_usable(".venv")
    again = Machine(tool)
    monkeypatch.setattr(tool, "_call", again)
    tool.make(environment(tool), False, lambda line: None)
    assert again.made_anew and len(again.commands) == 3
    assert tool.is_usable(".venv")
    # What is finished is updated, not created again.
    third = Machine(tool)
    monkeypatch.setattr(tool, "_call", third)
    tool.make(environment(tool), False, lambda line: None)
    assert not third.made_anew and len(third.commands) == 2


def test_a_set_up_says_one_line_and_the_output_of_a_command_that_fails(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(tool, "_call", Machine(tool))
        tool.make(environment(tool), False, said.append)
    (line,) = said
    assert re.fullmatch(rf"\.venv: set up in \d+ s \(Python {re.escape(HERE)}\)", line)
    warns = "import sys; print('WARNING: Location …'); print('ERROR: no wheel', file=sys.stderr); sys.exit({status})"
    tool._call([sys.executable, "-c", warns.format(status=0)])
    with pytest.raises(
        tool.SetupError, match=r"failed with status 3: [\s\S]*WARNING: Location …[\s\S]*ERROR: no wheel"
    ):
        tool._call([sys.executable, "-c", warns.format(status=3)])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("works", [True, False])
def test_make_says_one_line_for_an_environment_of_its_own(tmp_path: Path, works: bool) -> None:
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    (tmp_path / "Makefile").write_text(rules, encoding="utf-8")
    (tmp_path / "constraints").mkdir()
    (tmp_path / "constraints" / "aot.txt").touch()
    python = tmp_path / ".venv-aot" / "bin" / "python"
    python.parent.mkdir(parents=True)
    pip = f"echo WARNING: Location … >&2; exit {0 if works else 1}"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] || {{ {pip}; }}\n', encoding="utf-8")
    python.chmod(0o755)
    command = ["make", "--silent", ".venv-aot/.stamp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    said = re.fullmatch(r"\.venv-aot: set up in \d+ s \(Python 3\.12\)\n", done.stdout)
    assert (done.returncode == 0) == works == bool(said), done
    assert ("WARNING" in done.stderr) != works and (python.parents[1] / ".stamp").exists() == works


def test_a_directory_that_is_no_environment_is_left_alone(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "thesis.txt").touch()
    monkeypatch.setattr(tool, "_call", Machine(tool))
    with pytest.raises(tool.SetupError, match="is not an environment; move it away"):
        tool.make(environment(tool), False, lambda line: None)
    assert (tmp_path / ".venv" / "thesis.txt").exists()


def test_where_everything_is_required_something_left_out_is_an_error(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.delenv("GATESPEC_REQUIRE_ALL", raising=False)
    tool.complain_or_say("left out: torch_impl", said.append)
    assert said == ["left out: torch_impl"]
    monkeypatch.setenv("GATESPEC_REQUIRE_ALL", "1")
    tool.complain_or_say(None, said.append)
    with pytest.raises(tool.SetupError, match="GATESPEC_REQUIRE_ALL is set, and this is left out: torch_impl"):
        tool.complain_or_say("left out: torch_impl", said.append)
    assert "export GATESPEC_REQUIRE_ALL=1" in (ROOT / ".ci" / "run").read_text()
